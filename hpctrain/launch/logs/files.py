"""Which logs a run has, and which of them a user asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import ConfigError, RecordError
from hpctrain.record.files import read_record
from hpctrain.record.log_sizes import log_sizes
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_each_attempt, read_submission
from hpctrain.record.schema import AttemptRecord, SubmissionRecord

BATCH = -1
"""In the place of a rank: the batch script's log, of a local run the controller's."""
_RANK_LOG = re.compile(r"rank-(?P<rank>\d+)\.log")
_LOCAL_LOG = re.compile(r"(?P<job>\d+)_(?P<rank>\d+)_log\.(out|err)")


@dataclass(frozen=True)
class LogFile:
    """One log, or the part of it that an attempt wrote."""

    path: Path
    rank: int
    start: int = 0
    end: int | None = None
    """None: it may grow."""

    @property
    def label(self) -> str:
        return "batch" if self.rank == BATCH else f"rank {self.rank}"


def find_logs(run: RunPaths, attempt: int | None) -> dict[int, list[LogFile]]:
    """The logs that are there, by rank; of a local run only those of the newest start, or of ``attempt``.

    Raises:
        ConfigError: there is no such attempt, or nobody noted where its output begins.
    """
    attempts = read_each_attempt(run).attempts
    numbers = [record.attempt for record in attempts]
    if attempt is not None and attempt not in numbers:
        known = f"there are {', '.join(map(str, numbers))}" if numbers else "none has begun"
        raise ConfigError(f"--attempt={attempt}: this run has no such attempt; {known}")
    try:
        submission = read_submission(run)
    except RecordError:
        submission = None  # its logs may be there all the same
    # A script in an allocation is a local run, too; its logs are those of a job.
    if submission is not None and submission.cluster_kind == "local" and not submission.command:
        return _local_logs(run, _local_job(run, submission, attempts, attempt))
    bounds = _Bounds(run, attempt, numbers)
    found = {
        int(match["rank"]): [bounds.of(run.logs / name, int(match["rank"]))]
        for name in _names(run.logs)
        if (match := _RANK_LOG.fullmatch(name))
    }
    return {BATCH: [bounds.of(run.batch_log, BATCH)]} | found if run.batch_log.exists() else found


class _Bounds:
    """Where the output of one attempt begins and ends."""

    def __init__(self, run: RunPaths, attempt: int | None, numbers: Sequence[int]) -> None:
        self._begin: dict[str, int] = {}
        self._end: dict[str, int] | None = None
        if attempt is None:
            return
        begin = log_sizes(run, attempt)
        later = [number for number in numbers if number > attempt]
        self._end = log_sizes(run, later[0]) if later else None
        if begin is None or (later and self._end is None):
            raise ConfigError(
                f"--attempt={attempt}: nobody noted where its output begins and ends; see the whole log without --attempt"
            )
        self._begin = begin

    def of(self, path: Path, rank: int) -> LogFile:
        end = None if self._end is None else self._end.get(path.name, 0)
        return LogFile(path, rank, self._begin.get(path.name, 0), end)


def _local_job(
    run: RunPaths, submission: SubmissionRecord, attempts: Sequence[AttemptRecord], attempt: int | None
) -> str:
    """The process id whose files hold the output: of the newest submission, or of the one that made ``attempt``."""
    if attempt is None or attempt >= submission.first_attempt:
        return submission.job_id
    job_id = next(record.job_id for record in attempts if record.attempt == attempt)
    earlier = run.earlier_submissions / f"{attempt}.json"
    return job_id or read_record(earlier, SubmissionRecord).job_id


def _local_logs(run: RunPaths, job_id: str) -> dict[int, list[LogFile]]:
    found: dict[int, list[LogFile]] = {}
    if run.controller_log.exists():
        found[BATCH] = [LogFile(run.controller_log, BATCH)]
    for name in _names(run.submitit):
        match = _LOCAL_LOG.fullmatch(name)
        if match and match["job"] == job_id:
            found.setdefault(int(match["rank"]), []).append(LogFile(run.submitit / name, int(match["rank"])))
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{folder}: {error.strerror}") from error


def default_ranks(run: RunPaths, found: dict[int, list[LogFile]], attempt: int | None) -> list[int]:
    """Of a failed run the rank that failed first, or where none is named the batch log and rank 0; else rank 0."""
    attempts = [record for record in read_each_attempt(run).attempts if attempt in (None, record.attempt)]
    last = attempts[-1] if attempts else None
    if last is not None and last.state == "failed":
        if last.failed_rank in found and last.failed_rank is not None:
            return [last.failed_rank]
        return [rank for rank in (BATCH, 0) if rank in found]
    return [0] if 0 in found else [BATCH]
