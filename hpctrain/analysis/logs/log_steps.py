"""A log's records as a table of steps, marked like the steps of our own runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpctrain.analysis.logs.loss_conditions import no_loss_expected
from hpctrain.analysis.logs.record_columns import FloatArray, IntArray, RecordColumns
from hpctrain.analysis.logs.run_conditions import RAMP_UP_RATIO
from hpctrain.analysis.logs.speed_conditions import peak_tflops
from hpctrain.analysis.steady import mark_steps, outlier_steps
from hpctrain.record.schema import STEP_FIELDS_SINCE_2
from hpctrain.units import GIB, MIB

WARM_UP_ONE_IN = 10
"""Records cut from the start of each attempt, rounded up: the first at least. Our own runs lose two steps at least, but a record
of a log is often the mean over many steps, and a log often an excerpt of three."""
_MOST_STEPS = 0.5
"""A record counts as skipped if more than this share of its steps was."""


@dataclass(frozen=True)
class LogWallClock:
    """Time stamps and step times over the same steps of the curve."""

    wall_s: float
    in_steps_s: float
    num_steps: int


@dataclass(frozen=True)
class StepTable:
    """The marked steps of one run, and where each stands in the log's records."""

    steps: pd.DataFrame
    places: IntArray
    wall_clock: LogWallClock | None
    """None: the log has no time stamps, or no step times apart from them."""


def marked_steps(columns: RecordColumns, places: IntArray) -> StepTable:
    """One row a record, with the columns and flags of ``frames.STEP_DTYPES`` except folder and run.

    ``step`` is the record's position where the log numbers no steps. ``step_time_s`` is the printed one, else from the time
    stamps, else NaN; then ``steady`` goes by the printed rate. Records of a growing batch are warm-up. ``tokens`` and
    ``peak_memory_bytes`` are 0 where the log does not tell them. A loss of exactly zero is none (see ``loss_conditions``);
    where a kind of log never has a loss, its absence makes no record dead.

    Args:
        columns: all records of the file.
        places: those of one run, in the order of the file.
    """
    attempt, step = columns.attempt[places], _steps(columns, places)
    interval = _intervals(columns, places, attempt)
    times = _step_times(columns, places, attempt)
    loss = np.where(columns.loss[places] == 0, np.nan, columns.loss[places])
    # Lines without a step number, such as Megatron-Bridge's «Step Time», tell speed only.
    without_loss = ~np.isfinite(columns.iteration[places]) & ~np.isfinite(columns.loss[places])
    without_loss &= ~columns.true("loss_is_nan")[places]
    table = pd.DataFrame(
        {
            "attempt": attempt,
            "step": step,
            "time_s": columns.time_stamp_s[places],
            "loss": loss,
            "learning_rate": columns.numbers("learning_rate")[places],
            "grad_norm": columns.numbers("grad_norm")[places],
            "skipped": _skipped(columns, places, interval),
            "step_time_s": times,
            **{name: np.full(len(places), np.nan) for name in ("data_time_s", *STEP_FIELDS_SINCE_2)},
            "loss_scale": columns.numbers("loss_scale")[places],
            "tokens": _tokens(columns, places),
            "peak_memory_bytes": _memory_bytes(columns, places),
            "rejected": _above_peak(columns, places),
            "growing": _growing(columns, places),
            "place": places,
            "pace": np.where(np.isfinite(times), times, columns.pace[places]),
        }
    )
    judged_loss = np.where(without_loss | no_loss_expected(columns.reading), 1.0, loss)
    marked = _marked(table, judged_loss)
    order = marked.pop("place").to_numpy()
    wall = _wall_clock(marked) if columns.has("time_per_iteration_s") else None
    return StepTable(marked, order, wall)


def _marked(table: pd.DataFrame, judged_loss: FloatArray) -> pd.DataFrame:
    """``mark_steps`` by pace, with the warm-up of logs."""
    first = ~table.duplicated("attempt")
    # The first record of an attempt often has no speed yet; it is warm-up anyhow, and not dead for that.
    pace = table["pace"].where(~(first & table["pace"].isna()), 1.0)
    marked = mark_steps(table.assign(step_time_s=pace, loss=judged_loss))
    order = np.searchsorted(table["place"].to_numpy(), marked["place"].to_numpy())
    for name in ("loss", "step_time_s", "rejected"):  # as the log has them
        marked[name] = table[name].to_numpy()[order]
    position = marked.groupby("attempt").cumcount()
    cut = -(-marked.groupby("attempt")["step"].transform("size") // WARM_UP_ONE_IN)
    marked["warm_up"] = (position < cut) | marked.pop("growing")
    steady = ~(marked["superseded"] | marked["warm_up"] | marked["dead"] | marked["rejected"])
    marked["steady"] = steady
    marked["outlier"] = False
    for _, part in marked[steady].groupby("attempt"):
        marked.loc[part.index, "outlier"] = outlier_steps(part["pace"].to_numpy())
    return marked.drop(columns="pace")


def _steps(columns: RecordColumns, places: IntArray) -> IntArray:
    steps = columns.iteration[places]
    if (np.abs(steps) < 2.0**63).all():
        return steps.astype(np.int64)
    return np.arange(1, len(places) + 1)


def _intervals(columns: RecordColumns, places: IntArray, attempt: IntArray) -> FloatArray:
    """Steps that each record stands for."""
    steps = columns.iteration[places]
    intervals = np.full(len(places), float(columns.log_interval))
    if len(places) > 1:
        jumps, same = np.diff(steps), np.diff(attempt) == 0
        closer = same & (jumps > 0) & (jumps < columns.log_interval)
        intervals[1:][closer] = jumps[closer]
    return intervals


def _skipped(columns: RecordColumns, places: IntArray, interval: FloatArray) -> npt.NDArray[np.bool_]:
    """Most steps of the record were skipped, by the counter or, where the counter is silent, by an overflow line."""
    counted = np.nan_to_num(columns.numbers("skipped_iterations")[places])
    return (counted > _MOST_STEPS * interval) | columns.true("overflow_line_before")[places]


def _step_times(columns: RecordColumns, places: IntArray, attempt: IntArray) -> FloatArray:
    """As printed, else from one time stamp to the next over the steps between them."""
    times = columns.step_time_s[places]
    if np.isfinite(times).any():
        return times
    stamps, steps = columns.time_stamp_s[places], columns.iteration[places]
    derived = np.full(len(places), np.nan)
    if len(places) > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.diff(stamps) / np.diff(steps)
        derived[1:] = np.where((np.diff(attempt) == 0) & (np.diff(steps) > 0) & (seconds > 0), seconds, np.nan)
    return derived


def _tokens(columns: RecordColumns, places: IntArray) -> IntArray:
    """Tokens of one step: batch x sequence length where the log has both."""
    settings = columns.reading.settings
    sizes = []
    for name in ("global_batch_size", "seq_len"):
        values = columns.numbers(name)[places]
        setting = settings.get(name)
        sizes.append(np.where(np.isfinite(values), values, setting if isinstance(setting, int) else np.nan))
    batch, seq_len = sizes
    with np.errstate(divide="ignore", invalid="ignore"):
        consumed = columns.numbers("consumed_tokens")[places] / columns.numbers("consumed_samples")[places]
        tokens = batch * np.where(np.isfinite(seq_len), seq_len, np.round(consumed))
    return _counts(tokens)


def _counts(values: FloatArray) -> IntArray:
    """Whole numbers; 0 for what is missing or beyond what a count can be."""
    usable = (values > 0) & (values < 2.0**63)
    return np.where(usable, values, 0).astype(np.int64)


def _growing(columns: RecordColumns, places: IntArray) -> npt.NDArray[np.bool_]:
    """Records of a ramp-up: with another batch than the last, so that their times are no times of the run's step."""
    batch = columns.numbers("global_batch_size")[places]
    known = batch[np.isfinite(batch)]
    if not len(known):
        return np.zeros(len(places), dtype=np.bool_)
    growing: npt.NDArray[np.bool_] = np.abs(batch / known[-1] - 1) > RAMP_UP_RATIO - 1
    return growing


def _above_peak(columns: RecordColumns, places: IntArray) -> npt.NDArray[np.bool_]:
    """More TFLOP/s than the GPU has: unit or count are wrong, so the record's time may be too."""
    tflops = np.fmax(columns.numbers("tflops_per_gpu"), columns.numbers("hardware_tflops_per_gpu"))[places]
    with np.errstate(invalid="ignore"):
        above: npt.NDArray[np.bool_] = tflops > peak_tflops(columns.reading.settings)
    return above


def _memory_bytes(columns: RecordColumns, places: IntArray) -> IntArray:
    """The largest figure that the log gives, reserved before allocated. DeepSpeed's GB and OLMo's MB are powers of 1,024."""
    units = {"mem_gib": GIB, "peak_mem_mb": MIB, "max_mem_allocated_gb": GIB, "mem_allocated_gb": GIB}
    for name, unit in units.items():
        values = columns.numbers(name)[places]
        if np.isfinite(values).any():
            return _counts(values * unit)
    return np.zeros(len(places), dtype=np.int64)


def _wall_clock(steps: pd.DataFrame) -> LogWallClock | None:
    """Over all neighbouring records of an attempt that both have a time stamp; undone steps cost but do not count."""
    wall_s, in_steps_s, num_steps = 0.0, 0.0, 0
    for _, part in steps.groupby("attempt"):
        seconds, jumps = np.diff(part["time_s"].to_numpy()), np.diff(part["step"].to_numpy())
        curve, times = ~part["superseded"].to_numpy()[1:], part["step_time_s"].to_numpy()[1:]
        known = np.isfinite(seconds) & np.isfinite(times) & (jumps > 0)
        wall_s += float(seconds[known].sum())
        in_steps_s += float((times * jumps)[known & curve].sum())
        num_steps += int(jumps[known & curve].sum())
    return LogWallClock(wall_s, in_steps_s, num_steps) if wall_s > 0 else None
