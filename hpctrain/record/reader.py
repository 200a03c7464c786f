"""Reading a run folder back: configuration, plan, records."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, RecordError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.attempt_files import attempt_numbers
from hpctrain.record.files import checked_json, open_regular, read_record
from hpctrain.record.frozen_config import parse_config
from hpctrain.record.lines import UNIX_TIME_LIMIT_S, number_problem, parse_node_sample, parse_step, parse_validation
from hpctrain.record.paths import SNAPSHOTS, RunPaths
from hpctrain.record.schema import AttemptRecord, NodeSample, StepRecord, SubmissionRecord, ValidationRecord

_JOB_ID = re.compile(r"\d+(_\d+)?")
_AZUREML_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NAME_WITH_TIME = re.compile(r".*-(?P<time>\d{8}-\d{6})-[0-9a-f]{4}")


def read_config(run: RunPaths) -> Config:
    """The frozen configuration of a run."""
    try:
        with open_regular(run.config) as stream:
            text = stream.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"{run.config}: {error}") from error
    except OSError as error:
        raise RecordError(f"{run.config}: {error.strerror}; is {run.root} a run folder of hpctrain?") from error
    try:
        return parse_config(text)
    except ConfigError as error:
        raise RecordError(f"{run.config}: {error}") from error


def read_overrides(run: RunPaths) -> list[str]:
    """What was typed for a run, in Hydra's spelling."""
    raw = checked_json(run.overrides)
    if not isinstance(raw, list):
        raise RecordError(f"{run.overrides}: is no list of overrides; restore it, or write [] into it")
    return [str(word) for word in raw]


def read_plan(run: RunPaths) -> RunPlan:
    return read_record(run.plan, RunPlan)


def read_submission(run: RunPaths) -> SubmissionRecord:
    record = read_record(run.submission, SubmissionRecord)
    # These words go to Slurm's commands.
    form = _AZUREML_JOB if record.cluster_kind == "azureml" else _JOB_ID
    if not form.fullmatch(record.job_id) or (record.cluster_kind == "slurm" and not record.command):
        raise RecordError(f"{run.submission}: job_id={record.job_id!r} is no job id, or the command is missing")
    if not (record.slurm_conf + record.slurm_cluster).isprintable():
        raise RecordError(f"{run.submission}: slurm_conf or slurm_cluster is damaged")
    return record


def read_attempts(run: RunPaths) -> list[AttemptRecord]:
    """All starts of the run in order; a failure that a rank wrote down counts before the end marker is there.

    Raises:
        RecordError: one of them cannot be read.
    """
    return [_read_attempt(run, number) for number in attempt_numbers(run)]


@dataclass(frozen=True)
class AttemptFiles:
    """What ``attempts/`` holds, each file read by itself."""

    attempts: tuple[AttemptRecord, ...]
    problems: tuple[str, ...]
    """One text for each start that cannot be read, or for the folder."""
    last_is_known: bool
    """False: how the run stands now is not known."""


def read_each_attempt(run: RunPaths) -> AttemptFiles:
    """The starts that can be read, and what is wrong with the others; never an error."""
    attempts, problems, last_is_known = [], [], True
    try:
        numbers = attempt_numbers(run)
    except RecordError as error:
        return AttemptFiles((), (str(error),), False)
    for number in numbers:
        try:
            attempts.append(_read_attempt(run, number))
            last_is_known = True
        except RecordError as error:
            problems.append(str(error))
            last_is_known = False
    return AttemptFiles(tuple(attempts), tuple(problems), last_is_known)


def _read_attempt(run: RunPaths, number: int) -> AttemptRecord:
    failure = _checked_attempt(run.failure(number), number) if _exists(run.failure(number)) else None
    if failure is not None and not _exists(run.attempt(number)):
        return failure  # it failed before rank 0 could say that it started
    attempt = _checked_attempt(run.attempt(number), number)
    return with_failure(attempt, failure) if failure is not None and attempt.state == "running" else attempt


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


def _checked_attempt(path: Path, number: int) -> AttemptRecord:
    attempt = read_record(path, AttemptRecord)
    problem = number_problem(vars(attempt)) or _moment_problem(attempt)
    if not problem and attempt.attempt != number:
        problem = (
            f"attempt={attempt.attempt}, but the file's name says {number}: copied or renamed; restore or remove it"
        )
    if problem:
        raise RecordError(f"{path}: {problem}")
    return attempt


def _moment_problem(attempt: AttemptRecord) -> str:
    """Text if a moment lies outside what any clock shows; else empty."""
    moments = {name: getattr(attempt, name) for name in ("started_at_s", "ended_at_s")}
    for name, moment_s in moments.items():
        if moment_s is not None and not 0 < moment_s < UNIX_TIME_LIMIT_S:
            return f"{name}={moment_s:g} must be a Unix time in seconds, above 0 and below the year 10000"
    return ""


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


T = TypeVar("T")


@dataclass
class GrowingFile(Generic[T]):
    """Reads lines of records as they are written: each call of ``new_records`` gives the whole lines since the last.

    A file that is not there yet has none; ``RecordError`` if it cannot be read.
    """

    path: Path
    offset: int = 0
    damaged_lines: int = 0
    """Whole lines that are no record of this schema, see ``record.lines``."""

    def parse(self, line: bytes) -> T:
        """One whole line, or ValueError."""
        raise NotImplementedError

    def new_records(self) -> Iterator[T]:
        try:
            stream = open_regular(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(f"{self.path}: {error.strerror}") from error
        with stream:
            stream.seek(self.offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                try:
                    yield self.parse(line[:-1])
                except ValueError:
                    self.damaged_lines += 1


class StepsFile(GrowingFile[StepRecord]):
    """``steps.jsonl``."""

    def parse(self, line: bytes) -> StepRecord:
        return parse_step(line)


class ValidationsFile(GrowingFile[ValidationRecord]):
    """``validation.jsonl``."""

    def parse(self, line: bytes) -> ValidationRecord:
        return parse_validation(line)


def read_node_samples(path: Path) -> tuple[list[NodeSample], int]:
    """The looks at one node in the order of the file, and the number of whole lines that are none of this schema.

    Raises:
        OSError: the file cannot be read.
    """
    samples, damaged_lines = [], 0
    with open_regular(path) as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            try:
                samples.append(parse_node_sample(line[:-1]))
            except ValueError:
                damaged_lines += 1
    return samples, damaged_lines


def runs_folder(run: RunPaths) -> Path:
    """The folder that holds the runs: above a sweep's folder, if the run is a point of one."""
    parent = run.root.parent
    return parent.parent if run.sweep_manifest.exists() else parent


def search_runs(root: Path) -> tuple[list[RunPaths], list[str]]:
    """All run folders at ``root`` or below it, oldest first by the time in their names, and a text for each folder not opened.

    A run holds ``plan.json``; its folder is not searched for others.

    Raises:
        RecordError: there is no such folder, or it may not be looked at.
    """
    if not _exists(root) or not root.is_dir():
        raise RecordError(f"{root}: no such folder; runs are kept in run.root (default: runs)")
    runs, problems = [], []

    def not_opened(error: OSError) -> None:
        problems.append(f"{error.filename}: {error.strerror}")

    for folder, folders, files in os.walk(root, onerror=not_opened):
        if "plan.json" in files or "plan.json" in folders:
            runs.append(RunPaths(Path(folder)))
            folders.clear()
        folders[:] = sorted(name for name in folders if name != SNAPSHOTS)
    runs.sort(key=lambda run: run.root)
    runs.sort(key=lambda run: match["time"] if (match := _NAME_WITH_TIME.fullmatch(run.root.name)) else "")
    return runs, problems
