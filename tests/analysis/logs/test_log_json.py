"""The JSON of a log: whole, plain, and written piece by piece."""

from __future__ import annotations

import json
import math
from io import StringIO
from typing import Any

import pytest

from hpctrain.analysis.logs.log_json import write_log_json
from tests.analysis.logs.make_readings import make_reading, series
from tests.analysis.logs.sample_files import log_json


class Pieces(StringIO):
    """A text stream that remembers how long the longest piece was, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = self.total = 0

    def write(self, text: str) -> int:
        self.longest = max(self.longest, len(text))
        self.total += len(text)
        return len(text)


def document(**reading: Any) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    loaded: dict[str, Any] = json.loads(log_json(make_reading(**reading)), parse_constant=refuse)
    return loaded


def test_each_record_stands_in_a_line_of_its_own() -> None:
    text = log_json(make_reading(series(loss=[2.5, 2.4, None])))
    assert [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if line.startswith('  {"')] == [
        {"segment": 0, "attempt": 0, "iteration": 1001, "loss": 2.5},
        {"segment": 0, "attempt": 0, "iteration": 1002, "loss": 2.4},
        {"segment": 0, "attempt": 0, "iteration": 1003, "loss": None},
    ]


def test_counts_are_of_different_iterations() -> None:
    rows = [*series(loss=[2.5, 2.4, 2.3]), {"iteration": 1003, "attempt": 1, "loss": 2.2}]
    found = document(records=rows)
    assert [found[name] for name in ("record_count", "unique_iterations", "first_iteration", "last_iteration")] == [
        4,
        3,
        1001,
        1003,
    ]
    assert found["effective_records_last_attempt_wins"] == [[1001, 0], [1002, 0], [1003, 1]]


def test_a_log_without_records_is_told_by_its_bars_with_a_loss() -> None:
    bars = [(1, {"step": 10, "loss": 2.5}), (2, {"step": 15}), (3, {"step": 20, "loss": None})]
    found = document(facts={"bar": bars})
    assert (found["record_count"], found["unique_iterations"], found["records"]) == (2, 2, [])
    assert (found["first_iteration"], found["last_iteration"]) == (10, 20)
    assert found["bars"] == [row for _, row in bars]


def test_the_last_timers_of_an_iteration_count() -> None:
    timers = [
        (1, {"iteration": 7, "forward": 1.5}),
        (2, {"iteration": 8, "forward": 2.5}),
        (3, {"iteration": 7, "step": 3.0}),
    ]
    assert document(facts={"timers": timers})["timers_ms_at"] == {"7": {"step": 3.0}, "8": {"forward": 2.5}}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_becomes_null(value: float) -> None:
    found = document(records=[{"iteration": 1, "loss": value}], settings={"tp": value, "names": {"a": [value, 1]}})
    assert found["records"][0]["loss"] is None
    assert found["settings"] == {"tp": None, "names": {"a": [None, 1]}}


def test_records_are_written_one_by_one() -> None:
    """No piece of 10,000 records' text is much longer than one record."""
    num_records = 10_000
    file = Pieces()
    write_log_json(make_reading(series(loss=[2 + place % 7 / 8 for place in range(num_records)])), file)
    assert file.total > 60 * num_records
    assert file.longest < 2000
