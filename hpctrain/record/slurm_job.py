"""One question to Slurm from inside a job: what it knows of a job. Thin; the states of many runs are ``launch``'s."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.errors import LaunchError
from hpctrain.record.slurm_command import ask_slurm

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
    text, trouble = _scontrol(["show", "job", job_id])
    if "Invalid job id" in trouble:
        return None
    if trouble:
        raise LaunchError(trouble)
    return parse_job(text)


def nodes_down_since(nodes: Sequence[str], since_s: float) -> list[str]:
    """Those of the nodes that Slurm calls down, or that were started again since ``since_s`` (Unix time).

    Raises:
        LaunchError: Slurm could not be asked.
    """
    text, trouble = _scontrol(["show", "node", ",".join(nodes)])
    if trouble:
        raise LaunchError(trouble)
    return parse_nodes_down_since(text, since_s)


def _scontrol(words: list[str]) -> tuple[str, str]:
    return ask_slurm(["scontrol", "-o", *words], _TIMEOUT_S)


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


def parse_nodes_down_since(text: str, since_s: float) -> list[str]:
    r"""Names in ``scontrol -o show node`` whose state is down, or whose machine or slurmd was started after ``since_s``.

    >>> parse_nodes_down_since("NodeName=n1 State=DOWN*+DRAIN BootTime=None\nNodeName=n2 State=IDLE", 0.0)
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
