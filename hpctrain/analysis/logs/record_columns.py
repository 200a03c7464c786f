"""The columns of a log's records as arrays, with the runs and attempts inside the file told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.log_reading import LogReading

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_STEP = 2**53
"""Beyond it a step number is damage, and a float no longer exact."""
_RATES = ("samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "ds_curr_samples_per_s")


@dataclass(frozen=True)
class RecordColumns:
    """All records of one file by column, each of shape (num_records,); what a record lacks is NaN."""

    reading: LogReading

    def __len__(self) -> int:
        return len(self.reading.records)

    def numbers(self, name: str) -> FloatArray:
        """One column."""
        if name not in self._names:
            return np.full(len(self), np.nan)
        return self.reading.records.numbers(name)

    def has(self, name: str) -> bool:
        """At least one record has a usable number of this name."""
        return name in self._names and bool(np.isfinite(self.numbers(name)).any())

    def true(self, name: str) -> npt.NDArray[np.bool_]:
        """Where a mark such as ``loss_is_nan`` stands."""
        if name not in self._names:
            return np.zeros(len(self), dtype=np.bool_)
        return self.reading.records.true(name)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.reading.records.names)

    @cached_property
    def iteration(self) -> FloatArray:
        """The optimizer step."""
        return self.numbers("iteration")

    @cached_property
    def loss(self) -> FloatArray:
        """NaN where the log has none, and where it has NaN."""
        return self.numbers("loss")

    @cached_property
    def segment(self) -> IntArray:
        """Runs in the file, from 0."""
        return np.nan_to_num(self.numbers("segment")).astype(np.int64)

    @cached_property
    def attempt(self) -> IntArray:
        """Starts of one run, from 0."""
        return np.nan_to_num(self.numbers("attempt")).astype(np.int64)

    @cached_property
    def group(self) -> IntArray:
        """Starts of any run, from 0 in the order of the file: segment and attempt together."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        changes = (np.diff(self.segment) != 0) | (np.diff(self.attempt) != 0)
        return np.concatenate(([0], np.cumsum(changes)))

    def groups(self) -> Iterator[IntArray]:
        """The places of the records of each group, one array a group."""
        if len(self):
            yield from np.split(np.arange(len(self)), np.flatnonzero(np.diff(self.group)) + 1)

    @cached_property
    def step_time_s(self) -> FloatArray:
        """Seconds of a step where the log states them, as such or as steps/s."""
        times = self.numbers("time_per_iteration_s")
        with np.errstate(divide="ignore"):
            return np.where(np.isfinite(times), times, 1 / self.numbers("batches_per_s"))

    @cached_property
    def pace(self) -> FloatArray:
        """Seconds of a step of the largest batch, or, in a log that states only rates, what is proportional to them: 1 / rate."""
        if np.isfinite(self.step_time_s).any():
            batch = self.numbers("global_batch_size")
            with np.errstate(all="ignore"):
                to_largest = np.fmax.reduce(batch, initial=0.0) / batch
            return np.where(np.isfinite(to_largest) & (to_largest > 0), to_largest, 1.0) * self.step_time_s
        for name in _RATES:
            if self.has(name):
                with np.errstate(divide="ignore"):
                    return 1 / self.numbers(name)
        return self.step_time_s

    @cached_property
    def time_stamp_s(self) -> FloatArray:
        """Seconds since 1970 where the record has a time stamp with a date; a stamp without a zone is taken for UTC."""
        if "timestamp" not in self._names:
            return np.full(len(self), np.nan)
        return np.array([_seconds(value) for value in self.reading.records.column("timestamp")], dtype=np.float64)

    @cached_property
    def log_interval(self) -> int:
        """Steps from one record to the next: the most frequent inside the groups, else the smallest; 1 if no two records tell."""
        forward = self.jumps(with_incomplete=True)
        forward = forward[forward > 0]
        if not len(forward):
            return 1
        jumps, counts = np.unique(forward, return_counts=True)
        return int(min(jumps[np.argmax(counts)], MAX_STEP))

    def jumps(self, with_incomplete: bool = False) -> FloatArray:
        """Steps from record to record inside the groups; with the cut-off records between them, if asked for."""
        cut = [row.get("iteration") for row in self.reading.incomplete_records]
        last_group = self.group[-1] if len(self) else 0
        parts = []
        for places in self.groups():
            steps = self.iteration[places]
            if with_incomplete and cut and np.isfinite(steps).any():
                first, last = float(np.nanmin(steps)), float(np.nanmax(steps))
                if len(places) == 1 and self.group[places[0]] == last_group:
                    last = float("inf")  # The file ends in a record, and no other pair tells.
                inside = [float(step) for step in cut if isinstance(step, int) and first < step < last]
                steps = np.unique(np.concatenate((steps, inside)))
            parts.append(np.diff(steps))
        return np.concatenate(parts) if parts else np.zeros(0)

    @cached_property
    def from_bars(self) -> bool:
        """The records are looks at a progress bar: taken at any step, and a bar starts again for each epoch or evaluation."""
        return 0 < len(self) <= len(self.reading.fact_rows("bar"))

    @cached_property
    def progress(self) -> FloatArray:
        """The optimizer step; where steps are counted anew in each epoch, what grows over the epochs."""
        steps, epochs = self.iteration, self.numbers("epoch")
        if not np.array_equal(epochs, np.round(epochs)) or not np.isfinite(steps).all():
            return steps  # None, or a fraction of the data that is told beside a step.
        anew = (np.diff(epochs) > 0) & (np.diff(steps) <= 0) & (np.diff(self.group) == 0)
        return epochs * (steps.max() + 1) + steps if anew.any() else steps

    @cached_property
    def superseded(self) -> npt.NDArray[np.bool_]:
        """Records of a step that a later attempt of the same run did again."""
        superseded = np.zeros(len(self), dtype=np.bool_)
        for segment in np.unique(self.segment):
            places = np.flatnonzero(self.segment == segment)
            earliest = np.inf
            for attempt in np.unique(self.attempt[places])[::-1]:
                own = places[self.attempt[places] == attempt]
                superseded[own] = self.progress[own] >= earliest
                starts = self.progress[own][np.isfinite(self.progress[own])]
                earliest = min(earliest, float(starts.min())) if len(starts) else earliest
        return superseded

    @cached_property
    def first_of_group(self) -> npt.NDArray[np.bool_]:
        """The first record of each start, which pays for the start."""
        if not len(self):
            return np.zeros(0, dtype=np.bool_)
        return np.concatenate(([True], np.diff(self.group) != 0))

    def place_name(self, place: int) -> str:
        """The step of a record for the name of a condition; its position where the log has no step."""
        step = self.iteration[place]
        return str(int(step)) if np.isfinite(step) else f"record_{place + 1}"


def _seconds(value: object) -> float:
    if not isinstance(value, str):
        return float("nan")
    try:
        time = datetime.fromisoformat(value.replace(",", "."))
    except ValueError:
        return float("nan")
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
