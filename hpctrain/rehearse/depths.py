"""How deep a quick rehearsal must be, so that one more layer changes every number by the same amount. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.plan.memory.stage0 import REDUCE_BUCKET
from hpctrain.plan.run_plan import RunPlan

_STEP = 2
_SHALLOWEST = 2
"""Layers of one stage."""


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
    keeps and prefetches parameters up to a number of elements, steps the optimizer by sub-groups, and below stage 3 reduces
    gradients by buckets) the depths lie beyond.
    In a pipeline they are depths of each stage, which is what a rank has: one layer apart, since few stages are deep.
    """
    stages, windows = plan.layout.pipeline_parallel_size, max(_window_layers(plan), _SHALLOWEST)
    if stages > 1:
        depths = Depths(*(stages * layers for layers in range(windows, windows + 3)))
        return depths if sum(depths.all) < plan.model.num_layers else None
    shallow = -(-windows // _STEP) * _STEP
    depths = Depths(shallow, shallow + _STEP, shallow + 2 * _STEP)
    return depths if depths.check < plan.model.num_layers else None


def why_whole(plan: RunPlan) -> str:
    """A sentence for a plan that has no ``quick_depths``."""
    stages, layers = plan.layout.pipeline_parallel_size, plan.model.num_layers
    windows = _window_layers(plan)
    reason = f", from {windows} on, since the engine looks over so many at a time" if windows > _SHALLOWEST else ""
    has = f"the model has {layers}" if stages == 1 else f"each of the {stages} stages has {layers // stages}"
    return f"--quick would take three depths{reason}, and {has} layers: all are rehearsed"


def _window_layers(plan: RunPlan) -> int:
    """Layers that the engine looks over at a time."""
    zero, layout = plan.ds_config["zero_optimization"], plan.layout
    layer = max(1, plan.model.block_parameters // layout.tensor_parallel_size)
    sub_group = zero.get("sub_group_size", 0) * layout.zero_degree
    windows: list[int] = [
        zero.get("stage3_max_live_parameters", 0),
        zero.get("stage3_max_reuse_distance", 0),
        zero.get("stage3_prefetch_bucket_size", 0),
        sub_group if plan.num_parameters // layout.tensor_parallel_size > sub_group else 0,
        zero.get("reduce_bucket_size", 0) if plan.zero_stage < 3 else 0,
        REDUCE_BUCKET if plan.zero_stage == 0 and plan.num_parameters > REDUCE_BUCKET else 0,
    ]
    return max(-(-window // layer) for window in windows)
