"""When gradients leave the bucket in which the engine collects them for one collective, in elements: a replay.

Source: DeepSpeed 0.19.8, runtime/zero/stage3.py (reduce_independent_p_g_buckets_and_remove_grads, __add_grad_to_ipg_bucket,
__avg_scatter_grads), runtime/comm/coalesced_collectives.py (reduce_scatter_coalesced), runtime/zero/stage_1_and_2.py
(reduce_independent_p_g_buckets_and_remove_grads, average_tensor with reduce_scatter off).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hpctrain.plan.rank_parameters import RankParameters


class Gradients(NamedTuple):
    """Elements on the GPU at one moment, without the bucket itself."""

    whole: int
    """Gradients in storages of their own: not handed over yet, or larger than the bucket and waiting for their turn."""
    flattened: int
    """Stage 3: the copy of all that is being reduced; 0: nothing is. Below it a bucket is reduced where it is."""
    reductions: int = 0
    """Collectives up to and with this moment; in a block since its backward pass began."""

    @property
    def total(self) -> int:
        return self.whole + self.flattened


class BlockGradients(NamedTuple):
    """While the gradients of one block come."""

    reductions: int
    """Collectives before this block's backward pass."""
    waiting: int
    """Gradients in storages of their own from before."""
    at_matrix: tuple[Gradients, ...]
    """When the gradient of each matrix is handed over, in the order of the backward pass. In stage 3, where a block is a leaf
    module, none is handed over until the last is there, so that they add up."""
    behind: Gradients
    """Stage 3: at the height of the reductions behind the block's backward pass."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Collectives since the pass began: before the first matrix's gradient is handed over, then with each."""
        return (self.reductions, *(self.reductions + at.reductions for at in self.at_matrix))


@dataclass(frozen=True)
class GradientFlow:
    """One backward pass."""

    starts: tuple[Gradients, ...]
    """Before the last block's turn: when the gradients of the output matrix and of the final norm are handed over."""
    blocks: tuple[BlockGradients, ...]
    """From the last block to the first."""
    ends: tuple[Gradients, ...]
    """Behind the first block: when the tables' gradients are handed over, and when the bucket is emptied at last."""

    @property
    def before(self) -> Gradients:
        """The highest of the starts."""
        return max(self.starts, key=lambda moment: moment.total)

    @property
    def end(self) -> Gradients:
        """The highest of the ends."""
        return max(self.ends, key=lambda moment: moment.total)


@functools.lru_cache(maxsize=64)
def gradient_flow(
    parameters: RankParameters, bucket_size: int, num_ranks: int, zero_stage: int, is_cloned: bool = False
) -> GradientFlow:
    """All blocks of one backward pass whose gradients are reduced as they come.

    Args:
        parameters: of one rank.
        bucket_size: elements.
        num_ranks: that share the states.
        zero_stage: 1, 2 or 3.
        is_cloned: a gradient that is larger than the bucket is copied when it is handed over, as below stage 3 with offload.
    """
    bucket = _Bucket(bucket_size, num_ranks, zero_stage, is_cloned)
    starts = tuple(bucket.hand_over(size) for size in (parameters.head, *parameters.final_norm))
    blocks = tuple(_blocks(parameters, bucket, _leaf_block if zero_stage == 3 else _plain_block))
    ends = [bucket.hand_over(size) for size in (parameters.position_table, parameters.token_table)]
    return GradientFlow(starts, blocks, (*ends, bucket.end()))


@functools.lru_cache(maxsize=64)
def reduced_at_the_end(parameters: RankParameters, bucket_size: int) -> tuple[int, int]:
    """Stage 1, nothing reduced beside the backward pass: elements in storages of their own before and in the first collective.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (reduce_gradients), group after group.

    Args:
        parameters: of one rank.
        bucket_size: elements.
    """
    bucket = _Bucket(bucket_size, 1, 1)
    remaining = parameters.total
    for numel in (*parameters.matrices, *parameters.vectors):
        remaining -= numel
        moment = bucket.hand_over(numel, remaining)
        if moment.reductions:
            return parameters.total, moment.whole
    return parameters.total, bucket.end().whole


class _Contents(NamedTuple):
    """What is in a bucket: all that decides what becomes of the next gradient."""

    num_members: int = 0
    filled: int = 0
    """Elements."""
    padded: int = 0
    """The same with each member rounded up to what the ranks share evenly."""
    kept: int = 0
    """Elements of members that are larger than the bucket, and so are not copied into it."""


class _Bucket:
    def __init__(self, size: int, num_ranks: int, zero_stage: int, is_cloned: bool = False) -> None:
        self._size, self._num_ranks, self._stage, self._is_cloned = size, num_ranks, zero_stage, is_cloned
        self.contents = _Contents()
        self.reductions = 0

    @property
    def kept(self) -> int:
        return self.contents.kept

    def hand_over(self, numel: int, others: int = 0) -> Gradients:
        """Puts a gradient in, 0: there is none. Where it does not fit, the bucket is emptied before.

        Args:
            numel: its elements.
            others: elements of gradients that wait to be handed over behind it.

        Returns:
            What is there at that moment.
        """
        whole = numel + others + self.kept
        if numel == 0:
            return Gradients(whole, 0, self.reductions)
        is_full = self.contents.num_members > 0 and self.contents.filled + numel > self._size
        flattened = self._empty() if is_full else 0
        num_members, filled, padded, kept = self.contents
        if self._is_cloned and numel > self._size:
            whole = max(whole, 2 * numel + others + kept)
        padded += math.ceil(numel / self._num_ranks) * self._num_ranks
        kept += numel if numel > self._size else 0
        self.contents = _Contents(num_members + 1, filled + numel, padded, kept)
        return Gradients(whole, flattened, self.reductions)

    def end(self) -> Gradients:
        """Reduces what is left."""
        kept = self.kept
        return Gradients(kept, self._empty(), self.reductions)

    def _empty(self) -> int:
        """Reduces what is in it; returns the elements of the flattened copy."""
        num_members, filled, padded, kept = self.contents
        # Stage 1 keeps every gradient until all are reduced: those in the bucket take nothing, one that is larger stays.
        self.contents = _Contents(kept=kept if self._stage == 1 else 0)
        self.reductions += 1
        return 0 if self._stage < 3 or (num_members == 1 and padded == filled) else padded


def _blocks(
    parameters: RankParameters, bucket: _Bucket, of_block: Callable[[RankParameters, _Bucket], BlockGradients]
) -> Iterator[BlockGradients]:
    """From the last block to the first; to a bucket with the same contents the same happens, which is replayed once."""
    known: dict[_Contents, tuple[BlockGradients, _Contents, int]] = {}
    for _ in range(parameters.num_blocks):
        before, reductions = bucket.contents, bucket.reductions
        if before not in known:
            block = of_block(parameters, bucket)
            known[before] = (block, bucket.contents, bucket.reductions - reductions)
        block, bucket.contents, more = known[before]
        bucket.reductions = reductions + more
        yield block._replace(reductions=reductions)


def _leaf_block(parameters: RankParameters, bucket: _Bucket) -> BlockGradients:
    """Stage 3: the block's hook hands its gradients over when all of them are there."""
    reductions, waiting = bucket.reductions, bucket.kept
    backwards = parameters.block_matrices[::-1]
    at_matrix = tuple(Gradients(waiting + sum(backwards[: index + 1]), 0) for index in range(len(backwards)))
    remaining, moments = parameters.block, []
    for numel in (*parameters.block_matrices, *parameters.block_vectors):
        remaining -= numel
        moments.append(bucket.hand_over(numel, remaining))
    behind = max(moments, key=lambda moment: moment.total)
    return BlockGradients(reductions, waiting, at_matrix, behind._replace(reductions=behind.reductions - reductions))


def _plain_block(parameters: RankParameters, bucket: _Bucket) -> BlockGradients:
    """Stages 1 and 2: each gradient goes to the bucket as soon as it is there."""
    reductions, waiting = bucket.reductions, bucket.kept
    handed_over = [bucket.hand_over(numel) for numel in parameters.block_matrices[::-1]]
    at_matrix = tuple(moment._replace(reductions=moment.reductions - reductions) for moment in handed_over)
    for numel in parameters.block_vectors:
        bucket.hand_over(numel)
    return BlockGradients(reductions, waiting, at_matrix, Gradients(0, 0))
