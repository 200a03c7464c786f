"""A decoder-only transformer in plain PyTorch: GPT and Llama from one shape."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpctrain.config.schema import ActivationCheckpointing
from hpctrain.plan.model_shape import ModelShape
from hpctrain.worker.model.layers import Embedding, Linear, ParameterSeed, TiedHead, norm, rotary_table, rotate

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, each (seq, head_dim / 2)."""


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input. ZeRO-3 gathers a block as one unit."""

    def __init__(self, shape: ModelShape, seed: ParameterSeed) -> None:
        super().__init__()
        self.shape = shape
        is_gpt = shape.architecture == "gpt"
        hidden, std = shape.hidden_size, shape.init_std
        # 2 x num_layers outputs are summed in the residual stream; so scaled, its variance does not grow with depth.
        # Source: Radford et al. 2019 (GPT-2), section 2.3.
        residual_std = std / (2 * shape.num_layers) ** 0.5
        ffn_in = shape.ffn_hidden_size * (1 if is_gpt else 2)
        self.attention_norm = norm(shape)
        self.qkv = Linear(hidden, shape.attention_width + 2 * shape.kv_width, is_gpt, std, seed.child("qkv"))
        self.projection = Linear(shape.attention_width, hidden, is_gpt, residual_std, seed.child("projection"))
        self.ffn_norm = norm(shape)
        self.ffn_in = Linear(hidden, ffn_in, is_gpt, std, seed.child("ffn_in"))
        self.ffn_out = Linear(shape.ffn_hidden_size, hidden, is_gpt, residual_std, seed.child("ffn_out"))

    def forward(self, x: Tensor, rotary: Rotary | None) -> Tensor:
        """(batch, seq, hidden) to the same."""
        x = x + self._attention(self.attention_norm(x), rotary)
        return x + self._feed_forward(self.ffn_norm(x))

    def _attention(self, x: Tensor, rotary: Rotary | None) -> Tensor:
        """Causal attention; num_heads / num_kv_heads query heads share one key and value head."""
        batch, seq, _ = x.shape
        shape = self.shape
        widths = [shape.attention_width, shape.kv_width, shape.kv_width]
        query, key, value = (
            part.view(batch, seq, -1, shape.head_dim).transpose(1, 2) for part in self.qkv(x).split(widths, dim=-1)
        )
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=shape.num_kv_heads != shape.num_heads
        )
        out: Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, seq, shape.attention_width))
        return out

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.shape.architecture == "llama":
            gate, up = self.ffn_in(x).chunk(2, dim=-1)
            inner = functional.silu(gate) * up
        else:
            inner = functional.gelu(self.ffn_in(x), approximate="tanh")
        out: Tensor = self.ffn_out(inner)
        return out


class Decoder(nn.Module):
    """Token table, blocks, final norm, output matrix, loss."""

    def __init__(self, shape: ModelShape, activation_checkpointing: ActivationCheckpointing, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.activation_checkpointing = activation_checkpointing
        root = ParameterSeed(seed)
        hidden, std = shape.hidden_size, shape.init_std
        self.token_table = Embedding(shape.vocab_size, hidden, std, root.child("token_table"))
        self.position_table = (
            Embedding(shape.max_seq_len, hidden, std, root.child("position_table"))
            if shape.architecture == "gpt"
            else None
        )
        self.blocks = nn.ModuleList(Block(shape, root.child(f"blocks.{index}")) for index in range(shape.num_layers))
        self.final_norm = norm(shape)
        self.head = (
            TiedHead(self.token_table.weight)
            if shape.tie_embeddings
            else Linear(hidden, shape.vocab_size, False, std, root.child("head"))
        )

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy over all tokens, fp32 scalar, nats per token.

        Args:
            ids: (batch, seq), int64.
            labels: (batch, seq), int64: the token that follows each of ``ids``.
        """
        logits = self.logits(ids)
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def logits(self, ids: Tensor) -> Tensor:
        """Scores of the next token, (batch, seq, vocab), for ``ids`` (batch, seq)."""
        seq_len = ids.shape[1]
        x: Tensor = self.token_table(ids)
        if self.position_table is not None:
            x = x + self.position_table(torch.arange(seq_len, device=ids.device))
        rotary = self._rotary(seq_len, x)
        for block in self.blocks:
            x = _recomputed(block, x, rotary) if self.activation_checkpointing == "full" else block(x, rotary)
        out: Tensor = self.head(self.final_norm(x))
        return out

    def _rotary(self, seq_len: int, like: Tensor) -> Rotary | None:
        if self.shape.architecture == "gpt":
            return None
        return rotary_table(seq_len, self.shape.head_dim, self.shape.rope_theta, like)


def _recomputed(block: nn.Module, x: Tensor, rotary: Rotary | None) -> Tensor:
    """The block's output; only its input is kept, and the backward pass runs the block's forward once more.

    torch ends that second run as soon as it has what the backward pass needs: before the block's last matrix product, or in
    ZeRO-3, whose own linear layer saves its inputs late, behind it. ZeRO-3 with leaf modules rests on it (tried with
    DeepSpeed 0.19.8, early_stop=False): if the block's forward came to its end, DeepSpeed's hook behind it would release
    the parameters that the backward pass is about to use. Nothing random is in a block, so no generator state is kept.
    """
    out: Tensor = checkpoint(block, x, rotary, use_reentrant=False, preserve_rng_state=False)
    return out
