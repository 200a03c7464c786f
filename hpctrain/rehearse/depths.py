"""How deep a quick rehearsal must be, so that one more layer changes every number by the same amount. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.plan.run_plan import RunPlan

_STEP = 2


@dataclass(frozen=True)
class Depths:
    """The answer is on the line through the two deeper ones; with the shallow one they say whether it is a line."""

    shallow: int
    deep: int
    check: int

    @property
    def all(self) -> tuple[int, int, int]:
        return (self.shallow, self.deep, self.check)


def quick_depths(plan: RunPlan) -> Depths | None:
    """The depths of a quick rehearsal; None: the plan is hardly deeper, so that it is rehearsed whole.

    Two and four layers will do if a layer is larger than the engine's windows. Where the engine looks over several layers (it
    keeps and prefetches parameters up to a number of elements, and steps the optimizer by sub-groups) the depths lie beyond.
    A pipeline's depths are multiples of its stages.
    """
    layer = max(1, plan.model.block_parameters)
    zero = plan.ds_config["zero_optimization"]
    ranks = plan.layout.zero_degree
    windows = [
        zero.get("stage3_max_live_parameters", 0),
        zero.get("stage3_max_reuse_distance", 0),
        zero.get("stage3_prefetch_bucket_size", 0),
        zero.get("sub_group_size", 0) * ranks if plan.num_parameters > zero.get("sub_group_size", 0) * ranks else 0,
    ]
    least = max(-(-window // layer) for window in windows) if any(windows) else 1
    stages = plan.layout.pipeline_parallel_size
    step = _STEP * stages
    shallow = -(-max(least, 2) // step) * step
    depths = Depths(shallow, shallow + step, shallow + 2 * step)
    return depths if depths.check < plan.model.num_layers else None
