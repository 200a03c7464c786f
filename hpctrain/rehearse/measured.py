"""What a real device took beside what the plan said: text, and the one number that corrects the plan. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.result import Measured, Phase, Rehearsal
from hpctrain.text_table import MISSING, aligned
from hpctrain.units import duration_in_words, gib

_OF_THE_MATMUL_RATE = ("matrix work", "attention")
"""Parts of the predicted step that scale with ``hardware.achievable_tflops``; attention but for what a row costs whatever its
length, a few thousandths of a step."""
_OF_ONE_RANK = (
    *_OF_THE_MATMUL_RATE,
    "element-wise work",
    "blocking launches",
    "host behind the GPU",
    "host link",
    "optimizer",
    "optimizer on the CPU",
)
BETWEEN_RANKS = (
    "tensor-parallel all-reduce",
    "sequence-parallel exchange",
    "pipeline bubble",
    "pipeline sends",
    "gradient reduction",
    "parameter gathers",
    "gradient reduce-scatter",
)
"""Parts that one device alone does not see."""


def compute_parts(parts_s: Mapping[str, float]) -> dict[str, float]:
    """Predicted seconds of a step by part, without what passes between ranks.

    >>> compute_parts({"matrix work": 2.0, "pipeline bubble": 1.0})
    {'matrix work': 2.0}
    """
    strangers = parts_s.keys() - {*_OF_ONE_RANK, *BETWEEN_RANKS}
    assert not strangers, f"a part of the step that this table does not know: {strangers}"
    return {name: parts_s[name] for name in _OF_ONE_RANK if name in parts_s}


def correction(plan: RunPlan, predicted_s: Mapping[str, float], measured_s: float) -> str:
    """The override under which the plan's own work of a rank lasts as long as it was measured, to 0.5 %.

    All of the difference is given to the matmul rate: the two may differ in other parts too, which one number cannot tell. Empty:
    nothing was predicted, the parts that do not depend on the rate alone take longer than what was measured, or the rate would be
    above the GPU's peak.

    Args:
        plan: whose prediction it is.
        predicted_s: of ``compute_parts``.
        measured_s: of the same work.
    """
    by_rate = sum(predicted_s.get(name, 0.0) for name in _OF_THE_MATMUL_RATE)
    left_s = measured_s - (sum(predicted_s.values()) - by_rate)
    if not by_rate or left_s <= 0 or plan.achievable_tflops_per_gpu is None:
        return ""
    rate = plan.achievable_tflops_per_gpu * by_rate / left_s
    if rate > (plan.peak_tflops_per_gpu or rate):
        return ""
    return f"hardware.achievable_tflops={{{plan.precision}:{rate:.1f}}}"


def render_measured(found: Rehearsal) -> str:
    """Memory by phase and time of a step, each beside the plan; empty: no real device was there."""
    measured = found.measured
    if measured is None:
        return ""
    parts = [_device(measured), _memory(found, measured), _time(found, measured)]
    return "\n\n".join(part for part in parts if part)


def _device(measured: Measured) -> str:
    return (
        f"measured    on {measured.device_name}, {gib(measured.device_bytes)}; median of {measured.num_steps} further steps, in"
        " which nothing is counted"
    )


def _memory(found: Rehearsal, measured: Measured) -> str:
    """The plan against what the allocator held at most; on the CPU, which has none, against what was counted."""
    tier = found.main_tier
    planned = {phase: (gpu if tier == "gpu" else host) for phase, gpu, host in measured.planned_phases}
    counted = {row.phase: row.peak_bytes for row in found.rows(tier)}
    notes = "COUNTED: storages, as a simulated rehearsal counts them; the plan's figures are without CUDA's context and NCCL"
    if not measured.phases:
        rows = [["MEMORY AT THE PEAK OF", "PLANNED", "COUNTED", "PLAN OFF BY"]]
        for phase, num_bytes in counted.items():
            rows.append([phase, _gib(planned.get(phase, 0)), gib(num_bytes), _off(planned.get(phase, 0), num_bytes)])
        return f"{aligned(rows)}\n{notes}; a CPU's memory has no allocator that could be asked"
    rows = [["MEMORY AT THE PEAK OF", "PLANNED", "COUNTED", "ALLOCATED", "RESERVED", "PLAN OFF BY", "COUNT OFF BY"]]
    for row in measured.phases:
        plan_bytes, count_bytes = planned.get(row.phase, 0), counted.get(row.phase, 0)
        truth = row.allocated_peak_bytes
        sizes = (_gib(plan_bytes), _gib(count_bytes), gib(truth), gib(row.reserved_peak_bytes))
        rows.append([row.phase, *sizes, _off(plan_bytes, truth), _off(count_bytes, truth)])
    return f"{aligned(rows)}\n{notes}; OFF BY: against ALLOCATED"


def _gib(num_bytes: int) -> str:
    return gib(num_bytes) if num_bytes else MISSING


def _off(said: int, truth: int) -> str:
    return f"{said / truth - 1:+.1%}" if said and truth else MISSING


def _time(found: Rehearsal, measured: Measured) -> str:
    seconds = dict(_times(found))
    rows = [["TIME OF A STEP, WITHOUT COMMUNICATION", "MEASURED", "PREDICTED"]]
    rows += [[phase, duration_in_words(time_s), MISSING] for phase, time_s in seconds.items()]
    rows += [[name, MISSING, duration_in_words(time_s)] for name, time_s in measured.predicted_s.items()]
    predicted_s = sum(measured.predicted_s.values())
    all_predicted = duration_in_words(predicted_s) if predicted_s else MISSING
    rows.append(["in all", duration_in_words(sum(seconds.values())), all_predicted])
    lines = [aligned(rows)]
    if measured.micro_batches < measured.planned_micro_batches:
        lines.append(
            f"forward and backward: {measured.micro_batches} micro batches were run, their time is told for all"
            f" {measured.planned_micro_batches}"
        )
    if measured.prediction_gap:
        lines.append(f"no prediction: {measured.prediction_gap}")
    if measured.time_ratio is not None:
        lines.append(f"measured {measured.time_ratio:.3f} of the predicted time of a rank's own work")
        if measured.correction:
            lines.append(f"to plan with what was measured here: {measured.correction}")
    return "\n".join(lines)


def _times(found: Rehearsal) -> Iterator[tuple[Phase, float]]:
    phases: tuple[Phase, ...] = ("forward", "backward", "optimizer")
    return ((phase, found.phase_times_s[phase]) for phase in phases if phase in found.phase_times_s)
