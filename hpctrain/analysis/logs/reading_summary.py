"""Values derived from a log's records, under the names that the samples use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.loss_conditions import skipped_everything
from hpctrain.analysis.logs.record_columns import FloatArray, RecordColumns
from hpctrain.analysis.logs.run_conditions import run_end, seconds_without_progress, times_apart
from hpctrain.analysis.logs.speed_conditions import OUTLIER_RATIO
from hpctrain.analysis.logs.unit_checks import global_batch_from_rate, whole_quotient

_Kind = TypeVar("_Kind", bound=np.generic)

DERIVED_FROM_RECORDS = 1000
"""The last records, from which whole numbers such as GPUs are derived; more of them say nothing new."""
MAX_PAIRS = 8
"""Pairs of records whose distance in time is told one by one; more are told by their mean alone."""


def summary_of(columns: RecordColumns) -> dict[str, object]:
    """All values that the log gives; what it does not give is absent."""
    parts: tuple[Callable[[RecordColumns], dict[str, object]], ...] = (
        _progress,
        _attempts,
        _means,
        _ends_of_run,
        _losses,
        _skips,
        _batch_and_gpus,
        _time_stamps,
        _segments,
        _events,
    )
    summary: dict[str, object] = {}
    for part in parts:
        summary.update(part(columns))
    return {name: value for name, value in summary.items() if value is not None}


def _progress(columns: RecordColumns) -> dict[str, object]:
    known = columns.iteration[np.isfinite(columns.iteration)]
    if not len(known):
        return {}
    return {
        "first_iteration": int(known[0]),
        "last_iteration": int(known[-1]),
        "unique_iterations": [int(step) for step in np.unique(known)] if len(known) <= 1000 else None,
        "log_interval": columns.log_interval,
    }


def _attempts(columns: RecordColumns) -> dict[str, object]:
    """Steps that were done again: their first execution is wasted; a record stands for all steps of its interval."""
    if not len(columns):
        return {}
    return {
        "attempts": int(columns.group[-1]) + 1,
        "wasted_iterations_total": int(columns.superseded.sum()) * columns.log_interval,
        "mean_tflops_last_attempt_wins_without_first_of_attempt": _mean(
            columns.numbers("tflops_per_gpu")[~columns.superseded & ~columns.first_of_group]
        ),
    }


def _means(columns: RecordColumns) -> dict[str, object]:
    """Plain means, with the first record of each start and without; steps above the outer limits stay in."""
    later = ~columns.first_of_group
    times, tflops = columns.step_time_s, columns.numbers("tflops_per_gpu")
    with_loss = np.isfinite(columns.loss) & _usual(columns.pace)
    return {
        "mean_time_per_iteration_s": _mean(times),
        "mean_time_all_s": _mean(times),
        "mean_time_without_first_s": _mean(times[later]),
        "mean_time_last_three_s": _mean(times[-3:]) if len(times) >= 3 else None,
        "mean_time_per_iteration_s_last_4": _mean(times[-4:]) if len(times) >= 4 else None,
        "mean_time_of_healthy_records_without_evaluation_s": _mean(times[with_loss]),
        "mean_tflops_per_gpu": _mean(tflops),
        "mean_tflops_per_gpu_without_first": _mean(tflops[later]),
        "mean_samples_per_s": _mean(columns.numbers("samples_per_s")),
        "mean_tokens_per_s_per_gpu": _mean(columns.numbers("tokens_per_s_per_gpu")),
        "tflops_first_two_mean": _mean(tflops[:2]) if len(tflops) >= 3 else None,
        "tflops_last": _last(tflops),
        "relative_drop": _relative_drop(tflops),
        "time_per_step_s_from_batches_per_s": _listed(1 / _usable(columns.numbers("batches_per_s"))),
    }


def _ends_of_run(columns: RecordColumns) -> dict[str, object]:
    """First and last speed, and how much slower the last is."""
    times, batches = columns.step_time_s, columns.numbers("global_batch_size")
    known = np.flatnonzero(np.isfinite(times))
    if len(known) < 2:
        return {}
    first, last = known[0], known[-1]
    rates = columns.numbers("samples_per_s") if columns.has("samples_per_s") else batches / times
    return {
        "slowdown_last_over_first": float(times[last] / times[first]),
        "samples_per_s_first": _number(rates[first]),
        "samples_per_s_last": _number(rates[last]),
    }


def _losses(columns: RecordColumns) -> dict[str, object]:
    grad_norms, scales = columns.numbers("grad_norm"), columns.numbers("loss_scale")
    is_nan = columns.true("loss_is_nan") | columns.true("grad_norm_is_nan")
    nan_steps = columns.iteration[is_nan & np.isfinite(columns.iteration)]
    return {
        "max_loss": _maximum(columns.loss),
        "max_grad_norm": _maximum(grad_norms),
        "loss_scale_first": _last(scales[::-1]),
        "loss_scale_last": _last(scales),
        "nan_records": int(is_nan.sum()) if is_nan.any() else None,
        "first_nan_iteration": int(nan_steps[0]) if len(nan_steps) else None,
        "nan_iterations_by_counter": _total(columns.numbers("nan_iterations")),
    }


def _skips(columns: RecordColumns) -> dict[str, object]:
    counted = _total(columns.numbers("skipped_iterations"))
    summary: dict[str, object] = {
        "skipped_total": counted,
        "skipped_by_counter": counted,
        "all_steps_skipped": True if skipped_everything(columns) else None,
        "overflow_lines": len(columns.reading.fact_rows("overflow")) or None,
    }
    engine = columns.reading.engine
    steps, totals = np.array(engine.numbers("iteration")), np.array(engine.numbers("skipped_total"))
    known = np.flatnonzero(np.isfinite(totals) & (steps > 0))
    if len(known):
        place = int(known[-1])
        summary["engine"] = {
            "step": int(steps[place]),
            "skipped_total": int(totals[place]),
            "samples_per_s_running_avg": _last(np.array(engine.numbers("samples_per_s_running_avg"))),
            "skipped_fraction": float(totals[place] / steps[place]),
        }
    return summary


def _batch_and_gpus(columns: RecordColumns) -> dict[str, object]:
    """What follows from two rates or two counters; a quotient counts if all records agree on one whole number."""
    samples, tokens = columns.numbers("consumed_samples"), columns.numbers("consumed_tokens")
    rates, times = columns.numbers("samples_per_s"), columns.step_time_s
    batches, lengths = columns.numbers("global_batch_size"), columns.numbers("seq_len")
    per_gpu = columns.numbers("tokens_per_s_per_gpu")
    total = batches * lengths / times
    return {
        "seq_len_from_tokens_over_samples": _agreed(tokens, samples),
        "global_batch_size_from_samples_per_s_times_time": _one(
            [
                global_batch_from_rate(rate, time)
                for rate, time in zip(_latest(rates).tolist(), _latest(times).tolist(), strict=True)
                if rate > 0 and time > 0
            ]
        ),
        "global_batch_size_from_samples": _batch_from_samples(columns),
        "tokens_per_s_total_from_gbs_seq_time_last": _last(total),
        "gpus_from_tgs_last": whole_quotient(_last(total), _last(per_gpu)),
        "gpus_from_tokens_per_s": _agreed(columns.numbers("tokens_per_s"), per_gpu),
        "gpus_from_tokens": _gpus_from_counter(columns),
    }


def _batch_from_samples(columns: RecordColumns) -> int | None:
    """Samples consumed from one record to the next over the steps between them; a cut-off record counts as the next."""
    steps, samples = _latest(columns.iteration).tolist(), _latest(columns.numbers("consumed_samples")).tolist()
    for row in columns.reading.incomplete_records:
        step, consumed = row.get("iteration"), row.get("consumed_samples")
        if isinstance(step, int) and isinstance(consumed, int):
            # Composer counts samples from before the step: the cut-off record tells what the records before it consumed.
            steps.append(step)
            samples.append(consumed)
            if len(steps) == 2 and not np.isfinite(samples[0]):
                samples[0] = 0
    increments = [
        whole_quotient(b - a, d - c)
        for a, b, c, d in zip(samples[:-1], samples[1:], steps[:-1], steps[1:], strict=True)
        if b > a and d > c
    ]
    return _one(increments)


def _gpus_from_counter(columns: RecordColumns) -> int | None:
    """GPUs from tokens between records, steps/s and tokens/s a GPU."""
    tokens, steps = _latest(columns.numbers("consumed_tokens")), _latest(columns.iteration)
    rates = _latest(columns.numbers("tokens_per_s_per_gpu") * columns.step_time_s)
    same = np.diff(_latest(columns.group)) == 0
    per_step = (np.diff(tokens) / np.diff(steps))[same]
    found = [whole_quotient(a, b) for a, b in zip(per_step.tolist(), rates[1:][same].tolist(), strict=True)]
    return _one([gpus for gpus in found if gpus])


def _time_stamps(columns: RecordColumns) -> dict[str, object]:
    """Seconds a step from the time stamps, over all and pair by pair where the log states no step time."""
    if columns.has("time_per_iteration_s"):
        return {}
    summary: dict[str, object] = {}
    pace: list[float] = []
    for places in columns.groups():
        known = places[np.isfinite(columns.time_stamp_s[places]) & np.isfinite(columns.iteration[places])]
        seconds, steps = np.diff(columns.time_stamp_s[known]), np.diff(columns.iteration[known])
        if not len(steps) or not steps.sum() > 0:
            continue
        pace.append(float(seconds.sum() / steps.sum()))
        if len(steps) <= MAX_PAIRS:
            for first, last, one, step in zip(known[:-1], known[1:], seconds, steps, strict=True):
                name = f"{columns.place_name(int(first))}_{columns.place_name(int(last))}"
                summary[f"time_per_step_s_from_timestamps_{name}"] = float(one / step) if step > 0 else None
    summary["time_per_step_s_from_timestamps"] = _mean(np.array(pace))
    return summary


def _segments(columns: RecordColumns) -> dict[str, object]:
    segments = np.unique(columns.segment)
    if len(segments) < 2:
        return {}
    tflops = columns.numbers("tflops_per_gpu")
    steady = []
    for segment in segments:
        # A start that was made again keeps only what follows its last first record.
        places = np.flatnonzero(columns.segment == segment)
        steady.append(_mean(tflops[places[1:]]))
    return {
        "segments": len(segments),
        "records_per_segment": [int((columns.segment == segment).sum()) for segment in segments],
        "steady_tflops_per_gpu_per_segment_without_first": steady if columns.has("tflops_per_gpu") else None,
    }


def _events(columns: RecordColumns) -> dict[str, object]:
    reading = columns.reading
    end = run_end(reading) or {}
    validation = [dict(row) for row in reading.fact_rows("validation")]
    saved = sorted({int(step) for step in reading.fact_rows("checkpoint_saved").numbers("iteration") if step == step})
    watchdog = reading.fact_rows("watchdog")
    times = [datetime.fromisoformat(time).timestamp() for time in watchdog.column("time") if isinstance(time, str)]
    silent = seconds_without_progress(columns)
    return {
        "end_reason": end.get("reason"),
        "end_cause": end.get("cause"),
        "end_time": end.get("end_time"),
        "slurm_job_id": end.get("slurm_job_id"),
        "slurm_step": end.get("slurm_step"),
        "preemptions": times_apart(reading, "preemption") or None,
        "requeues": times_apart(reading, "requeue") or None,
        "checkpoints_saved": saved or None,
        "checkpoint_saved_at": saved or None,
        "validation": validation[-1] if validation else None,
        "nodes_in_list": _last(np.array(watchdog.numbers("nodes_in_list"))),
        "seconds_between_first_and_last_watchdog_line": max(times) - min(times) if times else None,
        "last_progress_iteration": _last(columns.iteration) if silent is not None else None,
        "world_size_from_rank_lines_at_least": reading.settings.get("world_size_at_least"),
    }


def _usable(values: FloatArray) -> FloatArray:
    return np.where(values > 0, values, np.nan)


def _usual(pace: FloatArray) -> npt.NDArray[np.bool_]:
    """No evaluation or saving inside the step."""
    known = pace[np.isfinite(pace)]
    usual: npt.NDArray[np.bool_] = (
        pace <= OUTLIER_RATIO * np.median(known) if len(known) else np.ones(len(pace), np.bool_)
    )
    return usual


def _mean(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _maximum(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else None


def _total(values: FloatArray) -> int | None:
    known = values[np.isfinite(values)]
    total = float(known.sum())
    return int(total) if len(known) and np.isfinite(total) else None


def _last(values: FloatArray) -> float | int | None:
    known = values[np.isfinite(values)]
    return _number(known[-1]) if len(known) else None


def _number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def _listed(values: FloatArray) -> list[float] | None:
    known = values[np.isfinite(values)]
    return [float(value) for value in known] if 0 < len(known) <= 100 else None


def _relative_drop(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(1 - known[-1] / known[:2].mean()) if len(known) >= 3 else None


def _one(values: list[int | None]) -> int | None:
    """The whole number that all values are."""
    found = {value for value in values if value is not None}
    return found.pop() if len(found) == 1 and None not in values else None


def _agreed(top: FloatArray, bottom: FloatArray) -> int | None:
    """The whole number that the quotients of the last records all are."""
    both = np.isfinite(top) & np.isfinite(bottom)
    pairs = zip(_latest(top[both]).tolist(), _latest(bottom[both]).tolist(), strict=True)
    return _one([whole_quotient(a, b) for a, b in pairs])


def _latest(values: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    return values[-DERIVED_FROM_RECORDS:]
