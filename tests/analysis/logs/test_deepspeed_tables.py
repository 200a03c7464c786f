"""The comms logger's table by the names in its head, and the head of the flops profiler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpctrain.analysis.logs.deepspeed_tables import DeepspeedTablesFormat
from hpctrain.analysis.logs.events import Event, Line
from tests.analysis.logs.format_driver import OWN_SAMPLES, assert_fields, events_of, facts

HEAD = "Comm. Op  Message Size  Count  Total Latency(ms)  Avg Latency(ms)  tput_avg (Gbps)  busbw_avg (Gbps)"
PROFILE = "-------------------------- DeepSpeed Flops Profiler --------------------------"


def read(*texts: str, whole: bool = True) -> list[Event]:
    log_format = DeepspeedTablesFormat()
    events: list[Event] = []
    for number, text in enumerate(texts, start=1):
        if number == 1 or log_format.wants_next:
            events += log_format.read(Line(number, text, whole=whole or number < len(texts)))
    return events + list(log_format.end())


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        pytest.param(
            "  4.0 KB   25   980.95   0.33   0.11   0.12",
            {
                "size": "4.0 KB",
                "size_bytes": 4096,
                "count": 25,
                "total_ms": 980.95,
                "busbw_gbps": 0.12,
                "invalid": False,
            },
            id="blank-before-the-unit",
        ),
        pytest.param(
            "  0B   68   6248.29   14.28   0.00   0.00",
            {"size": "0B", "size_bytes": 0, "count": 68, "avg_ms": 14.28, "tput_gbps": 0.0, "invalid": False},
            id="no-blank",
        ),
        pytest.param(
            "  874.0 MB   1650   -259904.95   246.25   59.55   59.53",
            {"total_ms": -259904.95, "avg_ms": 246.25, "invalid": True},
            id="negative-total-is-invalid",
        ),
        pytest.param(
            "  954.38 MB  2  1.00  0.50  1.00  1.00", {"size": "954.38 MB", "size_bytes": 1000739963}, id="two-decimals"
        ),
    ],
)
def test_a_row_has_the_fields_of_the_head(row: str, fields: dict[str, Any]) -> None:
    (found,) = facts(read(HEAD, "all_reduce", row), "comm_row")
    assert found["op"] == "all_reduce"
    assert {name: found[name] for name in fields} == fields


def test_an_op_in_front_of_its_row_is_read_too() -> None:
    (found,) = facts(read(HEAD, "broadcast  2.0 MB  1  2.00  2.00  8.00  8.00"), "comm_row")
    assert (found["op"], found["size_bytes"]) == ("broadcast", 2097152)


@pytest.mark.parametrize(
    ("row", "whole"),
    [
        pytest.param("  4.0 KB   25   980.95", True, id="columns-missing"),
        pytest.param("  4.0 KB   25   980.95   0.33   0.11   0.1", False, id="last-number-cut"),
        pytest.param("  4.0 KB   25   980.95   fast   0.11   0.12", True, id="word-for-a-number"),
    ],
)
def test_a_damaged_row_is_no_row(row: str, whole: bool) -> None:
    assert facts(read(HEAD, "all_reduce", row, whole=whole), "comm_row") == []


def test_an_unknown_column_keeps_its_words() -> None:
    events = read("Comm. Op  Message Size  Count  Jitter lat(ms)", "all_reduce", "  4.0 B  2  0.25")
    assert facts(events, "comm_row")[0]["jitter_lat_ms"] == 0.25


def test_a_foreign_line_ends_the_table() -> None:
    log_format = DeepspeedTablesFormat()
    list(log_format.read(Line(1, HEAD)))
    assert log_format.wants_next
    list(log_format.read(Line(2, "iteration 5/ 10 | loss")))
    assert not log_format.wants_next


@pytest.mark.parametrize("name", ["deepspeed_comms_stragglers_two_heads"])
def test_the_composed_tables(name: str) -> None:
    path = OWN_SAMPLES / f"{name}.json"
    events = events_of(DeepspeedTablesFormat(), path.with_suffix(".log"))
    assert_fields(facts(events, "comm_row"), json.loads(path.read_text())["expected"]["comm_rows"])


def test_the_composed_profile() -> None:
    path = OWN_SAMPLES / "deepspeed_flops_profiler_whole_head.json"
    expected = json.loads(path.read_text())["expected"]["profile"]
    (found,) = facts(events_of(DeepspeedTablesFormat(), path.with_suffix(".log")), "profile")
    assert set(found) == set(expected)
    assert_fields([found], [expected])


def test_a_profile_that_the_file_cuts_gives_what_is_certain() -> None:
    events = read(PROFILE, "Profile Summary at step 2:", "world size:   128", "params per gpu:   2318.5", whole=False)
    assert facts(events, "profile") == [{"step": 2, "world_size": 128}]


def test_a_profile_without_an_end_stops_after_sixty_lines() -> None:
    log_format = DeepspeedTablesFormat()
    list(log_format.read(Line(1, PROFILE)))
    events = [event for number in range(2, 70) for event in log_format.read(Line(number, "world size:  8"))]
    assert facts(events, "profile") == [{"world_size": 8}]
    assert not log_format.wants_next


def test_a_unit_that_the_field_cannot_have_gives_no_value() -> None:
    events = read(PROFILE, "fwd latency:   3.0 parsecs", "fwd MACs per GPU:   2.0 X", "world size:   8")
    assert facts(events, "profile") == [{"fwd_latency_s": None, "fwd_macs_per_gpu": None, "world_size": 8}]
