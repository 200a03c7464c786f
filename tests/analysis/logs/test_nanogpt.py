from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.nanogpt import NanogptFormat
from tests.analysis.logs.format_driver import assert_sample, events_of_text, facts, samples, steps


@pytest.mark.parametrize("json_path", samples("nanogpt_*"))
def test_composed_sample(json_path: Path) -> None:
    assert_sample(NanogptFormat(), json_path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "step 2000: train loss 3.2000, val loss 3.2500",
            {"iteration": 2000, "train_loss": 3.2, "val_loss": 3.25},
            id="nanoGPT",
        ),
        pytest.param(
            "step:125/1390 val_loss:4.2000 train_time:18750ms step_avg:150.00ms",
            {"iteration": 125, "val_loss": 4.2},
            id="modded-nanogpt",
        ),
    ],
)
def test_evaluation_is_told_apart(line: str, expected: dict[str, float], tmp_path: Path) -> None:
    events = events_of_text(NanogptFormat(), f"{line}\n", tmp_path)
    assert facts(events, "validation") == [expected]
    assert len(events) == 1


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("val loss 11.006021", id="evaluation-without-step"),
        pytest.param("iter 5: loss 2.5 and counting", id="no-time"),
        pytest.param("step 5: nothing, 12 tok/s", id="no-loss"),
        pytest.param("step 12, 3 active, 45.1 tok/s", id="inference"),
        pytest.param("epi:3 , score:1, step_avg:4.0", id="other-average"),
    ],
)
def test_other_lines_are_no_records(line: str, tmp_path: Path) -> None:
    assert events_of_text(NanogptFormat(), f"{line}\n", tmp_path) == []


def test_lines_of_megatron_are_not_even_shown() -> None:
    line = "| elapsed time per iteration (ms): 100.0 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.0 |"
    assert not any(marker in line for marker in NanogptFormat.markers)
    assert any(marker in "490 | loss 5.7543 | lr 4.9e-04" for marker in NanogptFormat.markers)


def test_seconds_of_newer_modded_lines(tmp_path: Path) -> None:
    text = "step:10/20 train_time:1.500s step_avg:150.00ms\nstep:12/20 train_time:1.900s step_avg:158.33ms\n"
    records = [dict(event.fields) for event in events_of_text(NanogptFormat(), text, tmp_path)]
    assert [record.get("time_per_iteration_s") for record in records] == [None, 0.2]
    assert records[1]["time_per_iteration_running_avg_s"] == 0.15833


def test_lines_of_llama2_c(tmp_path: Path) -> None:
    text = (
        "210 | loss 4.7543 | lr 4.200000e-04 | 512.78ms | mfu 18.21%\n220 | loss nan | lr 4.4e-04 | 510.00ms\n230 | lo"
    )
    events = events_of_text(NanogptFormat(), text, tmp_path)
    first = {
        "iteration": 210,
        "loss": 4.7543,
        "learning_rate": 4.2e-4,
        "time_per_iteration_s": 0.51278,
        "mfu_percent": 18.21,
    }
    assert steps(events)[0] == first
    assert (steps(events)[1]["loss"], steps(events)[1]["loss_is_nan"]) == (None, True)
    assert len(steps(events)) == 2
