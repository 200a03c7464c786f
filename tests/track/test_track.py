"""The process beside rank 0, on a run folder that the test writes: what trackers get, over two attempts, and what errors do."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.trackers import MlflowConfig, TrackConfig, WandbConfig
from hpctrain.errors import RecordError
from hpctrain.record.files import read_record
from hpctrain.record.frozen_config import parse_config
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import ValidationsFile
from hpctrain.record.schema import StepRecord, TrackersRecord, ValidationRecord
from hpctrain.record.writer import StepWriter, ValidationFile
from hpctrain.track.__main__ import Records
from hpctrain.track.feed import MAX_WAITING, Feed
from hpctrain.track.points import Point, step_point, validation_point
from hpctrain.track.tracker import Ending
from tests.track.tracked import read_mlflow, read_tensorboard, read_wandb
from tests.worker.run_folder import SOURCE, make_config, make_run


def step(number: int, attempt: int = 1, loss: float | None = None) -> StepRecord:
    return StepRecord(
        2,
        attempt,
        number,
        1.8e9 + number,
        loss or 4.0 / number,
        1e-3,
        1.0,
        False,
        0.5,
        0.01,
        256,
        2**30,
        0.1,
        0.2,
        0.05,
    )


def tracked_run(folder: Path, track: TrackConfig, **training: Any) -> RunPaths:
    config = dataclasses.replace(make_config(**training), track=track)
    return make_run(folder, config)


def started(run: RunPaths, attempt: int, first_step: int, **env: str) -> subprocess.Popen[str]:
    """The process at the beginning of an attempt."""
    sizes = [str(path.stat().st_size if path.is_file() else 0) for path in (run.steps, run.validations)]
    words = [sys.executable, "-W", "error::DeprecationWarning:hpctrain", "-m", "hpctrain.track", str(run.root)]
    return subprocess.Popen(
        [*words, str(attempt), str(first_step), *sizes],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def follow(run: RunPaths, attempt: int, first_step: int, records: list[StepRecord], ending: str, **env: str) -> str:
    """Runs the process over one attempt, whose end comes when W&B, if it is on, has begun its run; returns what it printed."""
    process = started(run, attempt, first_step, **env)
    StepWriter(run.steps).append(records)
    ValidationFile(run.validations).append(ValidationRecord(1, attempt, records[-1].step, 1.8e9, 3.5, 16, 512, 0.25))
    # One that hides the package has a path of its own.
    is_awaited = parse_config(run.config.read_text()).track.wandb is not None and "PYTHONPATH" not in env
    wait_until(lambda: not is_awaited or len(list(run.root.glob("wandb/offline-run-*/*.wandb"))) == attempt)
    out, _ = process.communicate(ending, timeout=120)
    assert process.returncode == 0, out
    return out


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def test_all_trackers_have_the_records_of_two_attempts(tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'ml-runs'}"
    track = TrackConfig(True, WandbConfig("a project", "offline"), MlflowConfig(uri, "an experiment"))
    run = tracked_run(tmp_path, track)
    out = follow(run, 1, 1, [step(number) for number in range(1, 6)], "stopped\n")
    out += follow(run, 2, 4, [step(number, attempt=2, loss=9.0) for number in range(4, 7)], "completed\n")
    assert "warning" not in out

    board = read_tensorboard(run.tensorboard)
    # What the second attempt does again is there once: 4 and 5 of the first are undone.
    losses = board["scalars"]["train/loss"]
    assert losses == [[number, pytest.approx(4.0 / number), 1.8e9 + number] for number in (1, 2, 3)] + [
        [number, 9.0, 1.8e9 + number] for number in (4, 5, 6)
    ]
    assert [value for _, value, _ in board["scalars"]["train/tokens"]] == [256.0 * number for number in range(1, 7)]
    assert board["scalars"]["validation/loss"][-1][:2] == [6, 3.5]
    assert "hidden_size: 32" in board["config"]

    first, second = read_wandb(run.root)
    assert (first["id"], first["name"], first["project"]) == (second["id"], run.root.name, "a project")
    assert (first["exit_code"], second["exit_code"]) == (1, 0)
    assert first["config"]["model"]["hidden_size"] == 32
    assert first["config"]["plan"]["global_batch_size"] == 8
    assert [row["train/loss"] for row in first["history"] if "train/loss" in row] == [4.0 / n for n in range(1, 6)]
    assert [row["step"] for row in second["history"] if "train/loss" in row] == [4, 5, 6]
    assert [row["validation/loss"] for row in second["history"] if "validation/loss" in row] == [3.5]

    (of_mlflow,) = read_mlflow(uri, "an experiment")
    known = read_record(run.trackers, TrackersRecord)
    assert (of_mlflow["id"], of_mlflow["name"]) == (known.mlflow_run_id, run.root.name)
    assert (of_mlflow["status"], of_mlflow["tags"]["hpctrain.attempt"]) == ("FINISHED", "2")
    assert of_mlflow["params"]["model.hidden_size"] == "32"
    speeds = of_mlflow["history"]["speed/tokens_per_s"]
    assert sorted(speeds)[:2] == [[1, 512.0, 1_800_000_001_000], [2, 512.0, 1_800_000_002_000]]
    assert sorted(number for number, _, _ in of_mlflow["history"]["train/loss"]) == [1, 2, 3, 4, 4, 5, 5, 6]
    assert (known.wandb_id, known.problems) == (first["id"], ())


def test_records_of_one_file_wait_while_the_other_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, make_config())
    StepWriter(run.steps).append([step(1), step(2)])
    ValidationFile(run.validations).append(ValidationRecord(1, 1, 2, 1.8e9, 3.5, 16, 512, 0.25))
    records = Records(run, 1, 0, 0)

    def unreadable(file: ValidationsFile) -> list[ValidationRecord]:
        raise RecordError("validation.jsonl: Stale file handle")

    with monkeypatch.context() as broken:
        broken.setattr(ValidationsFile, "new_records", unreadable)
        with pytest.raises(RecordError, match="Stale"):
            records.new_points()
    assert [point.step for point in records.new_points()] == [1, 2, 2]
    assert records.new_points() == []


def test_a_file_that_cannot_be_read_at_the_end_is_looked_at_again(tmp_path: Path) -> None:
    run = tracked_run(tmp_path, TrackConfig(tensorboard=True))
    run.steps.mkdir()
    process = started(run, 1, 1)
    assert process.stdin
    assert process.stdout
    process.stdin.write("completed\n")
    process.stdin.flush()
    assert "steps.jsonl" in process.stdout.readline()
    run.steps.rmdir()
    StepWriter(run.steps).append([step(1), step(2)])
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert len(read_tensorboard(run.tensorboard)["scalars"]["train/loss"]) == 2


def test_secrets_reach_no_tracker(tmp_path: Path) -> None:
    secret = "hf_" + os.urandom(12).hex()
    config = dataclasses.replace(make_config(env={"HF_TOKEN": secret}), track=TrackConfig(tensorboard=True))
    run = make_run(tmp_path, config)
    follow(run, 1, 1, [step(1)], "completed\n")
    assert "HF_TOKEN: <redacted>" in read_tensorboard(run.tensorboard)["config"]
    assert secret.encode() not in b"".join(path.read_bytes() for path in run.tensorboard.iterdir())


def test_a_tracker_that_fails_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    track = TrackConfig(True, None, MlflowConfig("http://127.0.0.1:9", "x"))
    run = tracked_run(tmp_path, track)
    env = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}
    out = follow(run, 1, 1, [step(1), step(2)], "completed\n", **env)
    assert out.count("hpctrain: warning: track.mlflow: MlflowException: ") == 1
    assert "training goes on" in out
    assert "track.mlflow: 3 points were not taken; steps.jsonl has all" in out
    problems = read_record(run.trackers, TrackersRecord).problems
    assert [(problem.attempt, problem.tracker) for problem in problems] == [(1, "mlflow"), (1, "mlflow")]
    assert len(read_tensorboard(run.tensorboard)["scalars"]["train/loss"]) == 2


def test_a_server_that_never_answers_holds_up_neither_the_others_nor_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        run = tracked_run(tmp_path, TrackConfig(True, WandbConfig("p", "offline"), MlflowConfig(uri, "x")))
        started_s = time.monotonic()
        out = follow(run, 1, 1, [step(1), step(2)], "failed\n")
    assert time.monotonic() - started_s < 40
    assert (
        out.count("track.mlflow: did not take the last points before the end of the attempt; steps.jsonl has all") == 1
    )
    assert [problem.tracker for problem in read_record(run.trackers, TrackersRecord).problems] == ["mlflow"]
    assert len(read_tensorboard(run.tensorboard)["scalars"]["train/loss"]) == 2
    assert [found["exit_code"] for found in read_wandb(run.root)] == [1]


def test_a_missing_package_is_told_with_its_extra(tmp_path: Path) -> None:
    run = tracked_run(tmp_path, TrackConfig(wandb=WandbConfig("p", "offline")))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.modules['wandb'] = None\n")
    out = follow(run, 1, 1, [step(1)], "completed\n", PYTHONPATH=f"{hidden}:{SOURCE}")
    assert "track.wandb: " in out
    assert "pip install 'hpctrain[track]'" in out


def test_a_rank_that_is_killed_leaves_a_failed_run(tmp_path: Path) -> None:
    """Its end of the pipe closes without a word."""
    run = tracked_run(tmp_path, TrackConfig(wandb=WandbConfig("p", "offline")))
    follow(run, 1, 1, [step(1)], "")
    assert [found["exit_code"] for found in read_wandb(run.root)] == [1]


class Unsteady:
    """A tracker that takes points while it is told to."""

    def __init__(self) -> None:
        self.works, self.taken, self.ended = True, list[int](), list[Ending]()

    def write(self, points: Any) -> None:
        if not self.works:
            raise ConnectionError("no route")
        self.taken += [point.step for point in points]

    def close(self, ending: Ending) -> None:
        self.ended.append(ending)


def points(*steps: int) -> list[Point]:
    return [Point(number, 0.0, {"x": 1.0}) for number in steps]


def test_what_an_outage_keeps_back_comes_later_in_order() -> None:
    tracker, told = Unsteady(), list[str]()
    feed = Feed("mlflow", lambda: tracker, lambda name, text: told.append(text))
    feed.add(points(1), 0.0)
    tracker.works = False
    feed.add(points(2), 10.0)
    feed.add(points(3), 20.0)  # within a minute: not tried
    feed.add([], 71.0)
    assert told == ["ConnectionError: no route"]
    tracker.works = True
    feed.add(points(4), 120.0)  # after the second error two minutes
    assert tracker.taken == [1]
    feed.add([], 200.0)
    assert tracker.taken == [1, 2, 3, 4]
    tracker.works = False
    feed.add(points(5), 210.0)
    assert len(told) == 2
    tracker.works = True
    feed.close("completed", 211.0)
    assert (tracker.taken, tracker.ended, len(told)) == ([1, 2, 3, 4, 5], ["completed"], 2)


def test_a_tracker_that_never_comes_back_takes_no_memory_without_end() -> None:
    told = list[str]()

    def fail() -> Unsteady:
        raise OSError("no disk")

    feed = Feed("tensorboard", fail, lambda name, text: told.append(text))
    started = time.monotonic()
    for number in range(3):
        feed.add(points(*range(MAX_WAITING // 2)), 1e6 * number)
    feed.close("failed", 4e6)
    assert told[0] == "OSError: no disk"
    assert told[-1] == f"{MAX_WAITING // 2 * 3} points were not taken; steps.jsonl has all"
    assert time.monotonic() - started < 10


def test_what_is_not_known_is_left_out() -> None:
    record = dataclasses.replace(step(1), loss=None, grad_norm=None, forward_time_s=None, step_time_s=0.0)
    values = step_point(record, 256).values
    assert not {"train/loss", "train/grad_norm", "time/forward_s", "speed/tokens_per_s", "train/loss_scale"} & set(
        values
    )
    assert values["train/tokens"] == 256.0
    assert validation_point(ValidationRecord(1, 1, 3, 5.0, None, 8, 256, 0.5)).values == {"time/validation_s": 0.5}
