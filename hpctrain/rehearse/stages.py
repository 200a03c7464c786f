"""Which ranks show all that there is to see of a plan: one of each kind of pipeline stage. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpctrain.plan.layout import Layout
from hpctrain.plan.memory.estimate import MemoryEstimate
from hpctrain.plan.memory.fullest_ranks import candidates_of_stage
from hpctrain.plan.run_plan import RunPlan


def stages_of_each_kind(layout: Layout) -> tuple[int, ...]:
    """The first stage, the second, which of the middle ones holds the most micro batches at a time, and the last.

    >>> [stages_of_each_kind(Layout(2, 4, pipeline_parallel_size=size)) for size in (1, 2, 4)]
    [(0,), (0, 1), (0, 1, 3)]
    """
    last = layout.pipeline_parallel_size - 1
    return tuple(dict.fromkeys((0, min(1, last), last)))


def ranks_to_rehearse(plan: RunPlan, memory_of: Callable[[int], MemoryEstimate]) -> tuple[int, ...]:
    """One rank of each kind of stage.

    In stages 0 and 3 of ZeRO all ranks of a stage of the pipeline hold as much. In 1 and 2 each one's share belongs to other
    parameters: the one is taken for which the planner expects most.

    Args:
        plan: of the run.
        memory_of: the planner's estimate of one rank.
    """
    found = []
    is_offloaded = "offload_optimizer" in plan.ds_config["zero_optimization"]
    for stage in stages_of_each_kind(plan.layout):
        candidates = sorted(candidates_of_stage(plan.model, plan.layout, plan.zero_stage, stage, is_offloaded))
        found.append(max(candidates, key=lambda rank: _weight(memory_of(rank))))
    return tuple(found)


def _weight(memory: MemoryEstimate) -> tuple[int, int]:
    return memory.gpu_bytes, memory.host_bytes_per_node


def why_these(plan: RunPlan, ranks: Sequence[int]) -> str:
    """A sentence for people; empty: all ranks of the plan are alike."""
    told = ", ".join(f"{rank:,}" for rank in ranks)
    if len(ranks) > 1:
        return f"one rank of each kind of pipeline stage is rehearsed: {told}; --rank N takes another"
    if plan.zero_stage in (1, 2) and plan.layout.world_size > 1:
        return f"rank {told} is rehearsed: the planner expects most of its memory on it; --rank N takes another"
    return ""
