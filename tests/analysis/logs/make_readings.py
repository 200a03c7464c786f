"""Readings made from a few values, as if a log had been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpctrain.analysis.logs.conditions import find_conditions
from hpctrain.analysis.logs.events import FactKind
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.record_table import RecordTable

FIRST_LINE = 10
"""Of the first record; one more for each that follows."""


def table_of(rows: Iterable[Mapping[str, object]]) -> RecordTable:
    """A table of rows that are no lines of a file; their line number is 0."""
    table = RecordTable()
    for row in rows:
        table.append(0, dict(row))
    return table


def make_reading(
    records: Iterable[Mapping[str, Any]] = (),
    *,
    system: str = "composed",
    facts: Mapping[FactKind, Sequence[tuple[int, dict[str, Any]]]] | None = None,
    incomplete: Sequence[dict[str, object]] = (),
    engine: Sequence[Mapping[str, Any]] = (),
    traits: Iterable[str] = (),
    settings: Mapping[str, object] | None = None,
    convention: str = "unknown",
) -> LogReading:
    """``facts``: lists of (line number, fields) by kind."""
    table = RecordTable()
    for place, record in enumerate(records):
        table.append(FIRST_LINE + place, {"segment": 0, "attempt": 0, **record})
    tables: dict[FactKind, RecordTable] = {}
    for kind, rows in (facts or {}).items():
        tables[kind] = RecordTable()
        for line_number, fields in rows:
            tables[kind].append(line_number, dict(fields))
    return LogReading(
        file="some.log",
        system=system,
        format=system,
        encoding="utf-8",
        records=table,
        incomplete_records=tuple(incomplete),
        facts=tables,
        engine=table_of(engine),
        traits=frozenset(traits),
        copies_per_step=1,
        formats_per_step=1,
        tflops_convention=convention,
        damaged_lines=0,
        num_lines=FIRST_LINE + len(table),
        settings=settings or {},
    )


def series(first: int = 1001, interval: int = 1, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Records of consecutive steps, each with one value of every column; ``...`` leaves a value out."""
    (length,) = {len(values) for values in columns.values()}
    return [
        {"iteration": first + place * interval}
        | {name: values[place] for name, values in columns.items() if values[place] is not ...}
        for place in range(length)
    ]


def flags_of(records: Any = (), **rest: Any) -> set[str]:
    return set(find_conditions(make_reading(records, **rest)).flags)


def attempts(*parts: tuple[int, int, list[int]], **columns: Any) -> list[dict[str, Any]]:
    """Records of (segment, attempt, steps)."""
    return [
        {"segment": segment, "attempt": attempt, "iteration": step, "loss": 3.0, **columns}
        for segment, attempt, steps in parts
        for step in steps
    ]
