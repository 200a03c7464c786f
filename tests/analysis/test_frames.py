"""Run folders to frames: hand-worked speeds of the toy model, restarts, and when runs may be compared (cases 104, 107)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

from hpctrain.analysis.frames import (
    ATTEMPT_DTYPES,
    RUN_DTYPES,
    STEP_DTYPES,
    Frames,
    load_frames,
    read_run,
    run_summaries,
)
from hpctrain.analysis.node_files import SAMPLE_DTYPES
from hpctrain.analysis.run_row import RunSummary
from hpctrain.analysis.summary import summarise
from hpctrain.plan.speed.step_time import StepPrediction
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import CPU_NODE, GPU_NODE, Attempt, make_run, sample, toy_config, write_samples

# The toy model, FLOPs of one forward pass over one sequence of 32 tokens (h = 64, f = 256, V = 100, 2 blocks):
#   qkv 2·32·64·192 = 786,432   scores and values 2·2·32·32·64 = 262,144   projection 2·32·64·64 = 262,144
#   feed-forward 2·32·2·64·256 = 2,097,152, so a block takes 3,407,872 and both 6,815,744
#   logits 2·32·64·100 = 409,600
# Forward and backward of 32 sequences: 3·7,225,344·32 = 693,633,024; both blocks again: 6,815,744·32 = 218,103,808.
# 96·32·32·2·64²·(1 + 32/384 + 100/2048) = 911,736,832: the same as with recomputation, as it should be for this shape.
MODEL_FLOPS = 693_633_024
RECOMPUTED_FLOPS = 218_103_808
MEGATRON_FLOPS = 911_736_832


def only(frames: Frames) -> RunSummary:
    (summary,) = run_summaries(frames.runs)
    return summary


def load_one(folder: Path) -> RunSummary:
    return only(load_frames([folder]))


def test_every_speed_by_hand(tmp_path: Path) -> None:
    """Half a second a step on 8 GPUs is 4 GPU-seconds; the peak is 1e9 FLOP/s."""
    make_run(tmp_path / "run")
    summary = load_one(tmp_path)
    assert summary.valid, summary.reason
    assert (summary.step_time_s, summary.step_time_low_s, summary.step_time_high_s) == (0.5, 0.5, 0.5)
    assert summary.num_steady_steps == 8
    assert summary.tokens_per_s == 1024 / 0.5
    assert summary.tokens_per_s_per_gpu == 256
    assert summary.model_tflops_per_gpu == pytest.approx(MODEL_FLOPS / 4e12, rel=1e-12)
    assert summary.hardware_tflops_per_gpu == summary.model_tflops_per_gpu
    assert summary.megatron_tflops_per_gpu == pytest.approx(MEGATRON_FLOPS / 4e12, rel=1e-12)
    assert summary.mfu == summary.hfu == pytest.approx(0.173408256)
    assert summary.final_loss == 0.4
    assert summary.peak_memory_bytes == 2**30
    assert summary.gpu_hours == pytest.approx((10 + 2 + 1 + 8 * 0.5) * 8 / 3600)


def test_recomputation_counts_as_hardware_flops_only(tmp_path: Path) -> None:
    make_run(tmp_path / "run", toy_config(activation_checkpointing="full"))
    summary = load_one(tmp_path)
    assert summary.model_tflops_per_gpu == pytest.approx(MODEL_FLOPS / 4e12)
    assert summary.hardware_tflops_per_gpu == pytest.approx((MODEL_FLOPS + RECOMPUTED_FLOPS) / 4e12)
    assert summary.hardware_tflops_per_gpu == pytest.approx(summary.megatron_tflops_per_gpu)
    assert summary.mfu == pytest.approx(0.173408256)
    assert summary.hfu == pytest.approx(0.227934208)


def test_what_was_planned(tmp_path: Path) -> None:
    make_run(tmp_path / "run", toy_config(micro_batch_size=2, gradient_accumulation_steps=3))
    summary = load_one(tmp_path)
    assert summary.run == "run"
    assert summary.name == "toy-2n-zero3"
    assert (summary.model, summary.hardware, summary.parallelism, summary.zero_stage) == ("toy", "test_gpu", "zero3", 3)
    assert (summary.nodes, summary.gpus, summary.world_size) == (2, 8, 8)
    assert (summary.micro_batch_size, summary.gradient_accumulation_steps, summary.global_batch_size) == (2, 3, 48)
    assert (summary.seq_len, summary.tokens_per_step, summary.num_steps) == (32, 1536, 10)
    assert json.loads(summary.zero_settings or "")["stage"] == 3
    assert summary.memory_capacity_bytes == 16 * 2**30


def test_without_a_stated_peak_there_is_no_mfu(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", toy_config(nodes=1, hardware=CPU_NODE))
    summary = load_one(tmp_path)
    assert summary.valid
    assert summary.mfu is None
    assert summary.hfu is None
    memory = json.loads(run.plan.read_text())["memory"]
    assert summary.predicted_memory_bytes == memory["host_bytes_per_node"] / 2
    assert summary.memory_capacity_bytes is None


def test_dtypes_are_those_stated_for_full_and_empty_frames(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    make_run(tmp_path / "waiting", attempts=[])
    write_samples(RunPaths(tmp_path / "run"), "n1", sample())
    for frames in (load_frames([tmp_path]), load_frames([]), load_frames([tmp_path], steps=False, samples=False)):
        assert {name: str(dtype) for name, dtype in frames.runs.dtypes.items()} == RUN_DTYPES
        assert {name: str(dtype) for name, dtype in frames.steps.dtypes.items()} == STEP_DTYPES
        assert {name: str(dtype) for name, dtype in frames.attempts.dtypes.items()} == ATTEMPT_DTYPES
        assert {name: str(dtype) for name, dtype in frames.samples.dtypes.items()} == SAMPLE_DTYPES


def test_the_scaling_table_needs_no_steps_in_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_samples(run, "n1", sample())
    everything, bare = load_frames([tmp_path]), load_frames([tmp_path], steps=False, samples=False)
    assert run_summaries(bare.runs) == run_summaries(everything.runs)
    assert (len(everything.steps), len(everything.samples)) == (10, 1)
    assert (len(bare.steps), len(bare.samples)) == (0, 0)


def test_many_runs_are_read_in_processes_and_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        make_run(tmp_path / f"run {number}", attempts=[Attempt([0.5 + number] * 10)])
    (tmp_path / "run 3" / "attempts" / "1.json").write_text("{")
    alone = load_frames([tmp_path], steps=False)
    monkeypatch.setattr("hpctrain.analysis.frames.MIN_RUNS_FOR_PROCESSES", 2)
    together = load_frames([tmp_path], steps=False)
    pd.testing.assert_frame_equal(together.runs, alone.runs)
    pd.testing.assert_frame_equal(together.attempts, alone.attempts)
    assert together.problems == alone.problems


def test_rows_of_the_frame_are_the_summaries(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "run"), make_run(tmp_path / "waiting", attempts=[])]
    assert run_summaries(load_frames([tmp_path]).runs) == [summarise(read_run(run)) for run in runs]


def test_a_run_reached_by_two_roots_is_one_row(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    assert len(load_frames([tmp_path, tmp_path / "run", tmp_path / "run" / ".." / "run"]).runs) == 1


def test_roots_without_runs_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "run")
    (tmp_path / "empty").mkdir()
    frames = load_frames([tmp_path / "nosuch", tmp_path / "empty", tmp_path / "runs"])
    assert len(frames.runs) == 1
    assert frames.problems == (
        f"{tmp_path}/nosuch: no such folder; runs are kept in run.root (default: runs)",
        f"{tmp_path}/empty: no run here; a run folder holds plan.json, a log of another system ends in .log, .out, .err or .txt",
    )


def test_odd_folder_names(tmp_path: Path) -> None:
    make_run(tmp_path / 'a b\'c $HOME "ü"')
    frames = load_frames([tmp_path])
    assert frames.runs["run"].tolist() == ['a b\'c $HOME "ü"']
    assert len(frames.steps_of(frames.runs["folder"][0])) == 10


def test_a_folder_name_that_is_no_text(tmp_path: Path) -> None:
    make_run(tmp_path / os.fsdecode(b"caf\xe9"))
    frames = load_frames([tmp_path])
    assert frames.runs["run"].tolist() == ["caf\\xe9"]
    assert len(frames.steps_of(frames.runs["folder"][0])) == 10


# Case 104: restarts, repeats, duplicates.


def test_restart_counts_each_step_once_and_all_time(tmp_path: Path) -> None:
    """Six steps, then again from step 5 to 10: the curve has ten steps, the cost has both attempts."""
    failed = {"state": "failed", "end_reason": "killed", "exit_code": 137}
    make_run(tmp_path / "run", attempts=[Attempt([3, 3, 1, 1, 9, 9], end=failed), Attempt([3, 3, 2, 2, 2, 2], 5)])
    frames = load_frames([tmp_path])
    summary = only(frames)
    assert summary.valid, summary.reason
    assert (summary.num_attempts, summary.num_recorded_steps, summary.num_steady_steps) == (2, 10, 6)
    assert summary.step_time_s == 2, "steady: 1, 1 of the first attempt and 2, 2, 2, 2 of the second"
    assert (summary.step_time_low_s, summary.step_time_high_s) == (None, None), "eight steps are the fewest"
    assert summary.gpu_hours == pytest.approx((10 + 26 + 10 + 14) * 8 / 3600)
    assert len(frames.steps) == 12
    assert frames.steps["superseded"].sum() == 2
    assert frames.attempts["end_reason"].tolist() == ["killed", "completed"]


def test_a_line_written_twice_counts_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.steps.write_text(run.steps.read_text() * 2)
    summary = load_one(tmp_path)
    assert (summary.num_recorded_steps, summary.num_steady_steps, summary.step_time_s) == (10, 8, 0.5)


# Case 105: time outside the counters.


def test_prediction_beside_measurement(tmp_path: Path) -> None:
    """0.4 s predicted, 0.5 s measured: a fifth too optimistic."""
    run = make_run(tmp_path / "run")
    prediction = StepPrediction(0.4, {"compute": 0.4}, 2560.0, {"model": 1e-4}, None, "compute", 0.3, 0.5, "made up")
    plan = json.loads(run.plan.read_text()) | {"prediction": asdict(prediction)}
    run.plan.write_text(json.dumps(plan))
    summary = load_one(tmp_path)
    assert summary.predicted_step_time_s == 0.4
    assert summary.prediction_error == pytest.approx(-0.2)
    assert (summary.predicted_step_time_low_s, summary.predicted_step_time_high_s) == (0.3, 0.5)
    assert summary.in_predicted_range is True, "the end of the range is in it"
    assert summary.calibration is None
    plan["prediction"]["high_s"] = 0.49
    run.plan.write_text(json.dumps(plan))
    assert load_one(tmp_path).in_predicted_range is False
    plan["prediction"]["low_s"] = -0.3
    run.plan.write_text(json.dumps(plan))
    assert "prediction.low_s=-0.3 must be above 0" in load_one(tmp_path).reason


def test_predicted_memory_beside_the_measured_peak(tmp_path: Path) -> None:
    """1 GiB measured by the allocator, which counts neither CUDA's context nor NCCL."""
    run = make_run(tmp_path / "run")
    terms = json.loads(run.plan.read_text())["memory"]["terms"]
    planned = sum(term["num_bytes"] for term in terms if term["tier"] == "gpu" and term["name"] != "context and NCCL")
    assert load_one(tmp_path).memory_error == pytest.approx(planned / 2**30 - 1)


def test_a_peak_of_nothing_has_no_error(tmp_path: Path) -> None:
    make_run(tmp_path / "run", peak_memory_bytes=0)
    summary = load_one(tmp_path)
    assert (summary.peak_memory_bytes, summary.memory_error) == (0, None)


def test_the_interval_of_a_row_allows_for_dependent_steps(tmp_path: Path) -> None:
    """10 steady steps whose second half is slower: as if independent 0.5 to 0.6 s, by blocks there is none."""
    times = [0.5] * 7 + [0.6] * 5
    make_run(tmp_path / "run", attempts=[Attempt(times)])
    summary = load_one(tmp_path)
    assert (summary.num_steady_steps, summary.step_time_s) == (10, 0.55)
    assert (summary.step_time_low_s, summary.step_time_high_s) == (None, None)


def test_the_achievable_rate_stands_beside_the_peak(tmp_path: Path) -> None:
    hardware = replace(GPU_NODE, achievable_tflops={"bf16": 8e-4})
    make_run(tmp_path / "run", toy_config(hardware=hardware))
    summary = load_one(tmp_path)
    assert (summary.peak_tflops_per_gpu, summary.achievable_tflops_per_gpu) == (1e-3, 8e-4)


def test_without_a_prediction_or_a_measurement_there_is_no_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[])
    plan = json.loads(run.plan.read_text()) | {"prediction": None}
    run.plan.write_text(json.dumps(plan))
    summary = load_one(tmp_path)
    assert (summary.predicted_step_time_s, summary.prediction_error) == (None, None)
    assert summary.in_predicted_range is None
    assert (summary.prediction_gap or "").startswith("hardware=test_gpu does not state hardware.achievable_tflops.bf16")
    assert (summary.peak_memory_bytes, summary.memory_error) == (None, None)


def test_summary_is_plain_values(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    values = asdict(load_one(tmp_path))
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_logs_of_other_systems_are_rows_beside_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.logs.mkdir()
    (run.logs / "batch.log").write_text(NANOGPT_LINES, encoding="utf-8")  # of our own run, so no log of another system
    (tmp_path / "gpt.log").write_text(NANOGPT_LINES, encoding="utf-8")
    (tmp_path / "noise.out").write_text("nothing\n", encoding="utf-8")
    frames = load_frames([tmp_path, tmp_path / "gpt.log"])
    assert frames.runs["source"].tolist() == ["hpctrain", "nanogpt"]
    log = frames.runs.iloc[1]
    assert (log["run"], log["num_recorded_steps"], log["final_loss"]) == ("gpt.log", 8, 3.2)
    assert log["step_time_s"] == 0.1
    assert frames.steps_of(str(tmp_path / "gpt.log"))["loss"].tolist() == [4.0, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3, 3.2]
    assert frames.steps.dtypes.astype(str).to_dict() == STEP_DTYPES
    (problem,) = frames.problems
    assert problem.startswith(f"{tmp_path}/noise.out: 1 lines, none of a known system")
    assert load_frames([tmp_path], steps=False).steps.empty


NANOGPT_LINES = "".join(
    f"iter {step}: loss {loss:.4f}, time {900 if step == 0 else 100:.2f}ms, mfu 15.34%\n"
    for step, loss in enumerate([4.0, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3, 3.2])
)
"""Eight steps of 0.1 s as nanoGPT prints them, the first of them slow."""
