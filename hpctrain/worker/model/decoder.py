"""A decoder-only transformer in plain PyTorch: GPT and Llama from one shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpctrain.config.schema import ActivationCheckpointing
from hpctrain.plan.model_shape import ModelShape
from hpctrain.worker.model.collectives import own_positions_of_all_heads, whole_sequence_of_own_heads
from hpctrain.worker.model.head import Head
from hpctrain.worker.model.layers import (
    ColumnParallelLinear,
    Embedding,
    ParameterSeed,
    RowParallelLinear,
    VocabParallelEmbedding,
    norm,
    rotary_table,
    rotate,
)
from hpctrain.worker.model.recomputation import Rotary, run_blocks
from hpctrain.worker.model.selective import Recipe, gated, gated_from_inputs
from hpctrain.worker.parallel_groups import NO_GROUPS, ParallelGroups


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input. ZeRO-3 gathers a block as one unit.

    Tensor-parallel ranks have some heads and some of the feed-forward width each. Sequence-parallel ranks have some positions
    of all of it, and in attention all positions of some heads.
    """

    def __init__(
        self,
        shape: ModelShape,
        seed: ParameterSeed,
        groups: ParallelGroups = NO_GROUPS,
        is_selective: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.is_selective = is_selective
        self.sequence = groups.sequence
        tensor = groups.tensor
        is_gpt = shape.architecture == "gpt"
        hidden, std = shape.hidden_size, shape.init_std
        # 2 x num_layers outputs are summed in the residual stream; so scaled, its variance does not grow with depth.
        # Source: Radford et al. 2019 (GPT-2), section 2.3.
        residual_std = std / (2 * shape.num_layers) ** 0.5
        attention_parts = [shape.attention_width, shape.kv_width, shape.kv_width]
        ffn_parts = [shape.ffn_hidden_size] * (1 if is_gpt else 2)
        self.attention_norm = norm(shape)
        self.qkv = ColumnParallelLinear(hidden, attention_parts, is_gpt, std, seed.child("qkv"), tensor)
        self.projection = RowParallelLinear(
            shape.attention_width, hidden, is_gpt, residual_std, seed.child("projection"), tensor
        )
        self.ffn_norm = norm(shape)
        self.ffn_in = ColumnParallelLinear(hidden, ffn_parts, is_gpt, std, seed.child("ffn_in"), tensor)
        self.ffn_out = RowParallelLinear(
            shape.ffn_hidden_size, hidden, is_gpt, residual_std, seed.child("ffn_out"), tensor
        )

    def forward(self, x: Tensor, rotary: Rotary | None) -> Tensor:
        """(batch, own seq, hidden) to the same; ``rotary`` of the whole sequence."""
        x = x + self._attention(x, rotary)
        return x + self._feed_forward(x)

    def _attention(self, x: Tensor, rotary: Rotary | None) -> Tensor:
        """Causal attention; num_heads / num_kv_heads query heads share one key and value head."""
        shape = self.shape
        parts = self.qkv(self.attention_norm(x), self._recipe(self.attention_norm, x)).split(self.qkv.own_parts, dim=-1)
        query, key, value = (
            part.view(*part.shape[:2], -1, shape.head_dim) for part in whole_sequence_of_own_heads(parts, self.sequence)
        )
        if rotary is not None:
            # Nothing keeps queries and keys as they were before, but for values that lie in one tensor with them.
            query, key, value = rotate(query, *rotary), rotate(key, *rotary), value.clone()
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=shape.num_kv_heads != shape.num_heads,
        )
        out: Tensor = self.projection(own_positions_of_all_heads(mixed.transpose(1, 2).flatten(2), self.sequence))
        return out

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.ffn_in(self.ffn_norm(x), self._recipe(self.ffn_norm, x))
        out: Tensor = self.ffn_out(self._activation(hidden), self._recipe(self._activation, hidden))
        return out

    def _activation(self, hidden: Tensor) -> Tensor:
        """SwiGLU in a Llama, else GELU; both keep their input only, or SwiGLU more where memory is left to it."""
        if self.shape.architecture == "gpt":
            return functional.gelu(hidden, approximate="tanh")
        return gated_from_inputs(hidden) if self.is_selective else gated(hidden)

    def _recipe(self, make: Callable[[Tensor], Tensor], source: Tensor) -> Recipe | None:
        """Of what ``make`` gives out, where that is not kept."""
        return Recipe(make, source) if self.is_selective else None


class Blocks(nn.ModuleList):
    """Consecutive blocks of the decoder: all of them, or those of a pipeline stage."""

    def __init__(
        self,
        shape: ModelShape,
        numbers: range,
        activation_checkpointing: ActivationCheckpointing,
        seed: ParameterSeed,
        groups: ParallelGroups = NO_GROUPS,
        offload_activations: bool = False,
    ) -> None:
        is_selective = activation_checkpointing == "selective"
        super().__init__(Block(shape, seed.child(f"blocks.{number}"), groups, is_selective) for number in numbers)
        self.shape = shape
        self.activation_checkpointing = activation_checkpointing
        self.offload_activations = offload_activations
        self.num_sequence_parts = groups.sequence.size

    def forward(self, x: Tensor) -> Tensor:
        """(batch, own seq, hidden) to the same."""
        shape, seq_len = self.shape, x.shape[1] * self.num_sequence_parts
        is_gpt = shape.architecture == "gpt"
        rotary = None if is_gpt else rotary_table(seq_len, shape.head_dim, shape.rope_theta, x)
        return run_blocks(self, x, rotary, self.activation_checkpointing, self.offload_activations)


class Decoder(nn.Module):
    """Token table, blocks, final norm, output matrix, loss."""

    def __init__(
        self,
        shape: ModelShape,
        activation_checkpointing: ActivationCheckpointing,
        seed: int,
        groups: ParallelGroups = NO_GROUPS,
        offload_activations: bool = False,
        loss_chunk_size: int = 0,
    ) -> None:
        super().__init__()
        self.groups = groups
        root = ParameterSeed(seed)
        hidden, std, tensor = shape.hidden_size, shape.init_std, groups.tensor
        self.token_table = VocabParallelEmbedding(shape.vocab_size, hidden, std, root.child("token_table"), tensor)
        self.position_table = (
            Embedding(shape.max_seq_len, hidden, std, root.child("position_table"))
            if shape.architecture == "gpt"
            else None
        )
        numbers = range(shape.num_layers)
        self.blocks = Blocks(shape, numbers, activation_checkpointing, root, groups, offload_activations)
        self.final_norm = norm(shape)
        tied = self.token_table.weight if shape.tie_embeddings else None
        self.head = Head(shape.vocab_size, hidden, std, root.child("head"), tensor, loss_chunk_size, tied)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy over the tokens of this rank's part of the sequences, fp32 scalar, nats per token.

        Args:
            ids: (batch, seq), int64, whole sequences.
            labels: (batch, seq), int64: the token that follows each of ``ids``.
        """
        loss: Tensor = self.head(self._normed(ids), self._own_positions(labels))
        return loss

    def logits(self, ids: Tensor) -> Tensor:
        """Scores of the next token, (batch, own seq, own vocab), for ``ids`` (batch, seq)."""
        scores: Tensor = self.head(self._normed(ids))
        return scores

    def _normed(self, ids: Tensor) -> Tensor:
        """What the output matrix reads, (batch, own seq, hidden)."""
        x: Tensor = self.token_table(self._own_positions(ids))
        if self.position_table is not None:
            x = x + self.position_table(self._own_positions(torch.arange(ids.shape[1], device=ids.device)))
        out: Tensor = self.final_norm(self.blocks(x))
        return out

    def _own_positions(self, x: Tensor) -> Tensor:
        """This rank's part along the last dimension, the sequence."""
        ranks = self.groups.sequence
        return x if ranks.size == 1 else x.chunk(ranks.size, dim=-1)[ranks.rank]
