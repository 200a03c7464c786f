"""The JSON of ``hpctrain read-log FILE --json``: field names and units of the samples, None for what is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.conditions import find_conditions
from hpctrain.analysis.logs.events import FactKind
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.record_columns import MAX_STEP, RecordColumns
from hpctrain.analysis.logs.record_table import RecordTable
from hpctrain.analysis.logs.speed_conditions import TOTAL_OVER_AVERAGE_TOLERANCE

_FACT_KEYS: dict[FactKind, str] = {
    "validation": "validation",
    "comm_row": "comm_rows",
    "microstep": "microsteps",
    "bar": "bars",
}
"""Kind of fact, key of the list."""
_LAST_FACTS: tuple[FactKind, ...] = ("profile", "final")
"""Kinds of which the last one counts."""


def write_log_json(reading: LogReading, file: TextIO) -> None:
    """Write the whole reading as JSON: no NaN, no infinity; ``iteration`` counts are of different iterations.

    Rows stand one a line, so that long logs stay readable, and are written one by one, so that millions of them need no memory.
    """
    for place, (key, value) in enumerate(_entries(reading)):
        file.write(f"{',' if place else '{'}\n {json.dumps(key)}: ")
        for piece in _pieces(value):
            file.write(piece)
    file.write("\n}\n")


class _Pairs:
    """Key and value of an object that is too long for a dictionary."""

    def __init__(self, items: Iterable[tuple[str, object]]) -> None:
        self.items = items


def _pieces(value: object) -> Iterator[str]:
    """The text of a value; of long ones piece by piece."""
    if isinstance(value, _Pairs):
        yield "{"
        for place, (key, item) in enumerate(value.items):
            yield f"{', ' if place else ''}{_text(str(key))}: {_text(item)}"
        yield "}"
    elif isinstance(value, RecordTable):
        for place, row in enumerate(value):
            yield f"{',' if place else '['}\n  {_text(row)}"
        yield "\n ]" if len(value) else "[]"
    elif isinstance(value, Iterator):
        yield "["
        for place, item in enumerate(value):
            yield f"{', ' if place else ''}{_text(item)}"
        yield "]"
    else:
        yield _text(value)


def _text(value: object) -> str:
    try:
        return _ENCODER.encode(value)
    except ValueError:  # NaN or infinity in it
        return _ENCODER.encode(_plain(value))


def _entries(reading: LogReading) -> Iterator[tuple[str, object]]:
    conditions = find_conditions(reading)
    yield "file", Path(reading.file).name
    yield "system", reading.system
    yield "format", reading.format
    yield "encoding", reading.encoding
    yield "records", reading.records
    yield from _counts(reading)
    yield "incomplete_records", reading.incomplete_records
    yield "flags", list(conditions.flags)
    yield "summary", dict(conditions.summary)
    yield "settings", dict(reading.settings)
    yield "tflops_convention", reading.tflops_convention
    yield "copies_per_step", reading.copies_per_step
    yield "damaged_lines", reading.damaged_lines
    yield "num_lines", reading.num_lines
    yield from _facts(reading)


def _counts(reading: LogReading) -> Iterator[tuple[str, object]]:
    """Of records; bars with a loss are the records of trainers that print nothing else."""
    if len(reading.records):
        steps, count = reading.records.numbers("iteration"), len(reading.records)
    else:
        bars = reading.fact_rows("bar")
        with_loss = bars.has("loss")
        steps, count = bars.numbers("step")[with_loss], int(with_loss.sum())
    steps = steps[np.abs(steps) <= MAX_STEP]
    yield "record_count", count
    yield "unique_iterations", len(np.unique(steps))
    yield "first_iteration", int(steps[0]) if len(steps) else None
    yield "last_iteration", int(steps[-1]) if len(steps) else None


def _facts(reading: LogReading) -> Iterator[tuple[str, object]]:
    """What is there besides records."""
    for kind, key in _FACT_KEYS.items():
        if rows := reading.facts.get(kind):
            yield key, rows
    if rows := reading.fact_rows("comm_row"):
        yield from _comm_facts(rows).items()
    for kind in _LAST_FACTS:
        if rows := reading.facts.get(kind):
            yield kind, rows[-1]
    if len(reading.engine):
        yield "engine", _engine(reading)
    if rows := reading.fact_rows("timers"):
        yield "timers_ms_at", _Pairs(_timers(rows))
    if isinstance(reading.settings.get("global_batch_size"), int):
        yield "global_batch_size", reading.settings["global_batch_size"]
    if reading.records.numbers("attempt").any():
        yield "effective_records_last_attempt_wins", _effective(reading)


def _timers(rows: RecordTable) -> Iterator[tuple[str, object]]:
    """The last timers of each iteration."""
    iterations = rows.numbers("iteration")
    for place in _last_of_each(iterations).tolist():
        row = rows[place]
        yield str(row.pop("iteration")), row


def _comm_facts(rows: RecordTable) -> dict[str, object]:
    """What a table of collectives says as a whole; DeepSpeed's average leaves out extremes, so total is not count x average."""
    by_place = [([row.get("op"), row.get("size")], row) for row in rows]
    return {
        "comm_row_count": len(rows),
        "ops": sorted({str(row["op"]) for row in rows}),
        "rows_to_mark_invalid": [place for place, row in by_place if row.get("invalid")],
        "rows_where_total_differs_from_count_times_avg_by_more_than_20_percent": [
            place for place, row in by_place if _differs(row.get("total_ms"), row.get("count"), row.get("avg_ms"))
        ],
    }


def _differs(total_ms: object, count: object, avg_ms: object) -> bool:
    """By more than ``TOTAL_OVER_AVERAGE_TOLERANCE`` of count x average."""
    if (
        not isinstance(total_ms, int | float)
        or not isinstance(count, int | float)
        or not isinstance(avg_ms, int | float)
    ):
        return False
    return abs(total_ms - count * avg_ms) > TOTAL_OVER_AVERAGE_TOLERANCE * abs(count * avg_ms)


def _engine(reading: LogReading) -> dict[str, object]:
    """The last that DeepSpeed's engine says, with the share of steps that it skipped."""
    row = dict(reading.engine[-1])
    step, skipped = row.pop("iteration"), row.get("skipped_total")
    engine = {"step": step, **{name: value for name, value in row.items() if name not in ("segment", "attempt")}}
    if isinstance(skipped, int) and isinstance(step, int) and step:
        engine["skipped_fraction"] = skipped / step
    return engine


def _effective(reading: LogReading) -> Iterator[list[int]]:
    """Iteration and attempt of the rows that count for the curve: of each iteration of a segment the last attempt."""
    records = reading.records
    segments, steps, attempts = (records.numbers(name) for name in ("segment", "iteration", "attempt"))
    known = np.abs(steps) <= MAX_STEP
    last = np.flatnonzero(known)[_last_of_each(segments[known] + 1j * RecordColumns(reading).progress[known])]
    return ([int(steps[place]), int(attempts[place])] for place in last)


def _last_of_each(values: npt.NDArray[np.number]) -> npt.NDArray[np.int64]:
    """Places of the last of equal values, in the order in which each value came first."""
    _, first = np.unique(values, return_index=True)
    _, from_end = np.unique(values[::-1], return_index=True)
    last: npt.NDArray[np.int64] = (len(values) - 1 - from_end)[np.argsort(first)]
    return last


def _plain(value: object) -> object:
    """Values that JSON knows; NaN and infinity become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    item = getattr(value, "item", None)  # a number of numpy
    return _plain(item()) if item is not None else str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
