"""When gradients leave the bucket in which the engine collects them for one collective, in elements: a replay.

Source: DeepSpeed 0.19.8, runtime/zero/stage3.py (reduce_independent_p_g_buckets_and_remove_grads, __add_grad_to_ipg_bucket,
__avg_scatter_grads), runtime/comm/coalesced_collectives.py (reduce_scatter_coalesced), runtime/zero/stage_1_and_2.py
(reduce_independent_p_g_buckets_and_remove_grads, allreduce_bucket).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hpctrain.plan.memory.stage12_shares import rank_share
from hpctrain.plan.rank_parameters import RankParameters


class Gradients(NamedTuple):
    """Elements on the GPU at one moment, without the bucket itself."""

    whole: int
    """Gradients in storages of their own: not handed over yet, or larger than the bucket and waiting for their turn."""
    flattened: int
    """The copy of all that is being reduced; 0: nothing is."""

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


@dataclass(frozen=True)
class GradientFlow:
    """One backward pass."""

    before: Gradients
    """At the height of the reductions before the last block's turn: the output matrix and the final norm."""
    blocks: tuple[BlockGradients, ...]
    """From the last block to the first."""
    end: Gradients
    """At the height of the reductions behind the first block."""
    reductions: int
    """Collectives before that moment."""


@functools.lru_cache(maxsize=64)
def gradient_flow(parameters: RankParameters, bucket_size: int, num_ranks: int, zero_stage: int) -> GradientFlow:
    """All blocks of one backward pass whose gradients are reduced as they come.

    Args:
        parameters: of one rank.
        bucket_size: elements.
        num_ranks: that share the states.
        zero_stage: 1, 2 or 3.
    """
    share = rank_share(parameters, 0, num_ranks).groups[0].numel if zero_stage < 3 else 0
    bucket = _Bucket(bucket_size, num_ranks, zero_stage, share)
    before = [bucket.hand_over(size) for size in (parameters.head, *parameters.final_norm)]
    blocks = tuple(_blocks(parameters, bucket, _leaf_block if zero_stage == 3 else _plain_block))
    ends: list[tuple[Gradients, int]] = []
    for size in (parameters.position_table, parameters.token_table):
        num_before = bucket.reductions
        ends.append((bucket.hand_over(size), num_before))
    num_before, kept = bucket.reductions, bucket.kept
    ends.append((Gradients(kept, bucket.empty()), num_before))
    end, reductions = max(ends, key=lambda moment: moment[0].total)
    return GradientFlow(max(before, key=lambda moment: moment.total), blocks, end, reductions)


@functools.lru_cache(maxsize=64)
def reduced_at_the_end(parameters: RankParameters, bucket_size: int, num_ranks: int) -> tuple[Gradients, Gradients]:
    """Stage 1 where nothing is reduced beside the backward pass: the height up to the first collective, and that behind it.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (reduce_gradients), group after group.

    Args:
        parameters: of one rank.
        bucket_size: elements.
        num_ranks: that share the states.
    """
    share = rank_share(parameters, 0, num_ranks).groups[0].numel
    bucket = _Bucket(bucket_size, num_ranks, 1, share)
    remaining, moments = parameters.total, [(Gradients(parameters.total, 0), 0)]
    for numel in (*parameters.matrices, *parameters.vectors):
        remaining -= numel
        before = bucket.reductions
        moments.append((bucket.hand_over(numel, remaining), before))
    before, kept = bucket.reductions, bucket.kept
    moments.append((Gradients(kept, bucket.empty()), before))

    def height(is_behind: bool) -> Gradients:
        found = [moment for moment, reductions in moments if (reductions > 0) == is_behind]
        return max(found, key=lambda moment: moment.total, default=Gradients(0, 0))

    return height(False), height(True)


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
    def __init__(self, size: int, num_ranks: int, zero_stage: int, share: int) -> None:
        self._size, self._num_ranks, self._stage, self._share = size, num_ranks, zero_stage, share
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
            return Gradients(whole, 0)
        is_full = self.contents.num_members > 0 and self.contents.filled + numel > self._size
        flattened = self.empty() if is_full else 0
        num_members, filled, padded, kept = self.contents
        padded += math.ceil(numel / self._num_ranks) * self._num_ranks
        kept += numel if numel > self._size else 0
        self.contents = _Contents(num_members + 1, filled + numel, padded, kept)
        return Gradients(whole, flattened)

    def empty(self) -> int:
        """Reduces what is in it; returns the elements of the flattened copy."""
        num_members, filled, padded, kept = self.contents
        # Stage 1 keeps every gradient until all are reduced: those in the bucket take nothing, one that is larger stays.
        self.contents = _Contents(kept=kept if self._stage == 1 else 0)
        self.reductions += 1
        if self._stage < 3:
            # A gradient that is alone is flattened too: its slices go to several ranks' partitions. Slices are taken together
            # until they are more than the bucket holds. Source: allreduce_and_scatter.
            together = (self._size // self._share + 1) * self._share
            return filled if filled <= self._size else min(filled, together)
        return 0 if num_members == 1 and padded == filled else padded


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
    return BlockGradients(reductions, waiting, at_matrix, max(moments, key=lambda moment: moment.total))


def _plain_block(parameters: RankParameters, bucket: _Bucket) -> BlockGradients:
    """Stages 1 and 2: each gradient goes to the bucket as soon as it is there."""
    reductions, waiting = bucket.reductions, bucket.kept
    at_matrix = tuple(bucket.hand_over(numel) for numel in parameters.block_matrices[::-1])
    for numel in parameters.block_vectors:
        bucket.hand_over(numel)
    return BlockGradients(reductions, waiting, at_matrix, Gradients(0, 0))
