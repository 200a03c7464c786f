"""Validations and batch ramps of run folders: what counts, what is undone, what is shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from hpctrain.analysis.figures.run_plot import plot_run
from hpctrain.analysis.frames import load_frames, read_run
from hpctrain.analysis.report.terminal import summary_table
from hpctrain.analysis.summary import summarise
from hpctrain.config.schema import BatchRampConfig
from hpctrain.launch.status.glance import read_glance
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import ValidationRecord
from hpctrain.record.writer import ValidationFile
from tests.analysis.make_runs import Attempt, make_run, toy_config


def validate(run: RunPaths, attempt: int, step: int, loss: float | None) -> None:
    ValidationFile(run.validations).append(ValidationRecord(1, attempt, step, 2e3, loss, 32, 1024, 0.5))


def test_the_curve_is_that_of_the_last_attempt_that_made_it(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", attempts=[Attempt([0.5] * 6, end={"state": "failed"}), Attempt([0.5] * 8, first_step=5)]
    )
    for attempt, step, loss in ((1, 4, 3.0), (1, 6, 9.0), (2, 6, 2.5), (2, 12, 2.0)):
        validate(run, attempt, step, loss)
    data = read_run(run)
    assert data.validations["superseded"].tolist() == [False, True, False, False]
    summary = summarise(data)
    assert summary.validation_loss == 2.0
    assert ("validation loss", "2.0000 nats per token, on held-out data") in summary_table(summary)
    (line,) = [
        line
        for line in plot_run(summary, data.steps, data.validations).axes[0].lines
        if line.get_label() == "on held-out data"
    ]
    assert np.asarray(line.get_xydata()).tolist() == [[4, 3.0], [6, 2.5], [12, 2.0]]
    frames = load_frames([tmp_path])
    assert frames.validations["loss"].tolist() == [3.0, 9.0, 2.5, 2.0]
    assert len(frames.validations_of(str(run.root))) == 4
    assert read_glance(run).validation_loss == 2.0


def test_what_is_not_finite_or_damaged_is_no_loss_and_spoils_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    validate(run, 1, 5, 3.0)
    validate(run, 1, 10, None)
    assert summarise(read_run(run)).validation_loss is None
    with run.validations.open("a") as stream:
        stream.write("half a li\n")
    frames = load_frames([tmp_path])
    assert frames.runs["valid"].tolist() == [True]
    assert frames.problems == (f"{run.validations}: 1 damaged line(s), left out",)
    assert read_glance(run).validation_loss is None


def test_steps_of_a_ramp_are_warm_up_and_the_speed_is_that_of_the_full_batch(tmp_path: Path) -> None:
    config = toy_config(gradient_accumulation_steps=2)
    ramp = BatchRampConfig(32, 32, 160)  # 5 steps of 32 sequences, then 64
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, batch_ramp=ramp))
    run = make_run(tmp_path / "run", config, [Attempt([0.001] * 5 + [0.5] * 7)])
    data = read_run(run)
    assert data.columns["warm_up"].tolist() == [True] * 5 + [False] * 7
    assert not data.columns["rejected"].any()  # a small batch may be that fast
    assert summarise(data).step_time_s == 0.5


def test_a_run_that_ends_in_its_ramp_says_why_it_has_no_speed(tmp_path: Path) -> None:
    config = toy_config(gradient_accumulation_steps=2)
    ramp = BatchRampConfig(32, 32, 6400)
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, batch_ramp=ramp))
    summary = summarise(read_run(make_run(tmp_path / "run", config)))
    assert summary.reason == "no steady step among 10 recorded, and the batch is the full one from step 201 on"
