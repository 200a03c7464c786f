"""Jobs found by what was submitted, for a submission whose answer was lost."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from hpctrain.record.slurm_command import ask_slurm

_QUERY_TIMEOUT_S = 30
_BEFORE_S = 600
"""Clocks of this machine and of the controller may differ."""
_SEPARATOR = "\x1f"
_JOB_NUMBER = re.compile(r"\d+")
_CLUSTER_LINE = re.compile(r"CLUSTER: (?P<name>[\w.-]+)")


class FoundJob(NamedTuple):
    """A job that Slurm has."""

    job_id: str
    """Of an array its own one, without a task."""
    slurm_cluster: str = ""
    """Where it was named: of a federation or multi-cluster site."""


class JobSearch(NamedTuple):
    """What was found, the oldest first, and why it may be not all."""

    jobs: tuple[FoundJob, ...]
    trouble: str
    """Empty: there are no others."""


def search_jobs(environment: Mapping[str, str], mark: str, known: frozenset[str], since_s: float) -> JobSearch:
    """Jobs of this user that carry ``mark`` in comment or script path: those of the queue, then those of accounting.

    Args:
        environment: of the sbatch call, which selects the cluster.
        mark: text that no other submission has.
        known: job ids that are left out.
        since_s: Unix time of the submission.
    """
    user = str(os.getuid())
    fields = _SEPARATOR.join(("%F", "%k", "%o"))
    queue, trouble = _ask(environment, ["squeue", "-h", "-a", "-t", "all", "-u", user, "-o", fields])
    jobs = _marked(queue, mark, known)
    if jobs or trouble:
        return JobSearch(jobs, trouble)
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_s - _BEFORE_S))
    listing = ["sacct", "-n", "-X", "-P", f"--delimiter={_SEPARATOR}", "-u", user, "-S", start, "-o"]
    for columns in ("JobID,Comment,SubmitLine", "JobID,Comment"):  # SubmitLine came with Slurm 21.08
        accounting, no_accounting = _ask(environment, [*listing, columns])
        if not no_accounting:
            # A site without accounting has the queue, which keeps ended jobs for MinJobAge.
            return JobSearch(_marked(accounting, mark, known), "")
    return JobSearch((), "")


def _marked(listing: str, mark: str, known: frozenset[str]) -> tuple[FoundJob, ...]:
    jobs: dict[str, FoundJob] = {}
    cluster = ""
    for line in listing.splitlines():
        if heading := _CLUSTER_LINE.match(line):
            cluster = heading["name"]
        number = _JOB_NUMBER.match(line.strip())
        if number is None or number[0] in known:
            continue
        if any(_holds(field.strip(), mark) for field in line.split(_SEPARATOR)[1:]):
            jobs.setdefault(number[0], FoundJob(number[0], cluster))
    return tuple(sorted(jobs.values(), key=lambda job: int(job.job_id)))


def _holds(field: str, mark: str) -> bool:
    return field == mark or field.endswith((f" {mark}", f"'{mark}'")) or mark in field.split()


def _ask(environment: Mapping[str, str], command: list[str]) -> tuple[str, str]:
    return ask_slurm(command, _QUERY_TIMEOUT_S, environment, own_session=True)
