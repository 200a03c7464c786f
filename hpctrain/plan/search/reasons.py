"""Why a configuration has its place in a ranking, in a phrase."""

from __future__ import annotations

from hpctrain.plan.search.verdict import Verdict
from hpctrain.plan.speed.step_time import StepPrediction
from hpctrain.units import gib

_SHOWN = 0.0005
"""Differences below it are not told."""


def place_reason(best: StepPrediction | None, other: StepPrediction | None) -> str:
    """Of a runner-up that fits."""
    if best is None:
        return "fits too, less plain"
    if other is None:
        return "step time not predicted: the hardware states too little for it"
    slower = other.step_time_s / best.step_time_s - 1
    if abs(slower) < _SHOWN:
        return "as fast, with more mechanisms"
    if slower < 0:
        return f"{-slower:.1%} faster, no more than the prediction errs, with more mechanisms"
    grown = {name: seconds - best.parts_s.get(name, 0.0) for name, seconds in other.parts_s.items()}
    return f"{slower:.1%} slower: {max(grown, key=lambda name: grown[name])}"


def best_reason(
    best: StepPrediction | None, fastest: StepPrediction | None, has_headroom: bool, knows_memory: bool
) -> str:
    """Of the choice itself.

    Args:
        best: predicted for it; None: nothing is.
        fastest: predicted for the fastest runner-up; None: there is none.
        has_headroom: a tenth of each tier stays free.
        knows_memory: the hardware states what a tier holds.
    """
    among = "that fits" if knows_memory else "(memory not stated by the hardware)"
    reason = f"the plainest {among}" if best is None else f"the fastest {among}"
    if best is not None and fastest is not None and fastest.step_time_s < best.step_time_s:
        reason = f"within {1 - fastest.step_time_s / best.step_time_s:.1%} of the fastest, with fewer mechanisms"
    return reason if has_headroom else f"{reason}, with less than a tenth of the memory free"


def shortage_reason(verdict: Verdict) -> str:
    """Of what does not fit, or fits without headroom."""
    rules = [problem for problem in verdict.problems if problem.kind != "memory"]
    if rules:
        return f"not allowed: {rules[0].key}={rules[0].value}"
    tiers = (
        (verdict.gpu_free_bytes, "on a GPU"),
        (verdict.host_free_bytes, "in a node's memory"),
        (verdict.nvme_free_bytes, "on a node's NVMe"),
    )
    short = [f"{gib(-free)} short {place}" for free, place in tiers if free is not None and free < 0]
    if short:
        return f"does not fit: {', '.join(short)}"
    return "fits with less than a tenth of the memory free"
