"""How the run inside a log went: its end, its attempts, gaps in steps and time, a batch that grows, signs of a hang."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.events import FactKind
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.record_columns import FloatArray, RecordColumns
from hpctrain.analysis.logs.unit_checks import whole_quotient

BoolArray = npt.NDArray[np.bool_]

MIN_MISSING_RECORDS = 8
"""In a row, to be a gap. Fewer are lost where many processes write into one file."""
LOG_GAP_FACTOR = 10.0
"""Time from record to record over what its steps need; an evaluation or a checkpoint takes a few steps' time."""
LOG_GAP_MIN_S = 600.0
"""And at least ten minutes: large checkpoints take minutes."""
BACKWARDS_S = 1.0
"""A time stamp may be older by so much than the one before: lines of several processes overtake each other."""
MIN_SHARE_OF_PLAN = 0.1
"""Of the planned steps, before a log is called ended early: a shorter one is an excerpt or a run that has just begun."""
HANG_FACTOR = 10.0
"""Steps' time without a record while the scheduler says that the job runs."""
HANG_MIN_S = 1800.0
"""And at least half an hour: the usual time-out of collectives, after which a hang would end as an error."""
RAMP_UP_RATIO = 1.05
"""Of the last batch over the first. Trainers that pack sequences by tokens print a batch that varies by a few per mille; the
steps of a ramp-up are larger."""
START_INTERVALS = 2
"""Equal wide intervals at the start of a log that make its interval at the start; one can be a lost record."""

_SYSTEMS_THAT_TELL_THE_BATCH = frozenset(
    {"bigscience", "gpt-neox", "megatron-bridge", "megatron-deepspeed", "megatron-lm", "nanotron", "primus"}
)
"""Print the batch, or what it follows from, in most versions; elsewhere its absence is the rule and says nothing."""
_SYSTEMS_OF_SINGLE_STEPS = frozenset({"nanogpt"})
"""Print one step in ten with the time of that one step; elsewhere a record is the mean over its interval."""
_STRONG_REASONS = ("TIMEOUT", "OOM", "NODE_FAIL")
"""Words of the scheduler, the kernel or the allocator; errors and cancellations beside them follow from them."""
_END_FLAGS = {"CRASH": "end_crash", "OOM": "end_oom", "TIMEOUT": "end_time_limit"}
_TAKEN_AWAY: tuple[FactKind, ...] = ("preemption", "requeue")
_CUT_TRAITS = frozenset({"truncated_last_line", "truncated_last_record"})


def run_flags(columns: RecordColumns) -> list[str]:
    """Ends, restarts, repeats, gaps, intervals, batch sizes, hangs."""
    reading = columns.reading
    end = run_end(reading)
    flags = [
        *_starts(columns),
        *_intervals(columns),
        *_time_stamps(columns),
        *_batch(columns),
    ]
    if end and end["reason"] in _END_FLAGS:
        flags.append(_END_FLAGS[str(end["reason"])])
    if seconds_without_progress(columns) is not None:
        flags.append("hang_suspected")
    elif _ended_early(columns, end):
        flags.append("ended_before_total_iterations")
    if len(reading.fact_rows("validation")):
        flags.append("validation_line")
    return flags


def run_end(reading: LogReading) -> dict[str, object] | None:
    """What ended the last attempt: the first strong reason after the last record, else the first of any kind.

    Tracebacks, cancelled steps and killed processes that follow the first one are its consequences. A job that was
    preempted or put back into the queue, without a record after that, is cancelled as far as this file knows.
    """
    ends = reading.fact_rows("end")
    last_record = max(reading.records.line_numbers, default=0)
    after = [row for row, line in zip(ends, ends.line_numbers, strict=True) if line > last_record]
    for row in after:
        if row["reason"] in _STRONG_REASONS:
            # The step's line often comes before the job's: the one with more to tell is taken.
            same = [other for other in after if other["reason"] == row["reason"]]
            return max(same, key=lambda other: len([value for value in other.values() if value is not None]))
    if after:
        return after[0]
    for kind in _TAKEN_AWAY:
        rows = reading.fact_rows(kind)
        for row, line in zip(rows, rows.line_numbers, strict=True):
            if line > last_record:
                return {**row, "reason": "CANCELLED", "cause": kind}
    return None


def times_apart(reading: LogReading, kind: FactKind) -> int:
    """How often something happened: lines of several nodes or of step and job with no record between them are one time."""
    lines = np.array(reading.fact_rows(kind).line_numbers, dtype=np.int64)
    return len(np.unique(np.searchsorted(np.array(reading.records.line_numbers), lines)))


def epoch_repeats(columns: RecordColumns) -> bool:
    """The counter of steps starts again with each epoch, so that equal numbers are different steps."""
    back = (np.diff(columns.iteration) < 0) & (np.diff(columns.group) == 0)
    return bool(back.any()) and bool((np.diff(columns.numbers("epoch")) > 0)[back].all())


def same_run(columns: RecordColumns, earlier: int, later: int) -> bool:
    """Two segments continue one run: they did the same steps at the same count of samples or tokens, or go on from there."""
    first, second = columns.segment == earlier, columns.segment == later
    if not _same_plan(columns, first, second):
        return False
    stamps = columns.time_stamp_s
    one, other = stamps[first & np.isfinite(stamps)], stamps[second & np.isfinite(stamps)]
    if len(one) and len(other) and other[0] < one[-1] - BACKWARDS_S:
        return False
    started_again = columns.iteration[second][:1] <= columns.log_interval
    return not (len(started_again) and started_again[0] and not len(columns.reading.fact_rows("checkpoint_loaded")))


def _same_plan(columns: RecordColumns, first: BoolArray, second: BoolArray) -> bool:
    """Nothing says that two parts of the records belong to different runs: planned steps, samples and tokens a step."""
    for name in ("total_iterations", "consumed_samples", "consumed_tokens"):
        values = columns.numbers(name)
        if name != "total_iterations":
            # A counter a step tells the batch, which a continued run keeps.
            with np.errstate(divide="ignore", invalid="ignore"):
                values = values / columns.iteration
        one, other = values[first & np.isfinite(values)], values[second & np.isfinite(values)]
        if len(one) and len(other) and abs(one[-1] / other[0] - 1) > 0.5:
            return False
    return True


def _starts(columns: RecordColumns) -> list[str]:
    if not len(columns):
        return []
    flags = ["iteration_repeats_per_epoch"] if epoch_repeats(columns) else []
    if columns.from_bars:
        return flags
    pairs = list(zip(np.unique(columns.segment)[:-1].tolist(), np.unique(columns.segment)[1:].tolist(), strict=True))
    continued = [same_run(columns, earlier, later) for earlier, later in pairs]
    if columns.attempt.any() or any(continued):
        flags.append("restart")
    if not all(continued):
        flags.append("two_runs_in_file")
    for segment_set in _runs(columns, continued):
        steps = columns.progress[np.isin(columns.segment, segment_set)]
        steps = steps[np.isfinite(steps)]
        starts = len(np.unique(columns.group[np.isin(columns.segment, segment_set)]))
        if starts > 1 and len(np.unique(steps)) < len(steps):
            return [*flags, "iteration_repeated"]
    return flags


def _runs(columns: RecordColumns, continued: list[bool]) -> list[list[int]]:
    """The segments of each run."""
    segments = np.unique(columns.segment).tolist()
    runs = [[segments[0]]]
    for segment, goes_on in zip(segments[1:], continued, strict=True):
        if goes_on:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs


def _intervals(columns: RecordColumns) -> list[str]:
    """The interval of the records, and gaps in it."""
    if columns.from_bars:
        return []
    jumps = columns.jumps()
    jumps = jumps[jumps > 0]
    if _interval_grew(columns, jumps):
        return ["log_interval_gt_1"]
    if len(jumps) and columns.iteration[0] == jumps[0]:
        jumps = np.concatenate((jumps[:1], jumps))  # From the start of the run to its first record.
    wide = int(np.argmax(jumps != jumps[0])) if len(jumps) and (jumps != jumps[0]).any() else len(jumps)
    if START_INTERVALS <= wide < len(jumps) and jumps[0] > 1 and np.median(jumps[wide:]) < jumps[0]:
        return ["log_interval_gt_1_at_start"]
    single = columns.reading.system in _SYSTEMS_OF_SINGLE_STEPS
    flags = ["log_interval_gt_1"] if columns.log_interval > 1 and not single else []
    return [*flags, "iteration_gaps"] if _has_gap(columns) else flags


def _interval_grew(columns: RecordColumns, jumps: FloatArray) -> bool:
    """The first steps of a run are printed one by one, later ones at an interval."""
    if len(jumps) <= START_INTERVALS or len(list(columns.groups())) > 1 or columns.iteration[0] > 1:
        return False
    usual = jumps[-1]
    singles = int(np.argmax(jumps > 1))
    later = jumps[singles + 1 :]
    # The jump to the first step of the interval is shorter than it.
    return bool(
        singles >= START_INTERVALS and usual > 1 and jumps[singles] <= usual and len(later) and (later == usual).all()
    )


def _has_gap(columns: RecordColumns) -> bool:
    """The jump after the very first record of a run is none: many trainers print step 1 whatever their interval."""
    for places in columns.groups():
        steps = columns.iteration[places]
        skipped = 1 if len(steps) and steps[0] <= 1 else 0
        if (np.diff(steps[skipped:]) > MIN_MISSING_RECORDS * columns.log_interval).any():
            return True
    return False


def _time_stamps(columns: RecordColumns) -> list[str]:
    flags = set()
    stamps = columns.time_stamp_s
    stamped = np.flatnonzero(np.isfinite(stamps))
    for place in stamped[1:][np.diff(stamps[stamped]) < -BACKWARDS_S]:
        # The stamps of another run in the same file may be older.
        before = stamped[np.searchsorted(stamped, place) - 1]
        one, other = columns.group == columns.group[before], columns.group == columns.group[place]
        if columns.group[before] == columns.group[place] or _same_plan(columns, one, other):
            flags.add("timestamps_not_monotonic")
            break
    for places in columns.groups():
        known = places[np.isfinite(stamps[places])]
        seconds = np.diff(stamps[known])
        steps = np.maximum(np.diff(columns.iteration[known]), 1)
        usable = np.isfinite(steps)
        if usable.sum() >= 2:
            usual = np.median(seconds[usable] / steps[usable])
            long = seconds[usable] > np.maximum(LOG_GAP_FACTOR * usual * steps[usable], LOG_GAP_MIN_S)
            if long.any():
                flags.add("log_gap")
    return sorted(flags)


def _batch(columns: RecordColumns) -> list[str]:
    sizes = columns.numbers("global_batch_size")
    for places in columns.groups():
        known = sizes[places][np.isfinite(sizes[places])]
        if len(known) and (np.diff(known) >= 0).all() and known[-1] >= RAMP_UP_RATIO * known[0]:
            return ["batch_size_ramp_up"]
    tells = columns.reading.system in _SYSTEMS_THAT_TELL_THE_BATCH and columns.has("total_iterations")
    return ["global_batch_size_unknown"] if tells and not _batch_is_known(columns) else []


def _batch_is_known(columns: RecordColumns) -> bool:
    """Printed, or to be had from samples, tokens or rates."""
    if "global_batch_size" in columns.reading.settings:
        return True
    names = ("global_batch_size", "consumed_samples", "consumed_tokens", "tokens_per_s", "tokens_per_s_per_gpu")
    if any(columns.has(name) for name in names):
        return True
    product = columns.numbers("samples_per_s") * columns.step_time_s
    product = product[np.isfinite(product)]
    return len(product) > 0 and whole_quotient(float(np.median(product)), 1) is not None


def _ended_early(columns: RecordColumns, end: dict[str, object] | None) -> bool:
    """A log from the first step on that stops before the last, without a word of the reason."""
    steps, totals = columns.iteration, columns.numbers("total_iterations")
    known = np.isfinite(steps) & np.isfinite(totals)
    if end or not known.any() or columns.reading.traits & _CUT_TRAITS:
        return False
    first, last, total = steps[known][0], steps[known][-1], totals[known][-1]
    return bool(first <= columns.log_interval and MIN_SHARE_OF_PLAN * total <= last < total)


def seconds_without_progress(columns: RecordColumns) -> float | None:
    """Seconds that the scheduler called the job running after the last record, if they are too many for its steps."""
    signs = columns.reading.fact_rows("watchdog")
    last_record = max(columns.reading.records.line_numbers, default=0)
    times = [
        datetime.fromisoformat(str(row["time"])).timestamp()
        for row, line in zip(signs, signs.line_numbers, strict=True)
        if line > last_record and row.get("state") == "running" and row.get("time")
    ]
    if len(times) < 2 or not len(columns):
        return None
    silent_s = max(times) - min(times)
    usual = usual_step_time(columns.step_time_s)
    limit = max(HANG_MIN_S, HANG_FACTOR * usual * columns.log_interval if usual else HANG_MIN_S)
    return silent_s if silent_s > limit else None


def usual_step_time(times: FloatArray) -> float | None:
    """The median of the known ones."""
    known = times[np.isfinite(times)]
    return float(np.median(known)) if len(known) else None
