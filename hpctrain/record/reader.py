"""Reading a run folder back: configuration, plan, records."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.config.schema import Config
from hpctrain.errors import RecordError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import parse_record, read_record
from hpctrain.record.frozen_config import parse_config
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import AttemptRecord, StepRecord, SubmissionRecord

_JOB_ID = re.compile(r"\d+(_\d+)?")
_ATTEMPT_FILE = re.compile(r"(?P<number>\d+)(\.failure)?\.json")
_NAME_WITH_TIME = re.compile(r".*-(?P<time>\d{8}-\d{6})-[0-9a-f]{4}")


def read_config(run: RunPaths) -> Config:
    """The frozen configuration of a run."""
    try:
        return parse_config(run.config.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{run.config}: {error.strerror}; is {run.root} a run folder of hpctrain?") from error


def read_plan(run: RunPaths) -> RunPlan:
    return read_record(run.plan, RunPlan)


def read_submission(run: RunPaths) -> SubmissionRecord:
    record = read_record(run.submission, SubmissionRecord)
    # These words go to Slurm's commands.
    if not _JOB_ID.fullmatch(record.job_id) or (record.cluster_kind == "slurm" and not record.command):
        raise RecordError(f"{run.submission}: job_id={record.job_id!r} is no job id, or the command is missing")
    if not (record.slurm_conf + record.slurm_cluster).isprintable():
        raise RecordError(f"{run.submission}: slurm_conf or slurm_cluster is damaged")
    return record


def read_attempts(run: RunPaths) -> list[AttemptRecord]:
    """All starts of the run in order; a failure that a rank wrote down counts before the end marker is there."""
    names = [_ATTEMPT_FILE.fullmatch(path.name) for path in run.attempts.glob("*.json")]
    numbers = {int(match["number"]) for match in names if match}
    return [_read_attempt(run, number) for number in sorted(numbers)]


def _read_attempt(run: RunPaths, number: int) -> AttemptRecord:
    failure = read_record(run.failure(number), AttemptRecord) if run.failure(number).exists() else None
    if failure is not None and not run.attempt(number).exists():
        return failure  # it failed before rank 0 could say that it started
    attempt = read_record(run.attempt(number), AttemptRecord)
    return with_failure(attempt, failure) if failure is not None and attempt.state == "running" else attempt


def with_failure(started: AttemptRecord, failure: AttemptRecord) -> AttemptRecord:
    """The failing rank knows why it ended; who took part is known from the start record."""
    return dataclasses.replace(
        started,
        state="failed",
        ended_at_s=failure.ended_at_s,
        end_reason=failure.end_reason,
        exit_code=failure.exit_code,
        message=failure.message,
        failed_rank=failure.failed_rank,
        failed_node=failure.failed_node,
    )


@dataclass
class StepsFile:
    """Reads ``steps.jsonl`` as it grows: each call of ``new_records`` gives the whole lines since the last."""

    path: Path
    offset: int = 0
    damaged_lines: int = 0
    """Whole lines that are no step record of this schema."""

    def new_records(self) -> Iterator[StepRecord]:
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                try:
                    yield parse_record(json.loads(line), StepRecord, f"{self.path}")
                except (ValueError, RecursionError, RecordError):
                    self.damaged_lines += 1


def find_runs(root: Path) -> list[RunPaths]:
    """All run folders at ``root`` or below it, oldest first by the time in their names; a run holds ``plan.json``.

    Raises:
        RecordError: there is no such folder.
    """
    if not root.is_dir():
        raise RecordError(f"{root}: no such folder; runs are kept in run.root (default: runs)")
    runs = [RunPaths(path.parent) for path in sorted(root.rglob("plan.json"))]
    return sorted(runs, key=lambda run: match["time"] if (match := _NAME_WITH_TIME.fullmatch(run.root.name)) else "")
