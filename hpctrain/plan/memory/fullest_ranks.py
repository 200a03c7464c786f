"""Which ranks an estimate of memory looks at: the one whose GPU needs most is among few, and those of the fullest node.

In stages 0 and 3 the ranks of a pipeline stage are alike. In stages 1 and 2 they differ by the parameters that their part of the
states touches, see ``stage12_shares``.
"""

from __future__ import annotations

import functools
from collections import Counter

from hpctrain.plan.layout import Layout, RankPlace
from hpctrain.plan.memory.stage12_shares import fullest_data_ranks, rank_share
from hpctrain.plan.memory.terms import in_pieces
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.rank_work import RankWork


def gpu_candidates(work: RankWork) -> tuple[int, ...]:
    """Ranks of which one needs most of its GPU: of the first pipeline stage, which holds most micro batches, and of the last,
    which holds the loss."""
    if work.parallelism.zero_stage not in (1, 2):
        return (0,)
    ends = sorted({0, work.layout.pipeline_parallel_size - 1})
    zero_stage, is_offloaded = work.parallelism.zero_stage, work.parallelism.offload_optimizer != "none"
    return tuple(
        rank for stage in ends for rank in candidates_of_stage(work.shape, work.layout, zero_stage, stage, is_offloaded)
    )


def candidates_of_stage(
    shape: ModelShape, layout: Layout, zero_stage: int, stage: int, is_offloaded: bool = False
) -> tuple[int, ...]:
    """The same of one pipeline stage, from 0."""
    data_ranks: tuple[int, ...] = (0,)
    if zero_stage in (1, 2):
        data_ranks = fullest_data_ranks(rank_parameters(shape, layout, stage), layout.zero_degree, is_offloaded)
    return tuple(_rank(layout, stage, data_rank) for data_rank in data_ranks)


def node_ranks(work: RankWork) -> dict[int, int]:
    """The fullest node: of ranks that hold the same in host memory one, and how many there are."""
    shape, layout = work.shape, work.layout
    if work.parallelism.zero_stage in (1, 2) and _keeps_gradients_on_host(work):
        is_pinned = work.parallelism.pin_memory and work.hardware.device == "cuda"
        return _fullest_of_all(shape, layout, work.bytes_per_element, is_pinned)
    if layout.pipeline_parallel_size == 1:
        return {0: layout.gpus_per_node}
    # Tables lie on the first and on the last stage.
    nodes = (Counter(_stage(layout, rank) for rank in _ranks(layout, node)) for node in {0, layout.num_nodes - 1})
    fullest = max(
        nodes, key=lambda stages: sum(rank_parameters(shape, layout, each).total * stages[each] for each in stages)
    )
    return {_rank(layout, stage, 0): count for stage, count in fullest.items()}


def _keeps_gradients_on_host(work: RankWork) -> bool:
    """Where they wait whole: of the accumulation with an offloaded optimizer in stage 2, and on CPU ranks always."""
    is_accumulated = work.parallelism.zero_stage == 2 and work.batch.gradient_accumulation_steps > 1
    return work.hardware.device == "cpu" or (work.parallelism.offload_optimizer != "none" and is_accumulated)


@functools.lru_cache(maxsize=256)
def _fullest_of_all(shape: ModelShape, layout: Layout, width: int, is_pinned: bool) -> dict[int, int]:
    """Of all nodes that one whose ranks keep most whole gradients; pinned ones are rounded up."""
    groups = (Counter(_data_group(layout, rank) for rank in _ranks(layout, node)) for node in range(layout.num_nodes))
    parameters = [rank_parameters(shape, layout, stage) for stage in range(layout.pipeline_parallel_size)]

    def num_bytes(stage: int, data_rank: int) -> int:
        kept = in_pieces([rank_share(parameters[stage], data_rank, layout.zero_degree).whole], width)
        return kept.rounded_bytes if is_pinned else kept.num_bytes

    def of_node(groups: Counter[tuple[int, int]]) -> int:
        return sum(count * num_bytes(*group) for group, count in groups.items())

    return {_rank(layout, *group): count for group, count in max(groups, key=of_node).items()}


def _ranks(layout: Layout, node: int) -> range:
    return range(node * layout.gpus_per_node, (node + 1) * layout.gpus_per_node)


def _stage(layout: Layout, rank: int) -> int:
    return layout.place(rank).pipeline


def _data_group(layout: Layout, rank: int) -> tuple[int, int]:
    """The pipeline stage, and the place among the ranks that share its states; tensor-parallel ranks hold as much."""
    place = layout.place(rank)
    return place.pipeline, place.data * layout.sequence_parallel_size + place.sequence


def _rank(layout: Layout, stage: int, data_rank: int) -> int:
    data, sequence = divmod(data_rank, layout.sequence_parallel_size)
    return layout.rank_at(RankPlace(stage, data, sequence, 0))
