"""Process groups of the ranks that split a model or a sequence between them, made from the layout."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass

import torch.distributed as dist

from hpctrain.plan.layout import Layout


@dataclass(frozen=True)
class RankGroup:
    """Ranks that share one thing, and this rank's place among them."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """None where this rank is alone: then there is nothing to send."""


ALONE = RankGroup()
"""No other rank shares it."""


@dataclass(frozen=True)
class ParallelGroups:
    """The groups of this rank, one a kind of parallelism."""

    tensor: RankGroup = ALONE
    """Ranks that hold parts of the same matrices."""
    sequence: RankGroup = ALONE
    """Ranks that hold parts of the same sequences, in their order."""
    zero: RankGroup | None = None
    """Ranks that hold the same parameters, over which ZeRO averages gradients and spreads its states: data- and sequence-parallel
    ones. Made beside tensor parallelism only: without it these are all ranks, and a pipeline has DeepSpeed's own group."""


NO_GROUPS = ParallelGroups()
"""Of one process alone."""


def build_parallel_groups(layout: Layout, rank: int) -> ParallelGroups:
    """The groups of ``rank``; a collective of all ranks, which make all groups in the same order."""
    needs_zero = layout.tensor_parallel_size > 1 and layout.pipeline_parallel_size == 1
    return ParallelGroups(
        tensor=_build_group(layout, rank, ("tensor",)),
        sequence=_build_group(layout, rank, ("sequence",)),
        # Of one rank, too: DeepSpeed reads None as the group of all ranks.
        zero=_build_group(layout, rank, ("data", "sequence"), even_of_one=True) if needs_zero else None,
    )


def _build_group(layout: Layout, rank: int, shared: tuple[str, ...], even_of_one: bool = False) -> RankGroup:
    """The group of ranks whose places differ along ``shared`` only."""
    ranks_by_place = defaultdict(list)
    for other in range(layout.world_size):
        ranks_by_place[dataclasses.replace(layout.place(other), **dict.fromkeys(shared, 0))].append(other)
    own = next(ranks for ranks in ranks_by_place.values() if rank in ranks)
    if len(own) == 1 and not even_of_one:
        return ALONE
    if len(own) == layout.world_size:
        return RankGroup(rank, layout.world_size, dist.group.WORLD)
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in ranks_by_place.values()}
    return RankGroup(own.index(rank), len(own), groups[tuple(own)])


class TensorParallelUnit:
    """What DeepSpeed asks its ``mpu`` for, so that ZeRO's states and averages stay among ranks that hold the same parts.

    Its «model parallel» is our tensor group. Its «data parallel» is our ZeRO group: to DeepSpeed a sequence-parallel rank is one
    more data-parallel rank with a batch of its own.
    """

    def __init__(self, tensor: RankGroup, zero: RankGroup) -> None:
        self._tensor, self._zero = tensor, zero

    def get_model_parallel_rank(self) -> int:
        return self._tensor.rank

    def get_model_parallel_world_size(self) -> int:
        return self._tensor.size

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self._tensor.group

    def get_data_parallel_rank(self) -> int:
        return self._zero.rank

    def get_data_parallel_world_size(self) -> int:
        return self._zero.size

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self._zero.group
