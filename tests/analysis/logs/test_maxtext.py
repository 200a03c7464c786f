from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.maxtext import MaxtextFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps


@pytest.mark.parametrize("json_path", samples("maxtext_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(MaxtextFormat(), json_path)


def test_evaluation_is_told_apart(tmp_path: Path) -> None:
    text = "eval metrics after step: 9, loss=10.400, total_weights=98304\n"
    events = events_of_text(MaxtextFormat(), text, tmp_path)
    assert facts(events, "validation") == [{"iteration": 9, "val_loss": 10.4}]
    assert len(events) == 1
    assert events_of_text(MaxtextFormat(), "eval metrics after step: 9, loss=10.4", tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("Last completed step: 5", id="other-program"),
        pytest.param("completed step: 5, loss: 2.0", id="no-time"),
        pytest.param("completed step: inventory", id="a-name"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    assert events_of_text(MaxtextFormat(), f"{line}\n", tmp_path) == []


def test_zero_rates_are_missing(tmp_path: Path) -> None:
    text = (
        "completed step: 0, seconds: 0.000, TFLOP/s/device: 0.000, Tokens/s/device: inf, total_weights: 8, loss: 10.5\n"
    )
    (record,) = steps(events_of_text(MaxtextFormat(), text, tmp_path))
    assert [record[name] for name in ("time_per_iteration_s", "tflops_per_gpu", "tokens_per_s_per_gpu")] == [None] * 3
    assert record["loss"] == 10.5


def test_loss_at_the_end_of_the_file_may_be_cut(tmp_path: Path) -> None:
    events = events_of_text(MaxtextFormat(), "completed step: 3, seconds: 1.250, loss: 10.8", tmp_path)
    assert incomplete(events) == [{"iteration": 3, "time_per_iteration_s": 1.25}]
