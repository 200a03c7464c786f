"""Logs of other systems as rows and steps beside our own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.analysis.frames import STEP_DTYPES, RunFrames, join_frames
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.log_runs import LogRun, log_runs
from hpctrain.analysis.logs.reading import read_log
from tests.analysis.logs.format_driver import OWN_SAMPLES
from tests.analysis.logs.make_readings import make_reading, series

LOG = Path("logs/some.log")


def one_run(reading: LogReading) -> LogRun:
    (run,) = log_runs(reading, LOG)
    return run


def healthy(**columns: Any) -> list[dict[str, Any]]:
    base = {"loss": [3.0] * 8, "time_per_iteration_s": [9.0, 2.0, 2.1, 1.9, 2.0, 2.2, 1.8, 2.0]}
    return series(1, **{**base, **columns})


def test_a_healthy_log_gives_medians_without_its_first_record() -> None:
    columns = {"global_batch_size": [64] * 8, "seq_len": [2048] * 8, "tflops_per_gpu": [20, 90, 91, 92, 93, 94, 95, 96]}
    run = one_run(
        make_reading(healthy(**columns), system="megatron-lm", convention="model", settings={"world_size": 16})
    )
    row = run.summary
    assert (row.run, row.folder, row.source) == ("some.log", "logs/some.log", "megatron-lm")
    assert run.steps["steady"].tolist() == [False] + [True] * 7
    assert (row.num_recorded_steps, row.num_steady_steps) == (8, 7)
    # Of 1.8 1.9 2.0 2.0 2.0 2.1 2.2; seven values are too few for an interval.
    assert (row.step_time_s, row.step_time_low_s, row.step_time_high_s) == (2.0, None, None)
    assert row.tokens_per_step == 64 * 2048
    assert row.tokens_per_s == 65536
    assert row.tokens_per_s_per_gpu == 4096
    assert (row.printed_tflops_per_gpu, row.printed_convention) == (93.0, "model")
    assert row.model_tflops_per_gpu == 93.0
    assert (row.hardware_tflops_per_gpu, row.megatron_tflops_per_gpu, row.mfu) == (None, None, None)
    assert (row.valid, row.reason, row.state) == (True, "", "unknown")


@pytest.mark.parametrize(
    ("times", "low", "high"),
    [
        # 18 steady records; signs that alternate give f = 1, so the ranks are 9 - 1.96·√18/2 = 4.8 and its mirror.
        pytest.param([1.8, 2.2] * 10, 1.8, 2.2, id="alternating"),
        # The second half is slower: f = 3.9, and the rank 0.8.
        pytest.param([1.8] * 11 + [2.2] * 9, None, None, id="slower at the end"),
    ],
)
def test_the_interval_of_a_log_allows_for_dependent_records(
    times: list[float], low: float | None, high: float | None
) -> None:
    row = one_run(make_reading(series(1, loss=[3.0] * 20, time_per_iteration_s=times))).summary
    assert (row.num_steady_steps, row.step_time_s) == (18, 2.0)
    assert (row.step_time_low_s, row.step_time_high_s) == (low, high)


def test_one_record_in_ten_is_warm_up_and_at_least_the_first() -> None:
    records = series(1, loss=[3.0] * 21, time_per_iteration_s=[2.0] * 21)
    assert one_run(make_reading(records)).steps["warm_up"].sum() == 3


def test_a_growing_batch_is_warm_up() -> None:
    records = healthy(
        time_per_iteration_s=[1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0],
        global_batch_size=[16, 16, 32, 32, 64, 64, 64, 64],
        seq_len=[1000] * 8,
    )
    run = one_run(make_reading(records))
    assert run.steps["steady"].tolist() == [False] * 4 + [True] * 4
    assert (run.summary.step_time_s, run.summary.tokens_per_s) == (4.0, 16000)
    assert run.steps["tokens"].tolist() == [16000] * 2 + [32000] * 2 + [64000] * 4


def test_a_restart_repeats_steps_and_pays_for_its_start() -> None:
    records = [
        {"iteration": step, "attempt": attempt, "loss": 3.0, "time_per_iteration_s": time}
        for attempt, step, time in [(0, 10, 5.0), (0, 20, 2.0), (0, 30, 2.1), (1, 20, 6.0), (1, 30, 2.2), (1, 40, 2.3)]
    ]
    run = one_run(make_reading(records))
    assert run.steps["superseded"].tolist() == [False, True, True, False, False, False]
    assert run.steps["warm_up"].tolist() == [True, False, False, True, False, False]
    assert run.summary.num_recorded_steps == 4
    assert run.summary.num_attempts == 2
    assert run.summary.step_time_s == pytest.approx(2.25)


def test_segments_are_rows_of_their_own() -> None:
    records = [
        {
            "segment": segment,
            "iteration": step,
            "loss": 2.0,
            "time_per_iteration_s": time,
            "tp": tp,
            "pp": 12,
            "nodes": 24,
        }
        for segment, tp, step, time in [(0, 4, 94768, 216.0), (1, 2, 94768, 222.0), (1, 2, 94769, 200.0)]
    ]
    first, second = log_runs(make_reading(records), LOG)
    assert (first.summary.run, second.summary.run) == ("some.log#1", "some.log#2")
    assert (first.summary.parallelism, second.summary.parallelism) == ("tp4-pp12", "tp2-pp12")
    assert second.summary.nodes == 24
    assert first.summary.reason == "no steady record among 1"
    assert (second.summary.step_time_s, second.summary.valid) == (200.0, True)


@pytest.mark.parametrize(
    ("columns", "settings", "expected"),
    [
        pytest.param({"tokens_per_s_per_gpu": [1000] * 8}, {}, (None, 1000.0, None), id="per-gpu-only"),
        pytest.param(
            {"tokens_per_s_per_gpu": [1000] * 8}, {"world_size": 8}, (8000.0, 1000.0, 8), id="gpus-by-setting"
        ),
        pytest.param(
            {"tokens_per_s_per_gpu": [1000] * 8, "tokens_per_s": [16000] * 8},
            {},
            (16000.0, 1000.0, 16),
            id="gpus-by-quotient",
        ),
        pytest.param({"tokens_per_s": [16000] * 8}, {"world_size": 8}, (16000.0, 2000.0, 8), id="job-only"),
        pytest.param({}, {}, (None, None, None), id="nothing-printed"),
    ],
)
def test_tokens_per_second_as_printed(
    columns: dict[str, Any], settings: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    row = one_run(make_reading(healthy(**columns), settings=settings)).summary
    assert (row.tokens_per_s, row.tokens_per_s_per_gpu, row.gpus) == expected
    assert row.tokens_per_step is None


def test_gpus_and_sequence_follow_from_counters() -> None:
    # 192 GPUs: 768 · 4,096 tokens in 14.5414 s are 216,329 tokens/s, 1,126.713 a GPU (argonne-lcf/Megatron-DeepSpeed).
    columns: dict[str, Any] = {
        "global_batch_size": [768] * 3,
        "consumed_samples": [152832, 153600, 154368],
        "consumed_tokens": [625999872, 629145600, 632291328],
        "tokens_per_s_per_gpu": [1126.713] * 3,
        "time_per_iteration_s": [14.5414] * 3,
        "loss": [5.9] * 3,
    }
    run = one_run(make_reading(series(199, **columns)))
    assert (run.summary.seq_len, run.summary.gpus) == (4096, 192)
    assert run.steps["tokens"].tolist() == [768 * 4096] * 3


SHAPE_530B = {"num_layers": 105, "hidden_size": 20480, "vocab_size": 50304, "world_size": 1024, "seq_len": 1024}


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        pytest.param(171.37, "", id="published"),
        pytest.param(
            171.37 / 8,
            "21.42 TFLOP/s a GPU printed, 171.4 by model, batch and time: printed value is 1/8.0 of it: perhaps a parallel"
            " degree of 8",
            id="off-by-the-degree",
        ),
    ],
)
def test_tflops_are_checked_where_the_shape_is_known(printed: float, reason: str) -> None:
    # DeepSpeed on Azure, 2022: 530B, 1,024 GPUs, batch 8,192 of 1,024 tokens, 204.08 s.
    records = healthy(time_per_iteration_s=[204.08] * 8, global_batch_size=[8192] * 8, tflops_per_gpu=[printed] * 8)
    row = one_run(make_reading(records, settings=SHAPE_530B, convention="unknown")).summary
    assert row.megatron_tflops_per_gpu == pytest.approx(171.37, rel=1e-3)
    assert row.model_tflops_per_gpu is None, "an unknown convention is never guessed"
    assert row.reason == reason


@pytest.mark.parametrize(
    ("columns", "dead", "reason"),
    [
        pytest.param(
            {"loss": [3.0] * 7 + [None], "loss_is_nan": [...] * 7 + [True]},
            1,
            "1 of 8 records skipped, without a finite loss or without a speed (12%, at most 5%)",
            id="nan",
        ),
        pytest.param(
            {"skipped_iterations": [1] * 8},
            8,
            "8 of 8 records skipped, without a finite loss or without a speed (100%, at most 5%); no steady record among 8",
            id="all-skipped",
        ),
        pytest.param(
            {"overflow_line_before": [False] * 6 + [True] * 2},
            2,
            "2 of 8 records skipped, without a finite loss or without a speed (25%, at most 5%)",
            id="overflow-lines",
        ),
        pytest.param(
            {"loss": [3.0] + [0.0] * 7},
            7,
            "7 of 8 records skipped, without a finite loss or without a speed (88%, at most 5%); no steady record among 8",
            id="loss-zero",
        ),
    ],
)
def test_a_dead_model_is_not_comparable(columns: dict[str, Any], dead: int, reason: str) -> None:
    row = one_run(make_reading(healthy(**columns))).summary
    assert (row.num_dead_steps, row.valid, row.reason) == (dead, False, reason)


def test_a_record_of_many_steps_is_dead_if_most_were_skipped() -> None:
    records = series(10, 10, loss=[3.0] * 3, time_per_iteration_s=[2.0] * 3, skipped_iterations=[6, 5, 0])
    assert one_run(make_reading(records)).steps["skipped"].tolist() == [True, False, False]


def test_deepspeeds_skips_condemn_a_trainer_that_counts_none() -> None:
    engine = [{"iteration": 2000, "skipped_total": 1995}]
    row = one_run(make_reading(healthy(), engine=engine, system="hf-trainer")).summary
    assert row.reason == "DeepSpeed skipped 1995 of 2000 steps (99.8%, at most 10%)"


def test_records_above_every_peak_are_rejected_and_counted() -> None:
    row = one_run(make_reading(healthy(tflops_per_gpu=[90.0] * 6 + [9000.0] * 2))).summary
    assert row.num_rejected_steps == 2
    assert row.num_steady_steps == 5
    assert row.reason == "2 of 8 records above the peak of 2,500 TFLOP/s a GPU"


def test_a_named_gpu_gives_its_peak_and_utilisation() -> None:
    settings = {"gpu": "A100-SXM-80GB", "precision": "bf16"}
    records = healthy(tflops_per_gpu=[20.0] + [156.0] * 7, hardware_tflops_per_gpu=[20.0] + [195.0] * 7)
    row = one_run(make_reading(records, settings=settings, convention="model")).summary
    assert (row.hardware, row.peak_tflops_per_gpu, row.achievable_tflops_per_gpu) == ("A100-SXM-80GB", 312.0, 271.2)
    assert (row.mfu, row.hfu) == (0.5, 0.625)
    above = one_run(make_reading(healthy(tflops_per_gpu=[313.0] * 8), settings=settings)).summary
    assert above.num_rejected_steps == 8
    assert above.reason == "8 of 8 records above the peak of 312 TFLOP/s a GPU; no steady record among 8"


def test_a_printed_mfu_is_a_share_and_an_unknown_precision_has_no_peak() -> None:
    row = one_run(make_reading(healthy(mfu_percent=[45.0] * 8), settings={"gpu": "H100-SXM-80GB"})).summary
    assert (row.mfu, row.peak_tflops_per_gpu) == (0.45, None)


def test_lines_of_the_engine_have_no_loss_and_are_not_dead() -> None:
    reading = read_log(OWN_SAMPLES / "deepspeed_engine_2024_without_a_trainer.log")
    run = one_run(reading)
    # 50 steps a minute by the time stamps.
    assert run.summary.step_time_s == pytest.approx(1.2)
    assert run.summary.valid
    assert run.summary.end_reason == "cancelled"
    assert run.summary.state == "failed"
    assert run.summary.peak_memory_bytes == int(40.25 * 2**30)
    assert np.isnan(run.steps["loss"]).all()


def test_time_between_steps_is_lost() -> None:
    stamps = [f"2024-05-01 10:0{minute}:00" for minute in (0, 1, 2, 5)]
    records = series(
        10,
        10,
        loss=[3.0] * 4,
        time_per_iteration_s=[5.4] * 4,
        timestamp=stamps,
        global_batch_size=[10] * 4,
        seq_len=[100] * 4,
    )
    row = one_run(make_reading(records, settings={"world_size": 12})).summary
    # 300 s of wall-clock time for 30 steps of 5.4 s.
    assert row.lost_time_share == pytest.approx(1 - 162 / 300)
    assert row.wall_tokens_per_s == pytest.approx(30 * 1000 / 300)
    assert row.gpu_hours == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        pytest.param(["2024-05-01 10:00:00", "2024-05-01 10:00:50"], [5.0, 5.0], id="too-short"),
        pytest.param(["2024-05-01 10:00:00", "2024-05-01 10:02:00"], [20.0, 20.0], id="steps-longer-than-the-clock"),
        pytest.param(["2024-05-01 10:00:00", "2024-05-01 10:02:00"], [..., ...], id="no-step-times"),
        pytest.param(["noon", "one"], [5.0, 5.0], id="no-time-stamps"),
    ],
)
def test_no_share_of_lost_time_without_two_clocks(stamps: list[str], times: list[Any]) -> None:
    records = series(10, 10, loss=[3.0] * 2, time_per_iteration_s=times, timestamp=stamps)
    assert one_run(make_reading(records)).summary.lost_time_share is None


@pytest.mark.parametrize(
    ("ends", "total", "state", "end_reason"),
    [
        ([], 8, "completed", None),
        ([], 9, "unknown", None),
        ([(50, {"reason": "TIMEOUT"})], 9, "failed", "timeout"),
        ([(50, {"reason": "COMPLETED"})], 9, "completed", "completed"),
    ],
    ids=["last-step", "excerpt", "time-limit", "told"],
)
def test_states(ends: list[Any], total: int, state: str, end_reason: str | None) -> None:
    records = healthy(total_iterations=[total] * 8)
    row = one_run(make_reading(records, facts={"end": ends})).summary
    assert (row.state, row.end_reason, row.num_steps) == (state, end_reason, total)
    assert row.valid, "how a run ended says nothing of its speed"


def test_a_log_without_records_keeps_its_row() -> None:
    run = one_run(make_reading(system="deepspeed"))
    assert (run.summary.valid, run.summary.reason, len(run.steps)) == (False, "no training record", 0)


def test_lines_without_a_step_number_tell_speed_only() -> None:
    records = [{"iteration": None, "time_per_iteration_s": 8.57, "tflops_per_gpu": 1574.0}] * 3
    run = one_run(make_reading(records, system="megatron-bridge", convention="model"))
    assert run.steps["step"].tolist() == [1, 2, 3]
    assert (run.summary.num_dead_steps, run.summary.model_tflops_per_gpu) == (0, 1574.0)


def test_logs_join_our_own_frames() -> None:
    runs = [*log_runs(make_reading(healthy()), LOG), *log_runs(make_reading(system="deepspeed"), Path("logs/b.log"))]
    frames = join_frames([RunFrames(run.summary, run.steps, (), None, ()) for run in runs])
    assert frames.runs["run"].tolist() == ["some.log", "b.log"]
    assert len(frames.steps_of("logs/some.log")) == 8
    assert dict(frames.steps.dtypes.astype(str)) == STEP_DTYPES
