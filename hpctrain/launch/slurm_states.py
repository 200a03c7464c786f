"""Asking Slurm about jobs: one query for all of them, state words read by their first word."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.launch.environment import job_environment

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


@dataclass(frozen=True)
class SlurmCluster:
    """Which cluster to ask: as it was selected when a job was submitted."""

    slurm_conf: str = ""
    """Path of its slurm.conf; empty: the default one."""
    name: str = ""
    """Of a federation or multi-cluster site, for ``-M``; empty: the one that slurm.conf names."""

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs a client of Slurm, without the filters that the shell may have set for it.

        Raises:
            FileNotFoundError: the program is not on PATH.
            subprocess.TimeoutExpired: no answer in 30 s.
        """
        environment = job_environment(os.environ, inherit=False)
        if self.slurm_conf:
            environment["SLURM_CONF"] = self.slurm_conf
        words = [command[0], *(["-M", self.name] if self.name else []), *command[1:]]
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_QUERY_TIMEOUT_S,
            env=environment,
        )


def query_states(cluster: SlurmCluster, scripts: Mapping[str, str]) -> SlurmAnswer:
    """States of jobs: squeue for those it still knows, then sacct, where accounting is on, for the others.

    Args:
        cluster: whom to ask.
        scripts: job id to the batch script it was submitted with. Slurm counts from 1 again on a new cluster, so a job
            that runs another script is another job.
    """
    if not scripts:
        return SlurmAnswer({})
    queue, trouble = _run(
        cluster, ["squeue", "-h", "-a", "-r", "-t", "all", "-j", ",".join(scripts), "-o", "%i|%T|%r|%o"]
    )
    # With one id that is gone squeue fails, with several it leaves it out.
    trouble = "" if "Invalid job id" in trouble else trouble
    states, foreign = {}, set()
    for job_id, state, reason, script in _fields(queue, 4):
        if job_id in scripts and script.strip() != scripts[job_id]:
            foreign.add(job_id)
        elif job_id in scripts:
            states[job_id] = SlurmState(state_word(state), reason, "squeue")
    missing = sorted(scripts.keys() - states.keys() - foreign)
    if missing and not trouble and shutil.which("sacct") is not None:
        fields = "JobID,State,ExitCode"
        accounting, trouble = _run(cluster, ["sacct", "-n", "-X", "-P", "-D", "-j", ",".join(missing), "-o", fields])
        # -D lists each restart; the last line of a job is its newest.
        for job_id, state, exit_code in _fields(accounting, 3):
            if job_id in missing and state_word(state):
                states[job_id] = SlurmState(state_word(state), f"exit code {exit_code}", "sacct")
    return SlurmAnswer(states, trouble)


def _fields(text: str, count: int) -> list[list[str]]:
    rows = [line.strip().split("|", count - 1) for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def _run(cluster: SlurmCluster, command: list[str]) -> tuple[str, str]:
    """Output, and what went wrong (empty if nothing): a failing query says nothing about a job."""
    try:
        answer = cluster.run(command)
    except FileNotFoundError:
        return "", f"there is no {command[0]} on this machine's PATH"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} gave no answer in {_QUERY_TIMEOUT_S} s"
    if answer.returncode != 0:
        return "", f"{command[0]}: {answer.stderr.strip() or f'exit code {answer.returncode}'}"
    return answer.stdout, ""
