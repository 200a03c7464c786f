"""Trackers of a real run of two ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

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
