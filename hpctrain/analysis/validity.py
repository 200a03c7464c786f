"""Whether the speeds of a run may be compared with those of others, and if not, why.

A run of our own must have ended as ``completed``. A log of another system is judged by ``log_runs``, for which the end is
no reason: its speeds stay valid where it ended out of memory, crashed or with its node, and ``state`` and ``end_reason`` of
its row tell how it ended. ``RunSummary.state`` is then ``unknown`` where the log does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from hpctrain.analysis.run_row import RunData, RunSummary
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.lines import number_problem
from hpctrain.record.schema import AttemptRecord
from hpctrain.units import TERA

MAX_DEAD_SHARE = 0.05
"""Above this share of dead or rejected steps, of damaged lines or of steps without a line, a speed says nothing about training.
A choice; healthy bf16 runs have none."""


_PREDICTED = ("step_time_s", "low_s", "high_s")


def plan_problem(plan: RunPlan) -> str:
    """Text if a number of the plan cannot be reckoned with; else empty."""
    layout, batch, memory, flops = plan.layout, plan.batch, plan.memory, plan.flops_per_step
    speed = plan.prediction
    prediction = {} if speed is None else {f"prediction.{name}": getattr(speed, name) for name in _PREDICTED}
    positive = {
        "num_parameters": plan.num_parameters,
        "layout.num_nodes": layout.num_nodes,
        "layout.gpus_per_node": layout.gpus_per_node,
        "layout.world_size": layout.world_size,
        **{f"batch.{name}": value for name, value in vars(batch).items() if name != "ramp"},
        **{f"batch.ramp.{stage.first_step}": stage.global_batch_size for stage in batch.ramp},
        "batch.tokens_per_step": batch.tokens_per_step,
        "num_steps": plan.num_steps,
        "memory.ranks_per_node": memory.ranks_per_node,
        **{f"flops_per_step.{name}": value for name, value in vars(flops).items()},
        **prediction,
        **{
            name: getattr(plan, name)
            for name in ("peak_tflops_per_gpu", "achievable_tflops_per_gpu")
            if getattr(plan, name) is not None
        },
    }
    bytes_planned = {
        "memory.gpu_bytes": memory.gpu_bytes,
        "memory.host_bytes_per_node": memory.host_bytes_per_node,
        "memory.gpu_capacity_bytes": memory.gpu_capacity_bytes,
    }
    problem = number_problem({"zero_stage": plan.zero_stage, **positive, **bytes_planned})
    below = next((f"{name}={value} must be above 0" for name, value in positive.items() if value <= 0), "")
    return problem or below


def world_sizes(attempts: Iterable[AttemptRecord], on_curve: set[int]) -> set[int | None]:
    """What the attempts that made the curve measured; all attempts, if there is no step yet."""
    return {attempt.world_size for attempt in attempts if not on_curve or attempt.attempt in on_curve}


def full_batch_step(plan: RunPlan) -> int:
    """The first step with the full batch; those before it are of a ramp."""
    return plan.batch.ramp[-1].first_step if plan.batch.ramp else 1


def fastest_step_s(plan: RunPlan, attempts: Iterable[AttemptRecord]) -> float:
    """Time below which a step would exceed the peak of all GPUs together; 0: no peak is stated.

    Counted on hardware FLOPs; Megatron's count is a label and may be above the peak.
    """
    if plan.peak_tflops_per_gpu is None:
        return 0.0
    return plan.flops_per_step.hardware_flops / (plan.peak_tflops_per_gpu * TERA * _num_gpus(plan, attempts))


def _num_gpus(plan: RunPlan, attempts: Iterable[AttemptRecord]) -> int:
    """The largest measured world size, so that no step is rejected that may be right; the planned one if none was measured."""
    measured = [attempt.world_size for attempt in attempts if attempt.world_size is not None and attempt.world_size > 0]
    return max(measured, default=plan.layout.world_size)


def invalid_reasons(summary: RunSummary, data: RunData, contradiction: str) -> list[str]:
    """Why the speeds may not be compared, one text a reason; empty if they may."""
    reasons = [data.problem] if data.problem else []
    if summary.state != "completed":
        reasons.append(_state_reason(summary, data.attempts))
    if data.attempts and summary.num_recorded_steps and summary.world_size != summary.gpus:
        measured = sorted(
            "none" if size is None else str(size) for size in world_sizes(data.attempts, data.attempts_on_curve)
        )
        reasons.append(f"world size {summary.gpus} planned, {' and '.join(measured) or 'none'} measured")
    forms = {attempt.form for attempt in data.attempts if attempt.attempt in data.attempts_on_curve and attempt.form}
    if len(forms) > 1:
        reasons.append(f"its attempts took steps in {len(forms)} forms: {' and '.join(sorted(forms))}")
    tokens = data.columns["tokens"][data.columns["steady"]]
    other = tokens[tokens != summary.tokens_per_step]
    if len(other):
        reasons.append(f"{summary.tokens_per_step:,} tokens a step planned, {other.min():,} recorded")
    reasons += _share_reasons(summary, data)
    if contradiction:
        reasons.append(contradiction)
    if summary.state == "completed" and summary.step_time_s is None:
        is_check = data.plan is not None and data.plan.payload == "launch_check"
        recorded = f"no steady step among {summary.num_recorded_steps} recorded"
        if data.plan is not None and (full := full_batch_step(data.plan)) > 1:
            recorded += f", and the batch is the full one from step {full} on"
        reasons.append("a launch check, which trains nothing" if is_check else recorded)
    return reasons


def num_missing_steps(summary: RunSummary, columns: Mapping[str, NDArray[Any]]) -> int:
    """Steps that were taken and have no line: below the last one on the curve, of a completed run up to the planned one."""
    steps = columns["step"][~columns["superseded"]]
    last = int(steps.max()) if len(steps) else 0
    if summary.state == "completed":
        last = max(last, summary.num_steps or 0)
    return max(0, last - summary.num_recorded_steps)


def _share_reasons(summary: RunSummary, data: RunData) -> list[str]:
    """Dead steps, steps above the peak, damaged lines and missing ones, each if there are too many."""
    reasons = []
    num_steps = max(1, summary.num_recorded_steps)
    if summary.num_dead_steps > MAX_DEAD_SHARE * num_steps:
        reasons.append(
            f"{summary.num_dead_steps} of {summary.num_recorded_steps} steps without an update, a finite loss or a time"
            f" ({summary.num_dead_steps / num_steps:.0%}, at most {MAX_DEAD_SHARE:.0%})"
        )
    if summary.num_rejected_steps > MAX_DEAD_SHARE * num_steps and data.plan is not None:
        rejected = data.columns["step_time_s"][data.columns["rejected"]]
        num_gpus = _num_gpus(data.plan, data.attempts)
        fastest = data.plan.flops_per_step.per_gpu_tflops(float(rejected.min()), num_gpus)["hardware"]
        reasons.append(
            f"{summary.num_rejected_steps} of {summary.num_recorded_steps} steps above the peak of"
            f" {summary.peak_tflops_per_gpu:,.4g} TFLOP/s a GPU, up to {fastest:,.4g} hardware TFLOP/s: step times,"
            " hardware.peak_tflops or the dense attention count is wrong for this run"
        )
    if summary.damaged_lines > MAX_DEAD_SHARE * data.num_lines:
        reasons.append(
            f"{summary.damaged_lines} of {data.num_lines} lines of steps.jsonl are damaged, at most"
            f" {MAX_DEAD_SHARE:.0%}; the first: {data.first_damage}"
        )
    missing = num_missing_steps(summary, data.columns) - summary.damaged_lines
    if summary.state == "completed" and summary.num_recorded_steps and missing > MAX_DEAD_SHARE * num_steps:
        reasons.append(
            f"steps missing: {summary.num_recorded_steps} of {summary.num_steps} recorded in steps.jsonl by a completed run"
        )
    return reasons


def _state_reason(summary: RunSummary, attempts: tuple[AttemptRecord, ...]) -> str:
    progress = f"{summary.num_recorded_steps} of {summary.num_steps} steps recorded"
    if summary.state != "failed":
        return f"{summary.state}, {progress}"
    last = attempts[-1]
    place = "" if last.failed_rank is None else f" at rank {last.failed_rank}"
    place += f" on {last.failed_node}" if last.failed_node else ""
    message = f": {last.message.splitlines()[0]}" if last.message.strip() else ""
    return f"failed ({summary.end_reason}){place}, {progress}{message}"
