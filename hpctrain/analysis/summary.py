"""One run in one row: what was planned, what was measured, and whether the measurement may be compared."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from hpctrain.analysis.steady import median_interval
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.schema import AttemptRecord

FLOP_CONVENTIONS = {
    "model": "forward and backward once, dense attention",
    "hardware": "what is executed: the same, and recomputation",
    "megatron": "96·B·s·l·h²·(1 + s/6h + V/16lh): full recomputation always counted",
}
"""The three counts of ``StepFlops`` by the names that tables and figures use."""

MAX_DEAD_SHARE = 0.05
"""Above this share of dead steps a speed says nothing about training. A choice; healthy bf16 runs have none."""


@dataclass(frozen=True)
class RunData:
    """One run folder as read. What could not be read is None or empty, and ``problem`` says why."""

    folder: str
    plan: RunPlan | None
    attempts: tuple[AttemptRecord, ...]
    steps: pd.DataFrame
    """Marked, see ``steady.mark_steps``."""
    damaged_lines: int
    problem: str


@dataclass(frozen=True)
class RunSummary:
    """A row of the ``runs`` frame; None is «not known» or «not measured»."""

    folder: str
    run: str
    """The folder's own name."""
    name: str | None = None
    """As planned; several runs may share it."""
    model: str | None = None
    num_parameters: int | None = None
    parallelism: str | None = None
    zero_stage: int | None = None
    zero_settings: str | None = None
    """DeepSpeed's section ``zero_optimization`` as JSON with sorted keys."""
    hardware: str | None = None
    cluster: str | None = None
    data: str | None = None
    device: str | None = None
    precision: str | None = None
    activation_checkpointing: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    """Planned ranks; on ``device=cpu`` a rank stands for a GPU in every count."""
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    global_batch_size: int | None = None
    seq_len: int | None = None
    tokens_per_step: int | None = None
    num_steps: int | None = None
    """Planned."""
    peak_tflops_per_gpu: float | None = None
    predicted_memory_bytes: int | None = None
    """The plan's estimate for one rank: on its GPU, or on ``device=cpu`` in the host's memory."""
    memory_capacity_bytes: int | None = None
    """Of one GPU."""
    state: str = "not started"
    """Of the last attempt, or ``unreadable``."""
    end_reason: str | None = None
    num_attempts: int = 0
    world_size: int | None = None
    """Measured by a collective; None if the attempts that made the curve measured none, or not the same."""
    num_recorded_steps: int = 0
    """Different steps on the curve."""
    num_dead_steps: int = 0
    damaged_lines: int = 0
    num_steady_steps: int = 0
    step_time_s: float | None = None
    """Median over the steady steps, like every speed below."""
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    hardware_tflops_per_gpu: float | None = None
    megatron_tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    final_loss: float | None = None
    """Of the last step on the curve; None if it had none."""
    peak_memory_bytes: int | None = None
    """Rank 0."""
    gpu_hours: float | None = None
    """All attempts, undone steps included."""
    valid: bool = False
    """The speeds may be compared with other runs."""
    reason: str = ""
    """Why not."""

    @property
    def tflops_per_gpu(self) -> dict[str, float | None]:
        """TFLOP/s a GPU by FLOP convention."""
        rates = (self.model_tflops_per_gpu, self.hardware_tflops_per_gpu, self.megatron_tflops_per_gpu)
        return dict(zip(FLOP_CONVENTIONS, rates, strict=True))


def rank_word(device: str | None) -> str:
    """What «per GPU» is called on this device."""
    return "rank" if device == "cpu" else "GPU"


def summarise(data: RunData) -> RunSummary:
    """The row of one run; a run that may not be compared keeps its row, with the reasons."""
    folder = Path(data.folder)
    summary = RunSummary(folder=data.folder, run=folder.name, damaged_lines=data.damaged_lines)
    if data.plan is None:
        return replace(summary, state="unreadable", reason=data.problem)
    summary = _with_recorded(_with_planned(summary, data.plan), data)
    summary = _with_speeds(summary, data)
    above_peak = _above_peak(summary)
    if above_peak:
        summary = replace(
            summary,
            model_tflops_per_gpu=None,
            hardware_tflops_per_gpu=None,
            megatron_tflops_per_gpu=None,
            mfu=None,
            hfu=None,
        )
    reasons = [data.problem, *_reasons(summary, data), above_peak]
    reason = "; ".join(text for text in reasons if text)
    return replace(summary, valid=not reason, reason=reason)


def _with_planned(summary: RunSummary, plan: RunPlan) -> RunSummary:
    on_gpu = plan.device == "cuda"
    memory = plan.memory
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
        predicted_memory_bytes=(
            memory.allocator_bytes if on_gpu else memory.host_bytes_per_node // memory.ranks_per_node
        ),
        memory_capacity_bytes=memory.gpu_capacity_bytes if on_gpu else None,
    )


def _with_recorded(summary: RunSummary, data: RunData) -> RunSummary:
    """State, counts, loss, memory and cost, from the attempts and the curve."""
    curve = data.steps[~data.steps["superseded"]]
    last = data.attempts[-1] if data.attempts else None
    sizes = _world_sizes(data)
    final_loss = float(curve["loss"].iloc[-1]) if len(curve) else math.nan
    return replace(
        summary,
        state=last.state if last else ("unreadable" if data.problem else "not started"),
        end_reason=last.end_reason if last else None,
        num_attempts=len(data.attempts),
        world_size=sizes.pop() if len(sizes) == 1 else None,
        num_recorded_steps=len(curve),
        num_dead_steps=int(curve["dead"].sum()),
        final_loss=final_loss if math.isfinite(final_loss) else None,
        peak_memory_bytes=int(data.steps["peak_memory_bytes"].max()) if len(data.steps) else None,
        gpu_hours=_gpu_hours(data),
    )


def _world_sizes(data: RunData) -> set[int | None]:
    """What the attempts that made the curve measured; all attempts, if there is no step yet."""
    on_curve = set(data.steps.loc[~data.steps["superseded"], "attempt"])
    return {attempt.world_size for attempt in data.attempts if not on_curve or attempt.attempt in on_curve}


def _gpu_hours(data: RunData) -> float | None:
    """Ranks times hours; an attempt without an end counts up to its last step."""
    if data.plan is None or not data.attempts:
        return None
    last_step_s = data.steps.groupby("attempt")["time_s"].max()
    seconds = 0.0
    for attempt in data.attempts:
        end_s = attempt.ended_at_s
        if end_s is None:
            end_s = float(last_step_s.get(attempt.attempt, attempt.started_at_s))
        seconds += end_s - attempt.started_at_s
    return seconds * data.plan.layout.world_size / 3600


def _with_speeds(summary: RunSummary, data: RunData) -> RunSummary:
    """The median step time and what follows from it; as it was, if there is no steady step or no world size."""
    steady = data.steps[data.steps["steady"]]
    if data.plan is None or steady.empty:
        return summary
    tokens = data.plan.batch.tokens_per_step
    step_time = median_interval(steady["step_time_s"].tolist())
    summary = replace(
        summary,
        num_steady_steps=len(steady),
        step_time_s=step_time.median,
        step_time_low_s=step_time.low,
        step_time_high_s=step_time.high,
        tokens_per_s=tokens / step_time.median,
    )
    if summary.world_size is None:
        return summary
    tflops = data.plan.flops_per_step.per_gpu_tflops(step_time.median, summary.world_size)
    peak = data.plan.peak_tflops_per_gpu
    return replace(
        summary,
        tokens_per_s_per_gpu=tokens / step_time.median / summary.world_size,
        model_tflops_per_gpu=tflops["model"],
        hardware_tflops_per_gpu=tflops["hardware"],
        megatron_tflops_per_gpu=tflops["megatron"],
        mfu=tflops["model"] / peak if peak else None,
        hfu=tflops["hardware"] / peak if peak else None,
    )


def _reasons(summary: RunSummary, data: RunData) -> list[str]:
    """Why the speeds may not be compared, one text a reason."""
    reasons = []
    if summary.state != "completed":
        reasons.append(_state_reason(summary, data.attempts))
    if data.attempts and summary.num_recorded_steps and summary.world_size != summary.gpus:
        measured = sorted("none" if size is None else str(size) for size in _world_sizes(data))
        reasons.append(f"world size {summary.gpus} planned, {' and '.join(measured) or 'none'} measured")
    tokens = sorted(set(data.steps.loc[data.steps["steady"], "tokens"]) - {summary.tokens_per_step})
    if tokens:
        reasons.append(f"{summary.tokens_per_step:,} tokens a step planned, {tokens[0]:,} recorded")
    dead_share = summary.num_dead_steps / max(1, summary.num_recorded_steps)
    if dead_share > MAX_DEAD_SHARE:
        reasons.append(
            f"{summary.num_dead_steps} of {summary.num_recorded_steps} steps without an update, a finite loss or a time"
            f" ({dead_share:.0%}, at most {MAX_DEAD_SHARE:.0%})"
        )
    if summary.state == "completed" and summary.step_time_s is None:
        reasons.append(f"no steady step among {summary.num_recorded_steps} recorded")
    return reasons


def _state_reason(summary: RunSummary, attempts: tuple[AttemptRecord, ...]) -> str:
    progress = f"{summary.num_recorded_steps} of {summary.num_steps} steps recorded"
    if summary.state != "failed":
        return f"{summary.state}, {progress}"
    last = attempts[-1]
    place = "" if last.failed_rank is None else f" at rank {last.failed_rank}"
    place += f" on {last.failed_node}" if last.failed_node else ""
    message = f": {last.message.splitlines()[0]}" if last.message else ""
    return f"failed ({last.end_reason}){place}, {progress}{message}"


def _above_peak(summary: RunSummary) -> str:
    """Text if more was executed than the hardware can; Megatron's count is a label and may be above it."""
    measured, peak = summary.hardware_tflops_per_gpu, summary.peak_tflops_per_gpu
    if measured is None or peak is None or measured <= peak:
        return ""
    return (
        f"{measured:,.4g} hardware TFLOP/s a GPU is above the peak of {peak:,.4g}: step times, hardware.peak_tflops or"
        " the dense attention count is wrong for this run"
    )
