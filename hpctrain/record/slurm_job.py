"""One question to Slurm from inside a job: what it knows of a job. Thin; the states of many runs are ``launch``'s."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.errors import LaunchError

_TIMEOUT_S = 20
_HOLDS_NODES = frozenset("RUNNING COMPLETING SUSPENDED STOPPED CONFIGURING RESIZING SIGNALING STAGE_OUT".split())


@dataclass(frozen=True)
class JobFacts:
    """What ``scontrol show job`` says of one job."""

    state: str
    restarts: int
    """How often Slurm has requeued it."""

    @property
    def holds_nodes(self) -> bool:
        return self.state in _HOLDS_NODES


def job_facts(job_id: str) -> JobFacts | None:
    """What Slurm knows of a job (``123`` or ``123_4``); None: it does not know it (any more).

    Raises:
        LaunchError: Slurm could not be asked.
    """
    answer = _scontrol(["show", "job", job_id])
    if answer.returncode != 0:
        if "Invalid job id" in answer.stderr:
            return None
        raise LaunchError(f"scontrol: {answer.stderr.strip() or f'exit code {answer.returncode}'}")
    return parse_job(answer.stdout)


def failed_nodes(nodes: Sequence[str], since_s: float) -> list[str]:
    """Those of the nodes that Slurm calls down, or that were started again since ``since_s`` (Unix time).

    Raises:
        LaunchError: Slurm could not be asked.
    """
    answer = _scontrol(["show", "node", ",".join(nodes)])
    if answer.returncode != 0:
        raise LaunchError(f"scontrol: {answer.stderr.strip() or f'exit code {answer.returncode}'}")
    return parse_failed_nodes(answer.stdout, since_s)


def _scontrol(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["scontrol", "-o", *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise LaunchError("there is no scontrol on this node's PATH") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"scontrol gave no answer in {_TIMEOUT_S} s") from None


def parse_job(text: str) -> JobFacts | None:
    """The job in the last line of ``scontrol -o show job``.

    >>> parse_job("JobId=7 JobName=a b JobState=PENDING Reason=BeginTime Requeue=1 Restarts=2 BatchFlag=1")
    JobFacts(state='PENDING', restarts=2)
    """
    lines = [line for line in text.splitlines() if "JobState=" in line]
    if not lines:
        return None
    state = re.search(r" JobState=(\S+)", lines[-1])
    restarts = re.search(r" Restarts=(\d+)", lines[-1])
    return JobFacts(state[1] if state else "", int(restarts[1]) if restarts else 0)


def parse_failed_nodes(text: str, since_s: float) -> list[str]:
    """Names in ``scontrol -o show node`` whose state is down, or whose machine or slurmd was started after ``since_s``.

    >>> parse_failed_nodes("NodeName=n1 State=DOWN*+DRAIN BootTime=None\nNodeName=n2 State=IDLE", 0.0)
    ['n1']
    """
    names = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(NodeName|State|BootTime|SlurmdStartTime)=(\S+)", line))
        states = re.split(r"[^A-Z_]+", fields.get("State", ""))
        is_down = not {"DOWN", "FAIL", "FAILING", "NOT_RESPONDING"}.isdisjoint(states) or "*" in fields.get("State", "")
        starts = [_moment_s(fields.get(name, "")) for name in ("BootTime", "SlurmdStartTime")]
        if "NodeName" in fields and (is_down or max(starts) > since_s):
            names.append(fields["NodeName"])
    return names


def _moment_s(text: str) -> float:
    """Unix time of Slurm's local time; 0 for ``None`` and ``Unknown``."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
