"""One row for each optimizer step and attempt, from lines of several ranks, several wordings and several starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import le, lt
from typing import Any

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.events import Value
from hpctrain.analysis.logs.record_table import NUM_NEW_ROWS, Column, RecordTable, part_of, value_at
from hpctrain.analysis.logs.unit_checks import SAMPLES_TOLERANCE, check_samples_per_s, samples_per_s_agree

Row = dict[str, object]

NUM_RECENT_STEPS = 512
"""So far may ranks and wordings lag behind each other; fewer than the rows that can still be changed."""
assert NUM_RECENT_STEPS < NUM_NEW_ROWS

SAME_SPEED_TOLERANCE = 0.05
"""Between ranks that print the same step; the first step after a restart is slower by more."""
SAME_MOMENT_S = 120.0
"""Ranks print a step within this time; a job does not restart within it and reach the step again."""
ANOTHER_RUN_S = 24 * 3600.0
"""A time stamp so far before the last one is another run's: more than time zones and clocks that are set."""

_ROUNDED_S = 0.0051
"""Bridge prints seconds with two decimals, the step's line milliseconds with one."""
_STATE_FIELDS = ("loss", "consumed_samples", "consumed_tokens", "learning_rate", "global_batch_size")
_SPEED_FIELDS = ("time_per_iteration_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu")
_RATE_FIELDS = ("global_batch_size", "time_per_iteration_s", "samples_per_s")
_ENGINE_NAMES = {
    "skipped_total": "ds_skipped_total",
    "samples_per_s_running_avg": "samples_per_s_running_avg",
    "ds_curr_samples_per_s": "ds_curr_samples_per_s",
    "mem_allocated_gb": "mem_allocated_gb",
    "max_mem_allocated_gb": "max_mem_allocated_gb",
    "timestamp": "timestamp",
}


@dataclass(slots=True)
class _Recent:
    """A step that may still be told again."""

    index: int
    num_lines_of: dict[int, int]
    """By format."""
    labels: set[str] = field(default_factory=set)


class StepJoiner:
    """Takes what formats tell in the order of the file; ``records`` is complete after ``finish``."""

    def __init__(self) -> None:
        self.records = RecordTable()
        self.num_steps_of: dict[int, int] = {}
        """By format: steps that it told first or with the others."""
        self.copies_per_step = self.formats_per_step = 1
        self._recent: dict[object, _Recent] = {}
        self._segment = 0
        self._attempt = 0
        self._segment_fields: Mapping[str, object] = {}
        self._num_in_attempt = 0
        self._num_in_segment = 0
        self._another_attempt = False
        self._another_segment = False
        self._last: Row = {}
        self._last_iteration: int | None = None
        self._waiting_engine: dict[int, Row] = {}
        self._overflow = False
        self._any_overflow = False

    @property
    def last_iteration(self) -> int | None:
        """Of the last row."""
        return self._last_iteration

    def is_told(self, fields: Mapping[str, Value]) -> bool:
        """True if a row of this attempt has the step already."""
        return not self._another_attempt and not self._another_segment and _key(fields) in self._recent

    def begin_attempt(self) -> None:
        """What follows belongs to another start of the job, if steps follow."""
        self._another_attempt = True

    def begin_segment(self, fields: Mapping[str, object]) -> None:
        """What follows belongs to another run; ``fields`` are its settings, put into each of its rows."""
        self._another_segment = True
        self._segment_fields = fields

    def add_overflow(self) -> None:
        """The step that is told next was skipped."""
        self._overflow = self._any_overflow = True

    def add_engine(self, fields: Mapping[str, object]) -> None:
        """What DeepSpeed's engine says of a step goes to that step's row, whether the row is there already or comes later."""
        iteration = fields.get("iteration")
        if not isinstance(iteration, int):
            return
        recent = self._recent.get(iteration) or self._recent.get((self._last.get("epoch"), iteration))
        row = self.records.new_row(recent.index) if recent else None
        if row is not None and not self._another_attempt:
            _put_engine(row, fields)
            return
        self._waiting_engine.setdefault(iteration, {}).update(fields)
        if len(self._waiting_engine) > NUM_RECENT_STEPS:
            del self._waiting_engine[next(iter(self._waiting_engine))]

    def add_step(self, format_place: int, line_number: int, label: str, fields: Mapping[str, Value]) -> None:
        """A line about a step: a new row, or one more word on a row that exists."""
        label = str(fields.get("rank_label") or label)
        key = _key(fields)
        recent = self._recent.get(key) if key is not None else None
        if recent is not None and not self._another_attempt and not self._another_segment:
            row = self.records.new_row(recent.index)
            if row is not None and _is_same_step(row, recent, format_place, label, fields):
                self._merge(row, recent, format_place, label, fields)
                return
        if self._follows_its_speed(fields):
            self._fill_speed_row(format_place, label, fields)
            return
        self._begin_what_is_due(fields)
        self._append(format_place, line_number, label, key, fields)

    def add_to_last(self, fields: Mapping[str, object]) -> None:
        """A line of its own that tells more of the row before it."""
        for name, value in fields.items():
            if self._last.get(name) is None:
                self._last[name] = value

    def redraw(self, fields: Mapping[str, Value]) -> bool:
        """Replace what the last row says by what the same bar shows now; False if another row came between."""
        if self._another_attempt or self._another_segment or not self._last or _key(self._last) != _key(fields):
            return False
        self._last.update((name, value) for name, value in fields.items() if value is not None)
        return True

    def add_steps(
        self, format_place: int, line_numbers: npt.NDArray[np.int64], label: str, columns: Mapping[str, Column]
    ) -> bool:
        """The same as ``add_step`` for each row; False, and nothing is added, if any of them is not simply the next step."""
        iterations, settings = columns.get("iteration"), self._segment_fields
        if not isinstance(iterations, np.ndarray) or not self._follow_on(iterations, columns):
            return False
        if any(isinstance(value, list) for value in settings.values()):
            return False  # Among columns it would be one value a row.
        names: dict[str, Any] = {**columns, **{name: settings[name] for name in settings if name not in columns}}
        names |= {"segment": self._segment, "attempt": self._attempt}
        index, count = len(self.records), len(line_numbers) - 1
        self.records.append_columns(
            line_numbers[:-1], {name: part_of(values, slice(-1)) for name, values in names.items()}
        )
        first = max(0, count - NUM_RECENT_STEPS)
        if first:
            self._recent.clear()
        for place, iteration in enumerate(iterations[first:-1].tolist(), index + first):
            self._recent[iteration] = _Recent(place, {format_place: 1}, {label})
        self.num_steps_of[format_place] = self.num_steps_of.get(format_place, 0) + count
        self._num_in_attempt += count
        self._num_in_segment += count
        # The last row stays at hand for what follows it.
        last = {name: value_at(values, -1) for name, values in columns.items()}
        self._append(format_place, int(line_numbers[-1]), label, last["iteration"], last)
        while len(self._recent) > NUM_RECENT_STEPS:
            del self._recent[next(iter(self._recent))]
        return True

    def _follow_on(self, iterations: npt.NDArray[np.generic], columns: Mapping[str, Column]) -> bool:
        """True if each row is a step after the one before it, of the same attempt, and nothing is known of it yet."""
        due = self._another_attempt or self._another_segment or self._overflow
        if due or self._last_iteration is None or self._last.get("iteration") is None or "epoch" in columns:
            return False
        steps = [self._last_iteration, *iterations.tolist()]
        if not all(map(lt, steps, steps[1:])):
            return False
        if not (self._recent.keys().isdisjoint(steps[1:]) and self._waiting_engine.keys().isdisjoint(steps[1:])):
            return False
        stamps, last_stamp = columns.get("timestamp"), self._last.get("timestamp")
        if isinstance(stamps, list):
            days = [str(stamp)[:10] for stamp in ([last_stamp] if isinstance(last_stamp, str) else []) + stamps]
            if not all(map(le, days, days[1:])):
                return False
        return samples_per_s_agree(*(columns.get(name) for name in _RATE_FIELDS))

    def finish(self) -> None:
        """Complete the rows that say nothing about overflows, if the log speaks of them at all."""
        if self._any_overflow:
            self.records.fill("overflow_line_before", False)

    def _begin_what_is_due(self, fields: Mapping[str, Value]) -> None:
        iteration = fields.get("iteration")
        goes_back = (
            isinstance(iteration, int) and self._last_iteration is not None and iteration <= self._last_iteration
        )
        epoch, last_epoch = fields.get("epoch"), self._last.get("epoch")
        if isinstance(epoch, int | float) and isinstance(last_epoch, int | float):
            goes_back = epoch < last_epoch or (goes_back and epoch == last_epoch)
        other_total = fields.get("total_iterations") != self._last.get("total_iterations")
        if (goes_back and other_total and fields.get("total_iterations") is not None) or _is_long_before(
            fields, self._last
        ):
            self._another_segment = True
        if self._another_segment and self._num_in_segment:
            self._segment += 1
            self._attempt = self._num_in_attempt = self._num_in_segment = 0
            self._forget()
        elif (self._another_attempt or goes_back) and self._num_in_attempt:
            self._attempt += 1
            self._num_in_attempt = 0
            self._forget()
        self._another_attempt = self._another_segment = False

    def _forget(self) -> None:
        """Another start tells its steps anew."""
        self._recent.clear()
        self._last_iteration = None

    def _append(
        self, format_place: int, line_number: int, label: str, key: object, fields: Mapping[str, Value]
    ) -> None:
        row: Row = dict(fields)
        if label:
            row["rank_label"] = label
        for name, value in self._segment_fields.items():
            row.setdefault(name, value)
        row["segment"], row["attempt"] = self._segment, self._attempt
        put_checked_rate(row, fields)
        if self._overflow:
            row["overflow_line_before"], self._overflow = True, False
        index = len(self.records)
        self.records.append(line_number, row)
        self._register(format_place, label, key, index)
        iteration = fields.get("iteration")
        if isinstance(iteration, int):
            if waiting := self._waiting_engine.pop(iteration, None):
                _put_engine(row, waiting)
            self._last_iteration = iteration
        self._last = row
        self._num_in_attempt += 1
        self._num_in_segment += 1

    def _register(self, format_place: int, label: str, key: object, index: int) -> None:
        self.num_steps_of[format_place] = self.num_steps_of.get(format_place, 0) + 1
        if key is None:
            return
        self._recent[key] = _Recent(index, {format_place: 1}, {label})
        if len(self._recent) > NUM_RECENT_STEPS:
            del self._recent[next(iter(self._recent))]

    def _merge(self, row: Row, recent: _Recent, format_place: int, label: str, fields: Mapping[str, Value]) -> None:
        """Ranks are never added up: the first line of a wording stands, and later ones tell only what it has no value for.

        So the loss comes from the last stage of a pipeline, where the first one prints a placeholder. Of two wordings the richer
        one wins.
        """
        lines = recent.num_lines_of
        lines[format_place] = lines.get(format_place, 0) + 1
        recent.labels.add(label)
        self.copies_per_step = max(self.copies_per_step, lines[format_place])
        if lines[format_place] > 1:
            _fill_missing(row, fields)
            return
        self.num_steps_of[format_place] = self.num_steps_of.get(format_place, 0) + 1
        self.formats_per_step = max(self.formats_per_step, len(lines))
        richer = sum(value is not None for value in fields.values()) > sum(
            value is not None for name, value in row.items() if name not in ("segment", "attempt", "rank_label")
        )
        for name, value in fields.items():
            if row.get(name) is None or (richer and value is not None):
                row[name] = value

    def _follows_its_speed(self, fields: Mapping[str, Value]) -> bool:
        """Megatron-Bridge tells time and speed of a step, without its number, in a line of their own before the step's line."""
        speed = self._last
        if fields.get("iteration") is None or self._another_attempt or self._another_segment:
            return False
        if not speed or speed.get("iteration") is not None or "epoch" in speed:
            return False
        told, printed = speed.get("time_per_iteration_s"), fields.get("time_per_iteration_s")
        return (
            isinstance(told, int | float)
            and isinstance(printed, int | float)
            and abs(told - printed) <= _ROUNDED_S
            and "tflops_per_gpu" not in fields
        )

    def _fill_speed_row(self, format_place: int, label: str, fields: Mapping[str, Value]) -> None:
        self._last.update(
            {name: value for name, value in fields.items() if value is not None or name not in self._last}
        )
        if label:
            self._last["rank_label"] = label
        iteration = fields["iteration"]
        self._recent[iteration] = _Recent(len(self.records) - 1, {format_place: 1}, {label})
        self._last_iteration = iteration if isinstance(iteration, int) else None


def put_checked_rate(row: Row, fields: Mapping[str, Value]) -> None:
    """Keep a rate that contradicts batch / time beside the one that follows."""
    rate, batch, time_s = (
        fields.get("samples_per_s"),
        fields.get("global_batch_size"),
        fields.get("time_per_iteration_s"),
    )
    if not isinstance(rate, float) or not isinstance(batch, int) or not isinstance(time_s, float):
        return
    if abs(rate * time_s - batch) <= SAMPLES_TOLERANCE * batch:
        return  # As nearly all do; what follows takes ten times as long.
    check = check_samples_per_s(batch, time_s, rate)
    if not check.consistent and check.samples_per_s is not None:
        row["samples_per_s"] = round(check.samples_per_s, 4)
        row["samples_per_s_printed"] = check.samples_per_s_printed


def _key(fields: Mapping[str, object]) -> object:
    """What names a step: its number, its epoch where trainers print nothing else, both where they count anew in each epoch."""
    iteration, epoch = fields.get("iteration"), fields.get("epoch")
    if epoch is None:
        return iteration
    return (epoch, iteration)


def _fill_missing(row: Row, fields: Mapping[str, Value]) -> None:
    """Set what the row has no value for; a NaN that stood in the log stays one."""
    for name, value in fields.items():
        if value is not None and name in row and row[name] is None and not row.get(f"{name}_is_nan"):
            row[name] = value


def _put_engine(row: Row, fields: Mapping[str, object]) -> None:
    for name, own_name in _ENGINE_NAMES.items():
        if fields.get(name) is not None:
            row.setdefault(own_name, fields[name])


def _is_same_step(row: Row, recent: _Recent, format_place: int, label: str, fields: Mapping[str, Value]) -> bool:
    """True if the line tells of the row's step again; False if the step was done again after a restart.

    Another wording, or another process within the same moment, is the same step. The same process, or lines without labels,
    must agree in loss and progress, and in speed within ``SAME_SPEED_TOLERANCE``. Other planned steps are another run's.
    """
    plans = row.get("total_iterations"), fields.get("total_iterations")
    if None not in plans and plans[0] != plans[1]:
        return False
    if fields.get("iteration") is None:
        # Epochs are rounded: only the same values in all, of a loss that is one, make a copy.
        return bool(fields.get("loss")) and all(row.get(name) == value for name, value in fields.items())
    if format_place not in recent.num_lines_of:
        return True
    apart_s = _seconds_apart(row, fields)
    if apart_s is not None and apart_s > SAME_MOMENT_S:
        return False
    if label not in recent.labels or (apart_s is not None and apart_s <= 2.0):
        return True
    if any(row.get(name) != fields.get(name) for name in _STATE_FIELDS if name in fields):
        return False
    for name in _SPEED_FIELDS:
        old, new = row.get(name), fields.get(name)
        if (
            isinstance(old, int | float)
            and isinstance(new, int | float)
            and abs(new - old) > SAME_SPEED_TOLERANCE * abs(old)
        ):
            return False
    return True


def _seconds_apart(row: Mapping[str, object], fields: Mapping[str, Value]) -> float | None:
    old, new = row.get("timestamp"), fields.get("timestamp")
    if old is None or new is None:
        return None
    if old == new:
        return 0.0
    first, second = _moment(old), _moment(new)
    return None if first is None or second is None else abs((second - first).total_seconds())


def _is_long_before(fields: Mapping[str, Value], last: Mapping[str, object]) -> bool:
    """True if the time stamp lies more than ``ANOTHER_RUN_S`` before the last one."""
    new, old = fields.get("timestamp"), last.get("timestamp")
    if not isinstance(new, str) or not isinstance(old, str) or new[:10] >= old[:10]:
        return False
    first, second = _moment(old), _moment(new)
    return first is not None and second is not None and (first - second).total_seconds() > ANOTHER_RUN_S


def _moment(text: object) -> datetime | None:
    """The moment of an ISO time stamp, without time zone; None for any other text."""
    try:
        return datetime.fromisoformat(str(text).replace(",", ".")).replace(tzinfo=None)
    except ValueError:
        return None
