"""The process beside rank 0 that hands a run's records to trackers: ``python -m hpctrain.track RUN ATTEMPT FIRST_STEP ...``.

It reads ``steps.jsonl`` and ``validation.jsonl`` as they grow, so that no import, network or error of a tracker reaches the
training. Standard input says how the attempt ends, in a word; where rank 0 is killed it ends without one.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import yaml

from hpctrain.config.schema import Config
from hpctrain.errors import HpctrainError
from hpctrain.record.frozen_config import parse_config
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, ValidationsFile, read_plan
from hpctrain.record.schema import TRACKERS_END_S
from hpctrain.secret_text import redact_text
from hpctrain.track.feed import FeedThread
from hpctrain.track.known_runs import KnownRuns
from hpctrain.track.points import Point, step_point, validation_point
from hpctrain.track.tracker import Ending, RunFacts, Tracker

_POLL_S = 2.0
_LEFT_SHARE = 0.9
"""Of the time that rank 0 waits at its end: then a tracker that does not answer is told, before rank 0 kills this process."""
_ENDINGS: dict[str, Ending] = {"completed": "completed", "failed": "failed", "stopped": "stopped"}


class Records:
    """What the run's growing files have of this attempt that was not handed on yet."""

    def __init__(self, paths: RunPaths, attempt: int, steps_offset: int, validations_offset: int) -> None:
        self._batch = read_plan(paths).batch
        self._attempt = attempt
        self._steps = StepsFile(paths.steps, steps_offset)
        self._validations = ValidationsFile(paths.validations, validations_offset)
        self._read: list[Point] = []
        """Of one file, while the other could not be read."""

    def new_points(self) -> list[Point]:
        """In the order of their steps; where a file cannot be read, those of the other come with the next call.

        Raises:
            HpctrainError: a file cannot be read.
        """
        self._read += [
            step_point(record, self._batch.tokens_before(record.step + 1))
            for record in self._steps.new_records()
            if record.attempt == self._attempt
        ]
        self._read += [
            validation_point(record) for record in self._validations.new_records() if record.attempt == self._attempt
        ]
        points, self._read = sorted(self._read, key=lambda point: point.step), []
        return points


def feeds(config: Config, facts: RunFacts) -> list[FeedThread]:
    """One for each tracker that is on; nothing is imported before its first point."""
    known = KnownRuns(facts.paths, facts.attempt)

    def tell(name: str, text: str) -> None:
        text = redact_text(text)
        print(f"hpctrain: warning: track.{name}: {text}; training goes on", flush=True)
        known.add_problem(name, text)

    def open_tensorboard() -> Tracker:
        from hpctrain.track.tensorboard_files import TensorboardFiles

        return TensorboardFiles(facts)

    def open_wandb() -> Tracker:
        from hpctrain.track.wandb_run import WandbRun

        assert config.track.wandb is not None
        return WandbRun(config.track.wandb, facts, known.wandb_id())

    def open_mlflow() -> Tracker:
        from hpctrain.track.mlflow_run import MlflowRun

        assert config.track.mlflow is not None
        run = MlflowRun(config.track.mlflow, facts, known.mlflow_run_id(config.track.mlflow.tracking_uri))
        known.set_mlflow_run(config.track.mlflow.tracking_uri, run.run_id)
        return run

    openers = {"tensorboard": open_tensorboard, "wandb": open_wandb, "mlflow": open_mlflow}
    return [FeedThread(name, openers[name], tell) for name in config.track.names]


def facts_of(paths: RunPaths, attempt: int, first_step: int) -> tuple[Config, RunFacts]:
    """The frozen configuration, and what trackers are told of the run."""
    text, plan = paths.config.read_text(encoding="utf-8"), read_plan(paths)
    sizes = {
        "num_parameters": plan.num_parameters,
        "world_size": plan.layout.world_size,
        "global_batch_size": plan.batch.global_batch_size,
        "tokens_per_step": plan.batch.tokens_per_step,
        "num_steps": plan.num_steps,
    }
    facts = RunFacts(paths, paths.root.name, yaml.safe_load(text), sizes, attempt, first_step)
    return parse_config(text), facts


def word_of_the_end() -> Ending | None:
    """How the attempt ended; None: it goes on. Waits a moment for it."""
    ready, _, _ = select.select([sys.stdin], [], [], _POLL_S)
    return _ENDINGS.get(sys.stdin.readline().strip(), "failed") if ready else None


def hand_on(records: Records, active: list[FeedThread]) -> bool:
    """Gives the trackers what is new; False: a file cannot be read now, and comes with a later call."""
    try:
        points = records.new_points()
    except HpctrainError as error:  # the file system does not answer
        print(f"hpctrain: warning: track: {error}", flush=True)
        return False
    for feed in active:
        feed.add(points)
    return True


def main(words: list[str]) -> None:
    """Follows the run to the end of the attempt.

    Args:
        words: run folder, attempt, first step, and where the records of the attempt begin in the two files, in bytes.
    """
    # Ranks on the same cores go first: the libraries of trackers take seconds of processor time to import. A tenth of a core is
    # left to them; with less, they would not be there before the end of a short attempt.
    os.nice(10)
    # Signals are for the rank, which says what follows.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    paths = RunPaths(Path(words[0]))
    attempt, first_step, steps_offset, validations_offset = map(int, words[1:])
    config, facts = facts_of(paths, attempt, first_step)
    records = Records(paths, attempt, steps_offset, validations_offset)
    active = feeds(config, facts)
    ending: Ending | None = None
    while ending is None:
        ending = word_of_the_end()
        is_read = hand_on(records, active)
    now_s, limit_s = time.monotonic(), _LEFT_SHARE * TRACKERS_END_S[ending]
    while not is_read and time.monotonic() < now_s + limit_s / 2:
        time.sleep(_POLL_S)
        is_read = hand_on(records, active)
    for feed in active:
        feed.close(ending)
    for feed in active:
        feed.wait(now_s + limit_s - time.monotonic())
    # Libraries would wait at exit for what does not answer.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
