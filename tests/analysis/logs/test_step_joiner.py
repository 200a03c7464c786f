"""Copies of a step, and which format names the system of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.analysis.logs.conditions import find_conditions
from hpctrain.analysis.logs.reading import LogReading, read_log
from hpctrain.errors import RecordError


def read(folder: Path, *lines: str) -> LogReading:
    path = folder / "some.log"
    path.write_text("\n".join(lines) + "\n")
    return read_log(path)


def titan(rank: int, step: int, loss: str, grad_norm: str = "1.5000") -> str:
    return (
        f"[rank{rank}]:[titan] 2025-03-04 12:00:{step:02d},250 - root - INFO - step: {step:2d}  loss: {loss}  "
        f"grad_norm: {grad_norm}  memory: 40.50GiB(51.20%)  tps: 4,{rank}00  tflops: 200.10  mfu: 20.23%"
    )


@pytest.mark.parametrize("ranks", [(0, 7), (7, 0)], ids=["placeholder-first", "loss-first"])
def test_the_loss_of_the_last_stage_fills_the_placeholder_of_the_first(ranks: tuple[int, int], tmp_path: Path) -> None:
    losses = {0: "-1.0000", 7: " 8.2500"}
    reading = read(tmp_path, *(titan(rank, step, losses[rank]) for step in (2, 3) for rank in ranks))
    assert [(row["iteration"], row["loss"]) for row in reading.records] == [(2, 8.25), (3, 8.25)]
    # All else stays that of the rank that came first.
    assert {row["tokens_per_s_per_gpu"] for row in reading.records} == {4000 + 100 * ranks[0]}


def test_a_nan_is_not_filled_by_another_rank(tmp_path: Path) -> None:
    reading = read(tmp_path, titan(0, 2, "    nan", "    nan"), titan(7, 2, " 8.2500"))
    (row,) = reading.records
    assert (row["loss"], row["loss_is_nan"], row["grad_norm"], row["grad_norm_is_nan"]) == (None, True, None, True)


def test_the_same_step_of_another_plan_is_another_run(tmp_path: Path) -> None:
    line = (
        " iteration        1/{:8d} | consumed samples:           16 | elapsed time per iteration (ms): 2000.0 "
        "| learning rate: 1.500E-04 | global batch size:    16 | lm loss: 9.500000E+00 | loss scale: 1.0 "
        "| number of skipped iterations:   0 | number of nan iterations:   0 |"
    )
    reading = read(tmp_path, *(line.format(total) for total in (10, 20, 30)))
    assert [(row["total_iterations"], row["segment"]) for row in reading.records] == [(10, 0), (20, 1), (30, 2)]


BAR = " 10%|#         | 10/100 [00:20<03:00,  2.00s/it]"
SPEED = "[2023-05-06 10:00:20,100] [INFO] [timer.py:157:stop] 0/10, SamplesPerSec=12.5"
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 512, reducing to 256"


def test_a_bar_without_a_loss_names_no_system_beside_an_engine(tmp_path: Path) -> None:
    reading = read(tmp_path, BAR + SPEED)
    assert reading.system == "deepspeed"
    assert [(row["iteration"], row["samples_per_s_running_avg"]) for row in reading.records] == [(10, 12.5)]
    assert read(tmp_path, BAR).system == "hf-trainer"


def test_an_end_of_the_job_names_no_system_beside_a_trainer(tmp_path: Path) -> None:
    micro = "[INFO] [logging.py:77:log_dist] [Rank 0] rank=0 time (ms) | forward_microstep: 12.5 | step_microstep: 3.5"
    traceback = "Traceback (most recent call last):"
    reading = read(tmp_path, micro, traceback, traceback, "RuntimeError: CUDA out of memory.")
    assert (reading.system, find_conditions(reading).flags) == ("deepspeed", ("end_oom",))
    assert read(tmp_path, traceback).system == "scheduler"


def test_skipped_steps_alone_are_a_log_if_their_loss_scale_is_told(tmp_path: Path) -> None:
    reading = read(tmp_path, OVERFLOW, OVERFLOW)
    assert (reading.system, find_conditions(reading).flags) == ("deepspeed", ("overflow_lines",))
    with pytest.raises(RecordError, match=r"some\.log: 1 lines, none of a known system; known: bigscience, "):
        read(tmp_path, "Gradient overflow.  Skipping step")


def test_a_trainer_names_the_system_before_the_engine_beneath_it(tmp_path: Path) -> None:
    built = "[2023-05-06 10:00:00,100] [INFO] [logging.py:60:log_dist] [Rank 0] step=0, skipped=0, lr=[5e-05], mom=[[0.9, 0.999]]"
    final = "{'train_runtime': 250.5, 'train_samples_per_second': 4.0, 'train_steps_per_second': 0.008, 'epoch': 1.0}"
    reading = read(tmp_path, built, OVERFLOW, OVERFLOW, final, final)
    assert (reading.system, len(reading.records)) == ("hf-trainer", 0)
    assert reading.fact_rows("final")[-1]["copies_of_final_dict"] == 2
    # An engine that is being built has made no step.
    assert len(read(tmp_path, built, OVERFLOW).records) == 0
