"""How deep a quick rehearsal must be, so that one more layer changes every number by the same amount. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

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
    keeps and prefetches parameters up to a number of elements, and steps the optimizer by sub-groups) the depths lie beyond.
    In a pipeline they are two, three and four layers of each stage, which is what a rank has; stage 1 of ZeRO has no such window.
    """
    stages = plan.layout.pipeline_parallel_size
    if stages > 1:
        per_stage = Depths(_SHALLOWEST, _SHALLOWEST + 1, _SHALLOWEST + 2)
        depths = Depths(*(stages * layers for layers in per_stage.all))
    else:
        shallow = -(-max(_window_layers(plan), _SHALLOWEST) // _STEP) * _STEP
        depths = Depths(shallow, shallow + _STEP, shallow + 2 * _STEP)
    return depths if depths.check < plan.model.num_layers else None


def why_whole(plan: RunPlan) -> str:
    """A sentence for a plan that has no ``quick_depths``."""
    stages, layers = plan.layout.pipeline_parallel_size, plan.model.num_layers
    if stages > 1:
        return (
            f"--quick takes two, three and four layers of a pipeline's stage, and each of the {stages} stages has"
            f" {layers // stages}: all layers are rehearsed"
        )
    windows = _window_layers(plan)
    reason = f", and the engine's windows are {windows} layers wide" if windows > _SHALLOWEST else ""
    return f"--quick takes three depths with one layer more at least, and the model has {layers}{reason}: all are rehearsed"


def _window_layers(plan: RunPlan) -> int:
    """Layers that the engine looks over at a time."""
    layer = max(1, plan.model.block_parameters)
    zero = plan.ds_config["zero_optimization"]
    ranks = plan.layout.zero_degree
    windows: list[int] = [
        zero.get("stage3_max_live_parameters", 0),
        zero.get("stage3_max_reuse_distance", 0),
        zero.get("stage3_prefetch_bucket_size", 0),
        zero.get("sub_group_size", 0) * ranks if plan.num_parameters > zero.get("sub_group_size", 0) * ranks else 0,
    ]
    return max(-(-window // layer) for window in windows)
