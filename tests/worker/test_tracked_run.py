"""Trackers of a real run of two ranks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hpctrain.config.trackers import TrackConfig, WandbConfig
from hpctrain.record.files import read_record
from hpctrain.record.schema import TrackersRecord
from tests.track.tracked import read_tensorboard, read_wandb
from tests.worker.run_folder import make_config, make_run, start_ranks, step_records

pytestmark = pytest.mark.train


def test_trackers_have_what_the_run_folder_has(tmp_path: Path) -> None:
    held_out = {"name": "synthetic", "kind": "synthetic", "validation_fraction": 0.01}
    config = make_config(zero_stage=1, num_steps=9, validation_interval=9, validation_batches=1, data=held_out)
    config = dataclasses.replace(config, track=TrackConfig(tensorboard=True, wandb=WandbConfig("p", "offline")))
    run = make_run(tmp_path, config)
    with start_ranks(run) as ranks:
        assert ranks.wait() == [0, 0], ranks.logs()
        assert "warning: track" not in ranks.log()
    steps = step_records(run)
    scalars = read_tensorboard(run.tensorboard)["scalars"]
    assert [value for _, value, _ in scalars["train/loss"]] == pytest.approx([step.loss for step in steps])
    assert [time_s for _, _, time_s in scalars["train/loss"]] == pytest.approx([step.time_s for step in steps])
    (of_wandb,) = read_wandb(run.root)
    rows = [row for row in of_wandb["history"] if "train/loss" in row]
    assert [row["train/loss"] for row in rows] == [step.loss for step in steps]
    assert [row["time/backward_s"] for row in rows] == [step.backward_time_s for step in steps]
    assert [row["step"] for row in of_wandb["history"] if "validation/loss" in row] == [9]
    assert of_wandb["exit_code"] == 0
    assert read_record(run.trackers, TrackersRecord).wandb_id == of_wandb["id"]


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.2)


def tracking(folder: Path) -> list[psutil.Process]:
    """The process that follows the run of a folder."""
    words = {"hpctrain.track", str(folder)}
    processes = psutil.process_iter(["cmdline"])
    return [process for process in processes if words <= set(process.info["cmdline"] or ())]


def test_trackers_of_a_killed_rank_take_the_last_records_and_end(tmp_path: Path) -> None:
    """Its guard kills at once what else it leaves behind."""
    config = make_config(num_ranks=1, zero_stage=1, num_steps=100_000, log_interval=1)
    config = dataclasses.replace(config, track=TrackConfig(wandb=WandbConfig("p", "offline")))
    run = make_run(tmp_path, config)
    with start_ranks(run, 1, forked=False) as ranks:
        ranks.wait_for_steps(1)
        wait_until(run.trackers.exists)
        ranks.processes[0].kill()
        ranks.wait()
        wait_until(lambda: not tracking(run.root))
    (of_wandb,) = read_wandb(run.root)
    assert [row["train/loss"] for row in of_wandb["history"]] == [step.loss for step in step_records(run)]
    assert of_wandb["exit_code"] == 1


def test_a_killed_process_of_trackers_is_told_at_the_end_and_harms_nothing(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=1, num_steps=200, log_interval=1)
    run = make_run(tmp_path, dataclasses.replace(config, track=TrackConfig(tensorboard=True)))
    with start_ranks(run, 1, forked=False) as ranks:
        ranks.wait_for_steps(1)
        wait_until(lambda: bool(tracking(run.root)))
        tracking(run.root)[0].kill()
        assert ranks.wait() == [0], ranks.logs()
        assert (
            ranks.log().count("warning: the process of track.tensorboard was killed by signal 9; what they lack") == 1
        )
