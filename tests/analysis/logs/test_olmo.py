from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.olmo import OlmoFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, incomplete, samples, steps


@pytest.mark.parametrize("json_path", samples("olmo_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(OlmoFormat(), json_path)


def block(time: str, step: int, loss: str = "2.5") -> str:
    return f"[{time}] INFO     [olmo.train:816, rank=3] [step={step}/1,000]\n    train/CrossEntropyLoss={loss}\n"


def test_clock_that_goes_back_begins_another_run(tmp_path: Path) -> None:
    text = block("2024-08-06 10:00:00", 5) + block("2024-08-06 09:59:30", 6) + block("2024-04-18 19:06:17", 7)
    events = events_of_text(OlmoFormat(), text, tmp_path)
    assert facts(events, "segment") == [{}]
    assert [type(event).__name__ for event in events] == ["StepEvent", "StepEvent", "FactEvent", "StepEvent"]
    assert [record["iteration"] for record in steps(events)] == [5, 6, 7]
    assert steps(events)[0]["rank"] == 3
    assert steps(events)[0]["total_iterations"] == 1000


def test_header_without_keys_is_no_record(tmp_path: Path) -> None:
    text = "2025-12-22 10:00:40.100\tnode-a:0\tx:75\tINFO\t[step=49/1000,epoch=1]\nSaving checkpoint\n"
    assert events_of_text(OlmoFormat(), text + text.splitlines()[0], tmp_path) == []


def test_lines_of_another_process_do_not_end_a_block(tmp_path: Path) -> None:
    text = "0: [step=3/9]\n1: [W] slow disk\n0:     train/CrossEntropyLoss=2.5\n0: done\n0:     train/Perplexity=12.0\n"
    (record,) = steps(events_of_text(OlmoFormat(), text, tmp_path))
    assert record["loss"] == 2.5
    assert "perplexity" not in record


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param("    train/CrossEntropyLoss=2.5", [{"iteration": 8, "total_iterations": 9}], id="in-the-loss"),
        pytest.param(
            "    train/CrossEntropyLoss=2.5\n    train/Perp",
            [{"iteration": 8, "total_iterations": 9, "loss": 2.5}],
            id="in-a-key",
        ),
    ],
)
def test_cut_block(tail: str, expected: list[dict[str, float]], tmp_path: Path) -> None:
    events = events_of_text(OlmoFormat(), "[step=8/9]\n" + tail, tmp_path)
    assert incomplete(events) == expected
    assert steps(events) == []


def test_unknown_number_of_steps(tmp_path: Path) -> None:
    text = "[step=8/???,epoch=2,eta=1d]\n    train/CE loss=2.5\n    throughput/device/TPS=1.5K\n"
    (record,) = steps(events_of_text(OlmoFormat(), text, tmp_path))
    assert record == {"iteration": 8, "epoch": 2, "loss": 2.5, "tokens_per_s_per_gpu": 1500}


def test_a_cut_header_ends_the_block_before_it(tmp_path: Path) -> None:
    text = "[step=8/9]\n    train/CrossEntropyLoss=2.5\n2024-08-06 10:01:24.324 host-1"
    events = events_of_text(OlmoFormat(), text, tmp_path)
    assert [(record["iteration"], record["loss"]) for record in steps(events)] == [(8, 2.5)]
    assert facts(events, "trait") == [{"name": "truncated_last_line"}]
    assert incomplete(events) == []
