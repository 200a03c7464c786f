"""How much of the optimizer's state leaves the GPU where that is not stated: as little as fits (ZeRO-Cache)."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable

from hpctrain.config.schema import ParallelismConfig

_STEPS = 20
"""Ratios are multiples of 5 %: whole sub-groups move, and a finer share would be missed."""
RATIOS = tuple(step / _STEPS for step in range(1, _STEPS + 1))


def is_fitted(parallelism: ParallelismConfig) -> bool:
    """Whether a ratio is left to be found."""
    is_moved = parallelism.offload_optimizer != "none" and parallelism.offload_ratio == 1
    return parallelism.fit_offload_ratio and parallelism.zero_stage == 3 and is_moved


def with_least_moved(parallelism: ParallelismConfig) -> ParallelismConfig:
    """The same with nothing moved where the ratio is left to be found; that is its fastest step, which need not fit."""
    return _with_all_on_gpu(parallelism) if is_fitted(parallelism) else parallelism


def _with_all_on_gpu(parallelism: ParallelismConfig) -> ParallelismConfig:
    return dataclasses.replace(parallelism, offload_optimizer="none", offload_ratio=1.0, nvme_ratio=1.0)


def with_fitted_ratio(
    parallelism: ParallelismConfig, gpu_memory_gib: float | None, fits: Callable[[ParallelismConfig], bool]
) -> tuple[ParallelismConfig, list[str]]:
    """The same with the smallest ratio that fits, and what was chosen in one sentence.

    Args:
        parallelism: with ``fit_offload_ratio``; without it nothing is chosen.
        gpu_memory_gib: of a GPU; None: not stated, or there is none.
        fits: whether a GPU keeps a tenth of its memory free with these settings. Where it does with some ratio, it does with
            every larger one.
    """
    key = "parallelism.fit_offload_ratio"
    if not parallelism.fit_offload_ratio or parallelism.zero_stage != 3:
        return parallelism, []
    if parallelism.offload_optimizer == "none":
        return parallelism, [f"{key}: nothing to choose, parallelism.offload_optimizer=none moves nothing"]
    if parallelism.offload_ratio < 1:
        return parallelism, [
            f"{key}: nothing to choose, parallelism.offload_ratio={parallelism.offload_ratio:g} is stated"
        ]

    def moving(step: int) -> ParallelismConfig:
        if step == 0:
            return _with_all_on_gpu(parallelism)
        return dataclasses.replace(parallelism, offload_ratio=step / _STEPS)

    if gpu_memory_gib is None:
        return moving(_STEPS), [f"{key}: 1, all of the optimizer's state is moved: the hardware states no GPU memory"]
    step = _fewest_steps(lambda number: fits(moving(number)))
    chosen = moving(step)
    if step == 0:
        return chosen, [f"{key}: all of the optimizer's state fits on the GPU with a tenth of it free; none is moved"]
    if step == _STEPS:
        return chosen, [f"{key}: 1, with less than all of the optimizer's state moved a GPU does not keep a tenth free"]
    return chosen, [f"{key}: {chosen.offload_ratio:g}, the smallest with which a GPU keeps a tenth of its memory free"]


def _fewest_steps(fits: Callable[[int], bool]) -> int:
    """Of a ratio that fits; where less than all is not enough, all."""
    if not fits(_STEPS - 1):
        return _STEPS
    if fits(0):
        return 0
    return bisect.bisect_left(range(_STEPS - 1), True, lo=1, key=fits)
