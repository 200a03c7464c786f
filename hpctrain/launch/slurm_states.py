"""Asking Slurm about jobs: one query for all of them, state words read by their first word."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_QUERY_TIMEOUT_S = 30

FINISHED = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE REVOKED".split()
)
ACTIVE = frozenset(
    "PENDING RUNNING CONFIGURING COMPLETING SUSPENDED STOPPED REQUEUED REQUEUE_HOLD REQUEUE_FED RESIZING SIGNALING"
    " SPECIAL_EXIT STAGE_OUT".split()
)


@dataclass(frozen=True)
class SlurmState:
    """What Slurm says of one job."""

    state: str
    reason: str
    source: str
    """``squeue`` or ``sacct``."""

    @property
    def is_active(self) -> bool:
        return self.state not in FINISHED


@dataclass(frozen=True)
class SlurmAnswer:
    """States by job id, and what could not be asked."""

    states: dict[str, SlurmState]
    trouble: str = ""


def state_word(text: str) -> str:
    """Slurm's full word for a printed state: ``CANCELLED by 1000``, ``CANCELLED+`` and ``OUT_OF_ME+`` are cut forms.

    >>> state_word("CANCELLED by 1000"), state_word("OUT_OF_ME+"), state_word("NEWSTATE")
    ('CANCELLED', 'OUT_OF_MEMORY', 'NEWSTATE')
    """
    word = text.split()[0] if text.split() else ""
    if not word.endswith("+"):
        return word
    matches = [known for known in sorted(FINISHED | ACTIVE) if known.startswith(word[:-1])]
    return matches[0] if matches else word[:-1]


def query_states(job_ids: Sequence[str]) -> SlurmAnswer:
    """States of the jobs: squeue for those it still knows, then sacct, where accounting is on, for the others."""
    if not job_ids:
        return SlurmAnswer({})
    if shutil.which("squeue") is None:
        return SlurmAnswer({}, "there is no squeue on this machine's PATH")
    wanted = set(job_ids)
    queue, trouble = _run(["squeue", "-h", "-a", "-r", "-t", "all", "-u", getpass.getuser(), "-o", "%i|%T|%r"])
    states = {
        job_id: SlurmState(state_word(state), reason, "squeue")
        for job_id, state, reason in _fields(queue, 3)
        if job_id in wanted
    }
    missing = sorted(wanted - states.keys())
    if missing and not trouble and shutil.which("sacct") is not None:
        fields = "JobID,State,ExitCode"
        accounting, trouble = _run(["sacct", "-n", "-X", "-P", "-D", "-j", ",".join(missing), "-o", fields])
        # -D lists each restart; the last line of a job is its newest.
        for job_id, state, exit_code in _fields(accounting, 3):
            if job_id in wanted and state_word(state):
                states[job_id] = SlurmState(state_word(state), f"exit code {exit_code}", "sacct")
    return SlurmAnswer(states, trouble)


def _fields(text: str, count: int) -> list[list[str]]:
    rows = [line.strip().split("|", count - 1) for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def _run(command: list[str]) -> tuple[str, str]:
    """Output, and what went wrong (empty if nothing): a failing query says nothing about a job."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_QUERY_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} gave no answer in {_QUERY_TIMEOUT_S} s"
    if answer.returncode != 0:
        return "", f"{command[0]}: {answer.stderr.strip() or f'exit code {answer.returncode}'}"
    return answer.stdout, ""
