"""When a run may be compared; one that may not keeps its row, with the reason (case 107)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.analysis.frames import (
    load_frames,
)
from tests.analysis.make_runs import Attempt, make_run
from tests.analysis.test_frames import load_one, only


@pytest.mark.parametrize(
    ("attempts", "step_fields", "state", "reason"),
    [
        pytest.param([], {}, "not started", "not started, 0 of 10 steps recorded", id="not started"),
        pytest.param(
            [Attempt([1] * 4, end={"state": "running", "end_reason": None, "ended_at_s": None})],
            {},
            "running",
            "running, 4 of 10 steps recorded",
            id="running",
        ),
        pytest.param(
            [
                Attempt(
                    [1] * 4,
                    end={
                        "state": "failed",
                        "end_reason": "out_of_memory",
                        "failed_rank": 3,
                        "failed_node": "n01",
                        "message": "CUDA out of memory\nTraceback",
                    },
                )
            ],
            {},
            "failed",
            "failed (out_of_memory) at rank 3 on n01, 4 of 10 steps recorded: CUDA out of memory",
            id="failed",
        ),
        pytest.param(
            [Attempt([], end={"state": "failed", "end_reason": "launch_failed", "world_size": None})],
            {},
            "failed",
            "failed (launch_failed), 0 of 10 steps recorded",
            id="failed before any step",
        ),
        pytest.param(
            [Attempt([1] * 4, end={"world_size": 4})],
            {},
            "completed",
            "world size 8 planned, 4 measured",
            id="world size",
        ),
        pytest.param(
            [Attempt([1] * 4, end={"world_size": None})],
            {},
            "completed",
            "world size 8 planned, none measured",
            id="no world size",
        ),
        pytest.param(
            [Attempt([1] * 4, end={"world_size": 8}), Attempt([1] * 4, 5, end={"world_size": 4})],
            {},
            "completed",
            "world size 8 planned, 4 and 8 measured",
            id="world sizes differ",
        ),
        pytest.param(
            [Attempt([1] * 4)], {"tokens": 512}, "completed", "1,024 tokens a step planned, 512 recorded", id="tokens"
        ),
        pytest.param([Attempt([1, 1])], {}, "completed", "no steady step among 2 recorded", id="too short"),
        pytest.param([Attempt([])], {}, "completed", "no steady step among 0 recorded", id="no step"),
        pytest.param(
            [Attempt([1] * 4)],
            {"loss": None},
            "completed",
            "4 of 4 steps without an update, a finite loss or a time (100%, at most 5%);"
            " no steady step among 4 recorded",
            id="no loss",
        ),
        pytest.param(
            [Attempt([1] * 4)],
            {"skipped": True},
            "completed",
            "4 of 4 steps without an update, a finite loss or a time (100%, at most 5%);"
            " no steady step among 4 recorded",
            id="all skipped",
        ),
        pytest.param(
            [Attempt([0.01] * 4)],
            {},
            "completed",
            "4 of 4 steps above the peak of 0.001 TFLOP/s a GPU, up to 0.00867 hardware TFLOP/s: step times,"
            " hardware.peak_tflops or the dense attention count is wrong for this run; no steady step among 4 recorded",
            id="above the peak",
        ),
    ],
)
def test_runs_that_may_not_be_compared(
    tmp_path: Path, attempts: list[Attempt], step_fields: dict[str, Any], state: str, reason: str
) -> None:
    make_run(tmp_path / "run", attempts=attempts, **step_fields)
    summary = load_one(tmp_path)
    assert not summary.valid
    assert (summary.state, summary.reason) == (state, reason)


def test_above_the_peak_no_speed_remains(tmp_path: Path) -> None:
    make_run(tmp_path / "run", attempts=[Attempt([0.01] * 4)])
    summary = load_one(tmp_path)
    assert set(summary.tflops_per_gpu.values()) == {None}
    assert (summary.mfu, summary.hfu, summary.step_time_s, summary.tokens_per_s) == (None, None, None, None)
    assert (summary.num_recorded_steps, summary.num_rejected_steps) == (4, 4)


def test_a_few_steps_above_the_peak_are_rejected_and_counted(tmp_path: Path) -> None:
    """0.693633 GFLOP at 1 GFLOP/s on 8 GPUs take at least 0.0867 s: 0.0868 s may be, 0.0866 s may not."""
    make_run(tmp_path / "run", attempts=[Attempt([1.0] * 38 + [0.0868, 0.0866])])
    frames = load_frames([tmp_path])
    summary = only(frames)
    assert summary.valid, summary.reason
    assert (summary.num_rejected_steps, summary.num_dead_steps, summary.num_steady_steps) == (1, 0, 35)
    assert frames.steps.loc[frames.steps["rejected"], "step_time_s"].tolist() == [0.0866]


def test_a_larger_measured_world_size_allows_faster_steps(tmp_path: Path) -> None:
    """On 16 GPUs the same step may take 0.0434 s; the run stays invalid since 8 were planned."""
    make_run(tmp_path / "run", attempts=[Attempt([0.05] * 10, end={"world_size": 16})])
    summary = load_one(tmp_path)
    assert (summary.num_rejected_steps, summary.num_steady_steps) == (0, 8)
    assert summary.reason == "world size 8 planned, 16 measured"


def test_a_start_with_the_wrong_world_size_that_made_no_step_is_forgiven(tmp_path: Path) -> None:
    refused = Attempt([], end={"state": "failed", "end_reason": "world_size_mismatch", "world_size": 4})
    make_run(tmp_path / "run", attempts=[refused, Attempt([1] * 10)])
    summary = load_one(tmp_path)
    assert summary.valid, summary.reason
    assert (summary.world_size, summary.num_attempts) == (8, 2)


def test_attempts_in_two_forms_are_no_speed_of_one(tmp_path: Path) -> None:
    """A run that was resumed as zero1 on 4 ranks: each attempt costs what it held, and its steps are not compared."""
    first = Attempt(
        [1.0] * 10, end={"state": "failed", "end_reason": "signal", "form": "zero3 (stage 3), micro batch 2"}
    )
    second = Attempt([1.0] * 10, first_step=11, end={"form": "zero1 (stage 1), micro batch 2", "world_size": 4})
    make_run(tmp_path / "run", attempts=[first, second])
    summary = load_one(tmp_path)
    assert (
        "its attempts took steps in 2 forms: zero1 (stage 1), micro batch 2 and zero3 (stage 3), micro batch 2"
        in summary.reason
    )
    assert summary.gpu_hours == pytest.approx((10 + 10) * (8 + 4) / 3600)


def test_megatron_count_above_the_peak_is_no_reason(tmp_path: Path) -> None:
    """Without recomputation Megatron's count is 1.31 of what was executed; 0.1 s gives 0.87 and 1.14 of the peak."""
    make_run(tmp_path / "run", attempts=[Attempt([0.1] * 10)])
    summary = load_one(tmp_path)
    assert summary.valid, summary.reason
    assert summary.hfu == pytest.approx(0.86704128)
    assert summary.megatron_tflops_per_gpu == pytest.approx(1.13967104e-3)


def test_outliers_are_counted_and_stay_in_the_median(tmp_path: Path) -> None:
    """Of 20 steady steps 3 take 30 s; without them the largest would be 1.05 s and the median 1.00 instead of 1.01."""
    times_s = [9.0, 9.0, 9.0, *(1 + 0.01 * (step % 6) for step in range(17)), *[30.0] * 3]
    make_run(tmp_path / "run", attempts=[Attempt(times_s)])
    frames = load_frames([tmp_path])
    summary = only(frames)
    assert summary.valid, summary.reason
    assert (summary.num_outlier_steps, summary.num_steady_steps) == (3, 20)
    assert frames.steps.loc[frames.steps["outlier"], "step_time_s"].tolist() == [30.0] * 3
    assert summary.step_time_s == pytest.approx(sorted(times_s[3:])[9] / 2 + sorted(times_s[3:])[10] / 2)
    assert summary.lost_time_share == pytest.approx(10 / (10 + sum(times_s))), "they are in the wall-clock time anyhow"


def test_few_dead_steps_are_left_out_and_do_not_spoil_the_run(tmp_path: Path) -> None:
    """One skipped step of 20 is 5 %; it was ten times as fast and must not move the median."""
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 19 + [0.1])])
    *healthy, last = run.steps.read_text().splitlines()
    run.steps.write_text("\n".join([*healthy, json.dumps(json.loads(last) | {"skipped": True, "loss": None})]) + "\n")
    summary = load_one(tmp_path)
    assert summary.valid, summary.reason
    assert (summary.num_dead_steps, summary.num_steady_steps) == (1, 17)
    assert summary.dead_share == 0.05
    assert summary.final_loss is None
