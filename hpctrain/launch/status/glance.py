"""What ``status`` needs of a run folder, read cheaply: a few keys of the plan, the attempts, the tail of the steps."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.errors import FORCED_KINDS, RecordError
from hpctrain.plan.batch_ramp import RampStage, samples_before, stage_of
from hpctrain.plan.flops import tflops_per_gpu
from hpctrain.record.files import open_regular, read_json, read_record
from hpctrain.record.lines import parse_step, parse_validation
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts, read_submission
from hpctrain.record.schema import AttemptRecord, CancelRecord, StepRecord, SubmissionRecord

_RECENT_STEPS = 20
_TAIL_BYTES = 16384
"""Twenty lines of steps.jsonl and more."""
_VALIDATION_BYTES = 1024
"""A line of validation.jsonl and more."""


_STEP_LINE = re.compile(
    rb'\{"schema_version": [12], "attempt": (\d{1,9}), "step": \d+, "time_s": (\d+\.\d+), [^{}]*'
    rb'"step_time_s": (\d+\.\d+), [^{}]*\}'
)
"""As ``StepWriter`` writes it; other spellings are read the slow way."""


@dataclass(frozen=True)
class PlanNumbers:
    """The few numbers of ``plan.json`` that a table of runs shows; its other 5,000 letters are not checked here."""

    payload: str
    num_steps: int
    num_nodes: int
    world_size: int
    model_flops: float
    predicted_step_time_s: float | None
    ramp: tuple[RampStage, ...] = ()
    """Of the batch; empty: every step has the full one."""
    forced: tuple[str, ...] = ()
    """Keys of the problems that --force let pass when it was submitted."""

    def steps_left(self, step: int) -> float:
        """Work behind ``step``, in steps like it: of a batch ramp by sequences, of which later steps have more."""
        if not self.ramp:
            return self.num_steps - step
        left = samples_before(self.ramp, self.num_steps + 1) - samples_before(self.ramp, step + 1)
        return left / stage_of(self.ramp, max(1, step)).global_batch_size

    def batch_share(self, step: int) -> float:
        """The batch of ``step`` over the full one: below 1 in a ramp."""
        full = self.ramp[-1].global_batch_size if self.ramp else 1
        return stage_of(self.ramp, max(1, step)).global_batch_size / full if self.ramp else 1.0

    def tflops_per_gpu(self, step_time_s: float, step: int) -> float:
        """Of a step like ``step``, model FLOPs."""
        return tflops_per_gpu(self.model_flops * self.batch_share(step), step_time_s, self.world_size)


@dataclass(frozen=True)
class StepsTail:
    """The newest whole lines of ``steps.jsonl``."""

    last: StepRecord | None = None
    step_time_s: float | None = None
    """Median of the newest attempt's, at most of the last twenty: a resume may have changed how a step is spread."""
    ended_at_s: dict[int, float] = field(default_factory=dict)
    """By attempt the moment of its last step, as far as these lines go back."""
    size_bytes: int = 0


@dataclass(frozen=True)
class RunGlance:
    """One run folder as it is now; what cannot be read is told in ``problem``."""

    run: RunPaths
    plan: PlanNumbers | None
    submission: SubmissionRecord | None
    attempts: tuple[AttemptRecord, ...]
    steps: StepsTail
    problem: str = ""
    cancelled: CancelRecord | None = None
    """Only looked for where the run has not completed."""
    validation_loss: float | None = None
    """Of the last validation; None: there was none, or it was not finite."""


def read_glance(run: RunPaths, before: RunGlance | None = None) -> RunGlance:
    """The run as its files tell it; never an error.

    Args:
        run: the run folder.
        before: an earlier look, whose plan is taken over and whose steps are where the file has not grown.
    """
    plan = submission = None
    attempts: tuple[AttemptRecord, ...] = ()
    steps, cancelled, validation_loss = StepsTail(), None, None
    problems = []
    try:
        plan = before.plan if before is not None and before.plan is not None else read_plan_numbers(run.plan)
    except RecordError as error:
        problems.append(str(error))
    try:
        attempts = tuple(read_attempts(run))
        steps = _read_tail(run.steps, before.steps if before is not None else StepsTail())
        validation_loss = _last_validation_loss(run.validations)
        if not (attempts and attempts[-1].state == "completed") and run.cancelled.exists():
            cancelled = read_record(run.cancelled, CancelRecord)
    except RecordError as error:
        problems.append(str(error))
    try:
        submission = read_submission(run)
    except RecordError as error:
        problems.append(f"never submitted, or the record is damaged: {error}")
    return RunGlance(run, plan, submission, attempts, steps, "; ".join(problems), cancelled, validation_loss)


def read_plan_numbers(path: Path) -> PlanNumbers:
    """The numbers of a plan.

    Raises:
        RecordError: it is missing, or no plan of this version.
    """
    try:
        raw: Any = read_json(path)
        layout, prediction = raw["layout"], raw.get("prediction")
        numbers = PlanNumbers(
            str(raw.get("payload", "train")),
            _count(raw["num_steps"]),
            _count(layout["num_nodes"]),
            _count(layout["num_nodes"]) * _count(layout["gpus_per_node"]),
            _positive(raw["flops_per_step"]["model_flops"]),
            None if prediction is None else _positive(prediction["step_time_s"]),
            tuple(RampStage(*map(_whole, stage.values())) for stage in raw["batch"].get("ramp", ())),
            _forced_keys(raw.get("problems", ())),
        )
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: is no plan of this version ({error})") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: {error}") from error
    return numbers


def _forced_keys(problems: list[dict[str, Any]]) -> tuple[str, ...]:
    """Those of the kinds that --force lets pass; see ``RunPlan.blocking_problems``."""
    return tuple(dict.fromkeys(str(each["key"]) for each in problems if each.get("kind") in FORCED_KINDS))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**63:
        raise ValueError(f"{value!r}: must be a whole number above 0")
    return value


def _whole(value: Any) -> int:
    return _count(value) if value != 0 else 0


def _positive(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r}: must be a number above 0")
    return float(value)


def _read_tail(path: Path, before: StepsTail) -> StepsTail:
    try:
        stream = open_regular(path)
    except FileNotFoundError:
        return StepsTail()
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    with stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes == before.size_bytes:
            return before
        start = max(0, size_bytes - _TAIL_BYTES)
        stream.seek(start)
        lines = stream.read(size_bytes - start).split(b"\n")
    # The first may be cut where reading began, the last is not whole yet.
    return _summary(lines[1 if start else 0 : -1][-_RECENT_STEPS:], size_bytes)


def _last_validation_loss(path: Path) -> float | None:
    """Read from the end of the file; a damaged line tells nothing here, ``report`` counts it."""
    try:
        with open_regular(path) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size_bytes - _VALIDATION_BYTES))
            lines = stream.read().split(b"\n")[:-1]
        return parse_validation(lines[-1]).loss if lines else None
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


def _summary(lines: Sequence[bytes], size_bytes: int) -> StepsTail:
    """The last line is read strictly; of the others a thousand runs need the times only. Damaged ones are counted by report."""
    last = None
    times_s: list[float] = []
    ended_at_s: dict[int, float] = {}
    for line in reversed(lines):
        match = _STEP_LINE.fullmatch(line) if last is not None else None
        if match is None:
            try:
                record = parse_step(line)
            except ValueError:
                continue
            last = last or record
            attempt, time_s, step_time_s = record.attempt, record.time_s, record.step_time_s
        else:
            attempt, time_s, step_time_s = int(match[1]), float(match[2]), float(match[3])
        if attempt == last.attempt:
            times_s.append(step_time_s)
        ended_at_s.setdefault(attempt, time_s)
    return StepsTail(last, statistics.median(times_s) if times_s else None, ended_at_s, size_bytes)
