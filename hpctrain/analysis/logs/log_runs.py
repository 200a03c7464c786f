"""Logs of other systems as runs: the row and the marked steps that our own runs have, beside which they are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from hpctrain.analysis.intervals import dependent_median_interval
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.log_steps import StepTable, marked_steps
from hpctrain.analysis.logs.loss_conditions import OVERFLOW_SKIP_SHARE
from hpctrain.analysis.logs.record_columns import FloatArray, RecordColumns
from hpctrain.analysis.logs.run_conditions import run_end
from hpctrain.analysis.logs.speed_conditions import peak_tflops
from hpctrain.analysis.logs.unit_checks import check_tflops, whole_quotient
from hpctrain.analysis.run_row import FLOP_CONVENTIONS, RunSummary
from hpctrain.analysis.validity import MAX_DEAD_SHARE
from hpctrain.plan.devices import DEVICES
from hpctrain.plan.flops import megatron_flops, tflops_per_gpu
from hpctrain.record.files import path_text, plain_text
from hpctrain.units import TERA

MAX_COUNT = 2**53
"""Of nodes, sequences, steps and the like; beyond it a number of a log is damage, and a float no longer exact."""
_DEGREES = ("tp", "pp", "dp", "cp", "ep")
_MIN_WALL_S = 60.0
"""Of time stamps, to state a share of lost time: stamps often have whole seconds only."""


@dataclass(frozen=True)
class LogRun:
    """One run inside a log."""

    summary: RunSummary
    steps: pd.DataFrame
    """One row a record, see ``log_steps.marked_steps``; a record is the mean over the steps since the one before."""


def log_runs(reading: LogReading, path: Path) -> tuple[LogRun, ...]:
    """The runs of one log: one, or one for each topology or run that the file holds (``file.log#2``).

    A log without any record gives one row that says so.
    """
    columns = RecordColumns(reading)
    segments = np.unique(columns.segment)
    # A log may hold any number, also zeros to divide by; what is not finite then counts as missing.
    with np.errstate(all="ignore"):
        if len(segments) <= 1:
            return (_log_run(columns, np.arange(len(columns)), path, ""),)
        return tuple(
            _log_run(columns, np.flatnonzero(columns.segment == segment), path, f"#{number}")
            for number, segment in enumerate(segments, start=1)
        )


def _log_run(
    columns: RecordColumns, places: np.ndarray[tuple[int], np.dtype[np.int64]], path: Path, mark: str
) -> LogRun:
    table = marked_steps(columns, places)
    row = RunSummary(
        folder=f"{path_text(path)}{mark}",
        run=f"{plain_text(path.name)}{mark}",
        source=columns.reading.system,
        damaged_lines=columns.reading.damaged_lines,
    )
    row = _with_settings(row, columns, places)
    row = _with_records(row, columns, table)
    row = _with_speeds(row, columns, table)
    row = _with_wall_clock(row, table)
    reason = "; ".join(_reasons(row, columns, table))
    return LogRun(replace(row, valid=not reason, reason=reason), table.steps)


def _with_settings(
    row: RunSummary, columns: RecordColumns, places: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> RunSummary:
    """What the records say of the run, or else the settings that stand in the log; never a guess."""
    settings = columns.reading.settings

    def known(name: str) -> int | None:
        values = columns.numbers(name)[places]
        values = values[(values > 0) & (values < MAX_COUNT)]
        if len(values):
            return int(values[-1])
        value = settings.get(name)
        return value if isinstance(value, int) and 0 < value < MAX_COUNT else None

    degrees = {name: known(name) for name in _DEGREES}
    batch, seq_len = known("global_batch_size"), known("seq_len") or _seq_len(columns, places)
    gpus = known("world_size") or _gpus(columns, places, batch, seq_len)
    precision = settings.get("precision")
    device = DEVICES.get(str(settings.get("gpu")))
    return replace(
        row,
        hardware=None if device is None else device.name,
        peak_tflops_per_gpu=None if device is None else device.peak_tflops.get(str(precision)),
        achievable_tflops_per_gpu=None if device is None else device.achievable_tflops.get(str(precision)),
        parallelism="-".join(f"{name}{degree}" for name, degree in degrees.items() if degree) or None,
        precision=precision if isinstance(precision, str) else None,
        nodes=known("nodes"),
        gpus=gpus,
        world_size=gpus,
        micro_batch_size=known("micro_batch_size"),
        global_batch_size=batch,
        seq_len=seq_len,
        tokens_per_step=batch * seq_len if batch and seq_len else None,
        num_steps=known("total_iterations"),
    )


def _seq_len(columns: RecordColumns, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int | None:
    """Tokens over samples, if all records agree on one whole number."""
    tokens, samples = columns.numbers("consumed_tokens")[places], columns.numbers("consumed_samples")[places]
    both = np.isfinite(tokens) & np.isfinite(samples)
    lengths = {whole_quotient(a, b) for a, b in zip(tokens[both].tolist(), samples[both].tolist(), strict=True)}
    return lengths.pop() if len(lengths) == 1 else None


def _gpus(
    columns: RecordColumns,
    places: np.ndarray[tuple[int], np.dtype[np.int64]],
    batch: int | None,
    seq_len: int | None,
) -> int | None:
    """Tokens/s of the job over tokens/s a GPU, if the records' median is a whole number."""
    per_gpu = columns.numbers("tokens_per_s_per_gpu")[places]
    total = columns.numbers("tokens_per_s")[places]
    if not np.isfinite(total).any() and batch and seq_len:
        total = batch * seq_len / columns.step_time_s[places]
    with np.errstate(divide="ignore", invalid="ignore"):
        return whole_quotient(_median(total / per_gpu), 1)


def _with_records(row: RunSummary, columns: RecordColumns, table: StepTable) -> RunSummary:
    """State, counts and loss."""
    end = run_end(columns.reading) or {}
    reason = end.get("reason")
    steps = table.steps
    curve = steps[~steps["superseded"]]
    finished = row.num_steps is not None and len(curve) > 0 and int(curve["step"].max()) >= row.num_steps
    state = "unknown" if reason is None else "failed"
    if reason == "COMPLETED" or (reason is None and finished):
        state = "completed"
    losses = curve["loss"].to_numpy()
    final_loss = float(losses[-1]) if len(losses) and np.isfinite(losses[-1]) else None
    num_dead, num_rejected = int(curve["dead"].sum()), int(curve["rejected"].sum())
    return replace(
        row,
        state=state,
        end_reason=str(reason).lower() if reason else None,
        num_attempts=int(steps["attempt"].nunique()),
        num_recorded_steps=len(curve),
        num_dead_steps=num_dead,
        dead_share=num_dead / len(curve) if len(curve) else None,
        num_rejected_steps=num_rejected,
        num_outlier_steps=int(steps["outlier"].sum()),
        num_steady_steps=int(steps["steady"].sum()),
        final_loss=final_loss,
        peak_memory_bytes=int(steps["peak_memory_bytes"].max()) or None if len(steps) else None,
    )


def _with_speeds(row: RunSummary, columns: RecordColumns, table: StepTable) -> RunSummary:
    """Medians over the steady records: the step time, and rates from it where the tokens of a step are known, else as printed."""
    steady = table.steps["steady"].to_numpy(dtype=bool)
    places = table.places[steady]
    times = table.steps["step_time_s"].to_numpy()[steady]
    times = times[np.isfinite(times)]
    printed = _median(columns.numbers("tflops_per_gpu")[places])
    convention = columns.reading.tflops_convention
    row = replace(
        row,
        printed_tflops_per_gpu=printed,
        printed_convention=convention if printed is not None else None,
        mfu=_share(_median(columns.numbers("mfu_percent")[places])),
        tokens_per_s=_median(columns.numbers("tokens_per_s")[places]),
        tokens_per_s_per_gpu=_median(columns.numbers("tokens_per_s_per_gpu")[places]),
    )
    if len(times):
        interval = dependent_median_interval(times)
        row = replace(row, step_time_s=interval.median, step_time_low_s=interval.low, step_time_high_s=interval.high)
        if row.tokens_per_step:
            row = replace(row, tokens_per_s=row.tokens_per_step / interval.median)
    row = _with_rates_by_gpus(row)
    # What the log calls by one of our names is that; the closed form comes from batch, time and shape.
    rates = dict.fromkeys(FLOP_CONVENTIONS, None) | {convention: printed}
    hardware = _median(columns.numbers("hardware_tflops_per_gpu")[places])
    row = replace(
        row,
        model_tflops_per_gpu=rates["model"],
        hardware_tflops_per_gpu=rates["hardware"] if hardware is None else hardware,
        megatron_tflops_per_gpu=_megatron_tflops(row, columns) or rates["megatron"],
    )
    peak = row.peak_tflops_per_gpu
    if not peak:
        return row
    return replace(
        row,
        mfu=row.model_tflops_per_gpu / peak if row.mfu is None and row.model_tflops_per_gpu is not None else row.mfu,
        hfu=None if row.hardware_tflops_per_gpu is None else row.hardware_tflops_per_gpu / peak,
    )


def _with_rates_by_gpus(row: RunSummary) -> RunSummary:
    """The rate that is missing from the one that is there, where the GPUs are known."""
    if not row.gpus:
        return row
    if row.tokens_per_s is None and row.tokens_per_s_per_gpu is not None:
        return replace(row, tokens_per_s=row.tokens_per_s_per_gpu * row.gpus)
    if row.tokens_per_s is not None and row.tokens_per_s_per_gpu is None:
        return replace(row, tokens_per_s_per_gpu=row.tokens_per_s / row.gpus)
    return row


def _megatron_tflops(row: RunSummary, columns: RecordColumns) -> float | None:
    """Megatron's closed form needs no more of the shape than Megatron's arguments tell; None if anything is missing."""
    settings = columns.reading.settings
    shape = [settings.get(name) for name in ("num_layers", "hidden_size", "vocab_size")]
    layers, hidden, vocab = (value if isinstance(value, int) else 0 for value in shape)
    if not (layers and hidden and vocab and row.global_batch_size and row.seq_len and row.step_time_s and row.gpus):
        return None
    flops = megatron_flops(row.global_batch_size, row.seq_len, layers, hidden, vocab)
    return tflops_per_gpu(flops, row.step_time_s, row.gpus)


def _with_wall_clock(row: RunSummary, table: StepTable) -> RunSummary:
    """Time stamps against step times: what evaluation, saving and stalls cost; only where the log has both."""
    wall = table.wall_clock
    if wall is None or wall.wall_s < _MIN_WALL_S:
        return row
    lost = 1 - wall.in_steps_s / wall.wall_s
    return replace(
        row,
        lost_time_share=lost if lost >= 0 else None,
        wall_tokens_per_s=row.tokens_per_step * wall.num_steps / wall.wall_s if row.tokens_per_step else None,
        gpu_hours=wall.wall_s * row.gpus / 3600 if row.gpus else None,
    )


def _reasons(row: RunSummary, columns: RecordColumns, table: StepTable) -> list[str]:
    """Why the speeds may not be compared, one text a reason; how the log ends is none, see ``validity``."""
    num = row.num_recorded_steps
    if not num:
        return ["no training record"]
    reasons = []
    if row.num_dead_steps > MAX_DEAD_SHARE * num:
        reasons.append(
            f"{row.num_dead_steps} of {num} records skipped, without a finite loss or without a speed"
            f" ({row.num_dead_steps / num:.0%}, at most {MAX_DEAD_SHARE:.0%})"
        )
    if row.num_rejected_steps > MAX_DEAD_SHARE * num:
        peak = peak_tflops(columns.reading.settings)
        reasons.append(f"{row.num_rejected_steps} of {num} records above the peak of {peak:,.0f} TFLOP/s a GPU")
    engine = columns.reading.engine
    totals, steps = np.array(engine.numbers("skipped_total")), np.array(engine.numbers("iteration"))
    known = np.flatnonzero(np.isfinite(totals) & (steps > 0))
    if len(known) and totals[known[-1]] >= OVERFLOW_SKIP_SHARE * steps[known[-1]]:
        reasons.append(
            f"DeepSpeed skipped {totals[known[-1]]:.0f} of {steps[known[-1]]:.0f} steps"
            f" ({totals[known[-1]] / steps[known[-1]]:.1%}, at most {OVERFLOW_SKIP_SHARE:.0%})"
        )
    if not row.num_steady_steps:
        reasons.append(f"no steady record among {num}")
    printed, counted = row.printed_tflops_per_gpu, _megatron_tflops(row, columns)
    if printed is not None and counted is not None:
        # Printed and counted over the same time: the quotient of the two is that of their FLOPs.
        check = check_tflops(printed, 1, 1.0, counted * TERA)
        if not check.consistent:
            reasons.append(f"{printed:.4g} TFLOP/s a GPU printed, {counted:.4g} by model, batch and time: {check.hint}")
    return reasons


def _median(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
