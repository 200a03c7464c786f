"""The JSON of ``hpctrain read-log FILE --json``: field names and units of the samples, None for what is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from hpctrain.analysis.logs.conditions import find_conditions
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.record_table import RecordTable
from hpctrain.analysis.logs.speed_conditions import TOTAL_OVER_AVERAGE_TOLERANCE

_FACT_KEYS = {"validation": "validation", "comm_row": "comm_rows", "microstep": "microsteps", "bar": "bars"}
"""Kind of fact, key of the list."""


def log_document(reading: LogReading) -> dict[str, object]:
    """The whole reading as plain values: no NaN, no infinity; ``iteration`` counts are of different iterations."""
    conditions = find_conditions(reading)
    records = [dict(row) for row in reading.records]
    told = records or _told_by_bars(reading)
    iterations = [step for step in (row.get("iteration", row.get("step")) for row in told) if isinstance(step, int)]
    document: dict[str, object] = {
        "file": Path(reading.file).name,
        "system": reading.system,
        "format": reading.format,
        "encoding": reading.encoding,
        "records": records,
        "record_count": len(told),
        "unique_iterations": len(set(iterations)),
        "first_iteration": iterations[0] if iterations else None,
        "last_iteration": iterations[-1] if iterations else None,
        "incomplete_records": [dict(row) for row in reading.incomplete_records],
        "flags": list(conditions.flags),
        "summary": dict(conditions.summary),
        "settings": dict(reading.settings),
        "tflops_convention": reading.tflops_convention,
        "copies_per_step": reading.copies_per_step,
        "damaged_lines": reading.damaged_lines,
        "num_lines": reading.num_lines,
        **_facts(reading),
    }
    plain = _plain(document)
    assert isinstance(plain, dict)
    return plain


def log_json(reading: LogReading) -> str:
    """The document as text, one record a line so that long logs stay readable."""
    document = log_document(reading)
    lines = [f" {json.dumps(key)}: {_pretty(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _pretty(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = ",\n  ".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in value)
        return f"[\n  {rows}\n ]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _told_by_bars(reading: LogReading) -> list[dict[str, object]]:
    """Bars with a loss are the records of trainers that print nothing else."""
    return [bar for bar in reading.fact_rows("bar") if "loss" in bar]


def _facts(reading: LogReading) -> dict[str, object]:
    """What is there besides records."""
    facts: dict[str, object] = {}
    for kind, key in _FACT_KEYS.items():
        rows = reading.facts.get(kind)  # type: ignore[call-overload]  # all are kinds of facts
        if rows:
            facts[key] = [dict(row) for row in rows]
    if "comm_rows" in facts:
        facts.update(_comm_facts(reading.fact_rows("comm_row")))
    for kind in ("profile", "final"):
        rows = reading.facts.get(kind)  # type: ignore[call-overload]
        if rows:
            facts[kind] = dict(rows[-1])
    if len(reading.engine):
        facts["engine"] = _engine(reading)
    timers = reading.fact_rows("timers")
    if len(timers):
        facts["timers_ms_at"] = {
            str(row["iteration"]): {name: value for name, value in row.items() if name != "iteration"} for row in timers
        }
    if isinstance(reading.settings.get("global_batch_size"), int):
        facts["global_batch_size"] = reading.settings["global_batch_size"]
    if any(attempt for attempt in reading.records.column("attempt")):
        facts["effective_records_last_attempt_wins"] = list(_effective(reading))
    return facts


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


def _effective(reading: LogReading) -> Iterator[list[object]]:
    """Iteration and attempt of the rows that count for the curve: of each iteration of a segment the last attempt."""
    last: dict[tuple[object, object], object] = {}
    for row in reading.records:
        last[row["segment"], row.get("iteration")] = row["attempt"]
    return ([iteration, attempt] for (_, iteration), attempt in last.items() if iteration is not None)


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
