"""From what a run folder holds to its row: what was planned, what was measured, and whether it may be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpctrain.analysis.intervals import dependent_median_interval
from hpctrain.analysis.run_row import RunData, RunSummary
from hpctrain.analysis.steady import seeks_loss_scale
from hpctrain.analysis.validation_files import last_validation_loss
from hpctrain.analysis.validity import invalid_reasons, num_missing_steps, world_sizes
from hpctrain.analysis.wall_clock import wall_clock
from hpctrain.errors import FORCED_KINDS
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.lines import number_problem
from hpctrain.record.schema import AttemptRecord

Columns = Mapping[str, NDArray[Any]]


def summarise(data: RunData) -> RunSummary:
    """The row of one run; a run that may not be compared keeps its row, with the reasons."""
    row = RunSummary(folder=data.folder, run=Path(data.folder).name, damaged_lines=data.damaged_lines)
    if data.plan is None:
        return replace(row, state="unreadable", reason=data.problem)
    steps = data.columns
    planned = _with_planned(row, data.plan)
    # Damaged numbers may be as large as a double; what then becomes infinite is told below.
    with np.errstate(over="ignore", invalid="ignore"):
        wall = wall_clock(data.attempts, steps, data.plan.layout.world_size)
        row = _with_speeds(_with_recorded(planned, data, steps), data.plan, steps)
        if wall.rank_s is not None and data.all_attempts_are_known:
            row = replace(row, gpu_hours=wall.rank_s / 3600)
            if not num_missing_steps(row, steps):  # what lines are missing would count as lost time
                row = replace(row, wall_tokens_per_s=wall.tokens_per_s, lost_time_share=wall.lost_time_share)
    beyond = number_problem(vars(row))
    if beyond:
        return replace(planned, state=row.state, reason="; ".join(filter(None, (data.problem, f"measured {beyond}"))))
    reason = "; ".join(invalid_reasons(row, data, wall.contradiction))
    return replace(row, valid=not reason, reason=reason)


def _with_planned(summary: RunSummary, plan: RunPlan) -> RunSummary:
    on_gpu = plan.device == "cuda"
    memory, speed = plan.memory, plan.prediction
    return replace(
        summary,
        name=plan.name,
        model=plan.model.name,
        num_parameters=plan.num_parameters,
        parallelism=plan.parallelism_name,
        zero_stage=plan.zero_stage,
        zero_settings=json.dumps(plan.ds_config.get("zero_optimization", {}), sort_keys=True),
        hardware=plan.hardware_name,
        cluster=plan.cluster_name,
        data=plan.data_name,
        device=plan.device,
        precision=plan.precision,
        activation_checkpointing=plan.activation_checkpointing,
        nodes=plan.layout.num_nodes,
        gpus=plan.layout.world_size,
        micro_batch_size=plan.batch.micro_batch_size,
        gradient_accumulation_steps=plan.batch.gradient_accumulation_steps,
        global_batch_size=plan.batch.global_batch_size,
        seq_len=plan.batch.seq_len,
        tokens_per_step=plan.batch.tokens_per_step,
        num_steps=plan.num_steps,
        peak_tflops_per_gpu=plan.peak_tflops_per_gpu,
        achievable_tflops_per_gpu=plan.achievable_tflops_per_gpu,
        predicted_step_time_s=speed.step_time_s if speed else None,
        predicted_step_time_low_s=speed.low_s if speed else None,
        predicted_step_time_high_s=speed.high_s if speed else None,
        prediction_gap=plan.prediction_gap or None,
        calibration=speed.calibration.text if speed and speed.calibration else None,
        predicted_memory_bytes=(
            memory.allocator_bytes if on_gpu else memory.host_bytes_per_node // memory.ranks_per_node
        ),
        predicted_host_bytes=memory.host_bytes_per_node,
        forced="; ".join(str(replace(each, fix="")) for each in plan.problems if each.kind in FORCED_KINDS) or None,
        memory_capacity_bytes=memory.gpu_capacity_bytes if on_gpu else None,
    )


def _with_recorded(row: RunSummary, data: RunData, steps: Columns) -> RunSummary:
    """State, counts, loss and memory, from the attempts and the curve."""
    curve = ~steps["superseded"]
    num_steps, num_dead = int(curve.sum()), int((steps["dead"] & curve & ~seeks_loss_scale(steps)).sum())
    last = data.attempts[-1] if data.attempts and data.last_attempt_is_known else None
    sizes = world_sizes(data.attempts, data.attempts_on_curve)
    final_loss = float(steps["loss"][curve][-1]) if num_steps else math.nan
    peak_memory = int(steps["peak_memory_bytes"].max()) if len(curve) else None
    return replace(
        row,
        state=_state(data, last),
        end_reason="cancelled" if data.was_cancelled else last.end_reason if last else None,
        num_attempts=len(data.attempts),
        world_size=sizes.pop() if len(sizes) == 1 else None,
        num_recorded_steps=num_steps,
        num_dead_steps=num_dead,
        dead_share=num_dead / num_steps if num_steps else None,
        num_outlier_steps=int(steps["outlier"].sum()),
        num_rejected_steps=int((steps["rejected"] & curve).sum()),
        final_loss=final_loss if math.isfinite(final_loss) else None,
        validation_loss=last_validation_loss(data.validations),
        peak_memory_bytes=peak_memory,
        memory_error=_error(row.predicted_memory_bytes, peak_memory),
    )


def _state(data: RunData, last: AttemptRecord | None) -> str:
    if last is None:
        return "unreadable" if data.problem else "not started"
    return "failed" if data.was_cancelled else last.state


def _error(predicted: float | None, measured: float | None) -> float | None:
    """Predicted over measured, less 1; None where one of them is not known, or nothing was measured."""
    return predicted / measured - 1 if predicted is not None and measured else None


def _is_between(value: float, low: float | None, high: float | None) -> bool | None:
    return None if low is None or high is None else low <= value <= high


def _median_part(steps: Columns, name: str) -> float | None:
    """Of a part of the steady steps; None where one of them does not tell it."""
    times_s = steps[name][steps["steady"]]
    return float(np.median(times_s)) if np.isfinite(times_s).all() else None


def _with_speeds(row: RunSummary, plan: RunPlan, steps: Columns) -> RunSummary:
    """The median step time and what follows from it; as it was, if there is no steady step or no world size."""
    times_s = steps["step_time_s"][steps["steady"]]
    if len(times_s) == 0:
        return row
    tokens = plan.batch.tokens_per_step
    step_time = dependent_median_interval(times_s)
    row = replace(
        row,
        num_steady_steps=len(times_s),
        step_time_s=step_time.median,
        step_time_low_s=step_time.low,
        step_time_high_s=step_time.high,
        tokens_per_s=tokens / step_time.median,
        prediction_error=_error(row.predicted_step_time_s, step_time.median),
        in_predicted_range=_is_between(step_time.median, row.predicted_step_time_low_s, row.predicted_step_time_high_s),
        data_time_s=_median_part(steps, "data_time_s"),
        forward_time_s=_median_part(steps, "forward_time_s"),
        backward_time_s=_median_part(steps, "backward_time_s"),
        optimizer_time_s=_median_part(steps, "optimizer_time_s"),
    )
    if not row.world_size:
        return row
    tflops = plan.flops_per_step.per_gpu_tflops(step_time.median, row.world_size)
    peak = plan.peak_tflops_per_gpu
    return replace(
        row,
        tokens_per_s_per_gpu=tokens / step_time.median / row.world_size,
        model_tflops_per_gpu=tflops["model"],
        hardware_tflops_per_gpu=tflops["hardware"],
        megatron_tflops_per_gpu=tflops["megatron"],
        mfu=tflops["model"] / peak if peak else None,
        hfu=tflops["hardware"] / peak if peak else None,
    )
