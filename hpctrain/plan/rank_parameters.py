"""The parameters that one rank computes with, in elements, before ZeRO shares them out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hpctrain.plan.layout import Layout
from hpctrain.plan.model_shape import ModelShape


@dataclass(frozen=True)
class RankParameters:
    """Elements of each parameter, in the order in which the decoder makes them. Source: hpctrain/worker/model/decoder.py."""

    num_blocks: int
    block_matrices: tuple[int, ...]
    """Of one block: queries, keys and values; projection; into and out of the feed-forward."""
    block_vectors: tuple[int, ...]
    """Biases and norms of one block."""
    token_table: int
    """0: on another pipeline stage."""
    position_table: int
    """0: rotary positions, or on another stage."""
    head: int
    """Output matrix; 0: it is the token table, or on another stage."""
    final_norm: tuple[int, ...]
    is_tied: bool
    """The token table is the output matrix."""

    @property
    def matrices(self) -> tuple[int, ...]:
        """DeepSpeed's first parameter group."""
        tables = [size for size in (self.token_table, self.position_table) if size]
        return (*tables, *(self.block_matrices * self.num_blocks), *([self.head] if self.head else []))

    @property
    def vectors(self) -> tuple[int, ...]:
        """DeepSpeed's second parameter group, which knows no weight decay."""
        return (*(self.block_vectors * self.num_blocks), *self.final_norm)

    @property
    def block(self) -> int:
        """Elements of one block."""
        return sum(self.block_matrices) + sum(self.block_vectors)

    @property
    def total(self) -> int:
        return self.num_blocks * self.block + self.token_table + self.position_table + self.head + sum(self.final_norm)

    @property
    def largest(self) -> int:
        """Elements of the largest parameter."""
        return max(*self.block_matrices, self.token_table, self.position_table, self.head)

    @property
    def others(self) -> tuple[int, ...]:
        """Parameters outside of the blocks."""
        return tuple(size for size in (self.token_table, self.position_table, self.head, *self.final_norm) if size)

    def first_matrices(self) -> Iterator[tuple[int, int]]:
        """Each size of a matrix where it comes first, in order, and the elements of all matrices before it."""
        before = 0
        for size in (self.token_table, self.position_table, *self.block_matrices):
            if size:
                yield size, before
                before += size
        if self.head:
            yield self.head, before + (self.num_blocks - 1) * sum(self.block_matrices)

    def last_matrices(self, num_ranks: int) -> Iterator[tuple[int, int]]:
        """Each size of a matrix where it comes last, in order, and a rank's share of all matrices before it, in elements."""
        before = 0
        for size in (self.token_table, self.position_table):
            if size:
                yield size, before
                before += math.ceil(size / num_ranks)
        shares = [math.ceil(size / num_ranks) for size in self.block_matrices]
        before += (self.num_blocks - 1) * sum(shares)
        for size, share in zip(self.block_matrices, shares, strict=True):
            yield size, before
            before += share
        if self.head:
            yield self.head, before

    def up_to(self, threshold: int) -> int:
        """Elements of all parameters of which each has at most so many."""
        block = sum(size for size in (*self.block_matrices, *self.block_vectors) if size <= threshold)
        return self.num_blocks * block + sum(size for size in self.others if size <= threshold)

    def partition(self, num_ranks: int) -> int:
        """Elements of one rank's share in stage 3, each parameter's rounded up.

        Source: runtime/zero/partition_parameters.py _aligned_size.
        """
        return sum(self.partitions(num_ranks))

    def partitions(self, num_ranks: int) -> tuple[int, int]:
        """The same of the matrices and of the vectors."""

        def shares(*sizes: int) -> int:
            return sum(math.ceil(size / num_ranks) for size in sizes)

        matrices = self.num_blocks * shares(*self.block_matrices)
        vectors = self.num_blocks * shares(*self.block_vectors)
        return (
            matrices + shares(self.token_table, self.position_table, self.head),
            vectors + shares(*self.final_norm),
        )


def rank_parameters(shape: ModelShape, layout: Layout, stage: int = 0) -> RankParameters:
    """Of a rank of one pipeline stage; tensor ranks split every matrix and what follows its split side.

    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; hpctrain/worker/model/layers.py.
    """
    tp, hidden = layout.tensor_parallel_size, shape.hidden_size
    attention = (shape.attention_width + 2 * shape.kv_width) // tp
    inner = shape.ffn_hidden_size * (2 if shape.architecture == "llama" else 1) // tp
    matrices = (
        attention * hidden,
        shape.attention_width // tp * hidden,
        inner * hidden,
        shape.ffn_hidden_size // tp * hidden,
    )
    norm = (hidden,) if shape.architecture == "llama" else (hidden, hidden)
    vectors: tuple[int, ...] = (*norm, *norm)
    if shape.architecture == "gpt":
        vectors = (*norm, attention, hidden, *norm, inner, hidden)
    is_first, is_last = stage == 0, stage == layout.pipeline_parallel_size - 1
    table = shape.vocab_size // tp * hidden
    return RankParameters(
        num_blocks=shape.num_layers // layout.pipeline_parallel_size,
        block_matrices=matrices,
        block_vectors=vectors,
        token_table=table if is_first or (is_last and shape.tie_embeddings) else 0,
        position_table=shape.max_seq_len * hidden if is_first and shape.architecture == "gpt" else 0,
        head=table if is_last and not shape.tie_embeddings else 0,
        final_norm=norm if is_last else (),
        is_tied=shape.tie_embeddings,
    )
