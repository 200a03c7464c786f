"""Reads a log with one format alone, through the real line scanner, and compares it with a sample's JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, LogFormat, StepEvent
from hpctrain.analysis.logs.lines import LineScanner

OWN_SAMPLES = Path(__file__).parents[2] / "data" / "logs"


def events_of(log_format: LogFormat, path: Path) -> list[Event]:
    scanner = LineScanner(path, [log_format.markers])
    events: list[Event] = []
    for line, _ in scanner:
        events += log_format.read(line)
        scanner.follow = log_format.wants_next
    return events + list(log_format.end())


def events_of_text(log_format: LogFormat, text: str, folder: Path) -> list[Event]:
    path = folder / "some.log"
    path.write_bytes(text.encode())
    return events_of(log_format, path)


def steps(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [dict(event.fields) for event in events if isinstance(event, StepEvent)]


def incomplete(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [dict(event.fields) for event in events if isinstance(event, IncompleteEvent)]


def facts(events: Sequence[Event], kind: str) -> list[dict[str, Any]]:
    return [dict(event.fields) for event in events if isinstance(event, FactEvent) and event.kind == kind]


def samples(pattern: str) -> list[Any]:
    paths = sorted(OWN_SAMPLES.glob(f"{pattern}.json"))
    assert paths, f"no sample {pattern} in {OWN_SAMPLES}"
    return [pytest.param(path, id=path.stem) for path in paths]


def assert_fields(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Every field of the expected rows is there, to 1e-9, and None where None is expected."""
    assert len(found) == len(expected), found
    for row, wanted in zip(found, expected, strict=True):
        for name, value in wanted.items():
            if isinstance(value, float | int) and not isinstance(value, bool):
                assert row.get(name) == pytest.approx(value, rel=1e-9), (name, row)
            else:
                assert row.get(name) == value, (name, row)


def assert_sample(log_format: LogFormat, json_path: Path) -> list[Event]:
    """One line of records a row of ``expected.records``; facts by their plural name."""
    sample = json.loads(json_path.read_text())
    assert sample["provenance"] == "composed"
    assert sample["system"] == log_format.system
    events = events_of(log_format, json_path.with_suffix(".log"))
    expected = sample["expected"]
    assert len(expected["records"]) == expected["record_count"]
    assert_fields(steps(events), expected["records"])
    assert_fields(incomplete(events), expected.get("incomplete_records", []))
    for name, kind in (("validations", "validation"), ("finals", "final"), ("bars", "bar"), ("settings", "setting")):
        if name in expected:
            assert_fields(facts(events, kind), expected[name])
    return events
