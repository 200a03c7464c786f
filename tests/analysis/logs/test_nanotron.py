from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.nanotron import NanotronFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps


@pytest.mark.parametrize("json_path", samples("nanotron_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(NanotronFormat(), json_path)


LINE = (
    "iteration: 5 / 9 | consumed_tokens: 5.24K | elapsed_time_per_iteration_ms: 262 | tokens_per_sec: 20K | "
    "lm_loss: 10.6 | lr: 1e-05"
)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(
            LINE.index("2 | tokens"), {"iteration": 5, "total_iterations": 9, "consumed_tokens": 5240}, id="in-a-number"
        ),
        pytest.param(
            LINE.index(" lm_loss"),
            {
                "iteration": 5,
                "total_iterations": 9,
                "consumed_tokens": 5240,
                "time_per_iteration_s": 0.262,
                "tokens_per_s": 20000,
            },
            id="behind-a-separator",
        ),
    ],
)
def test_cut_line_keeps_what_is_certain(length: int, expected: dict[str, float], tmp_path: Path) -> None:
    events = events_of_text(NanotronFormat(), LINE[:length], tmp_path)
    assert incomplete(events) == [expected]
    assert steps(events) == []


def test_line_without_ranks_and_time(tmp_path: Path) -> None:
    (record,) = steps(events_of_text(NanotronFormat(), LINE + "\n", tmp_path))
    assert record == {
        "iteration": 5,
        "total_iterations": 9,
        "consumed_tokens": 5240,
        "time_per_iteration_s": 0.262,
        "tokens_per_s": 20000,
        "loss": 10.6,
        "learning_rate": 1e-05,
    }


def test_line_without_iteration_is_no_record(tmp_path: Path) -> None:
    text = "[INFO|DP=0|PP=0|TP=0]: Resuming | consumed_tokens: 5.24K | lm_loss: 2.0\n"
    assert events_of_text(NanotronFormat(), text, tmp_path) == []


@pytest.mark.parametrize(
    ("first", "name"),
    [pytest.param("", "truncated_first_line", id="first"), pytest.param("x\n", "orphan_fragment", id="later")],
)
def test_tail_of_a_record(first: str, name: str, tmp_path: Path) -> None:
    text = "36.9 | hardware_tflops_per_gpu: 36.9 | grad_norm: 1.27\n"
    events = events_of_text(NanotronFormat(), first + text, tmp_path)
    assert facts(events, "trait") == [{"name": name}]
    assert len(events) == 1
