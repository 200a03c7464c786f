"""What Slurm's own lines in the batch log say of the end of an attempt; pure text.

slurmstepd tells the batch script why its job ends, srun which task ended how. Source: src/slurmd/slurmstepd/req.c and
src/srun/libsrun of Slurm 20.11 to 24.11; seen on 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hpctrain.record.schema import EndReason

_JOB_ENDED = re.compile(
    r"error: \*\*\* JOB (?P<job>\d+) ON (?P<node>\S+) CANCELLED AT \S+?(?: DUE TO (?P<cause>[\w -]+?))?(?:, SEE .*)? \*\*\*",
    re.IGNORECASE,
)
_NODE_FAILED = re.compile(r"srun: error: Node failure on (?P<node>\S+)")
_TASK_ENDED = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,-]+): (?P<words>.+)")
_MEMORY_ERROR = re.compile(r"error: \*\*\* (?:JOB|STEP) \S+ ON (?P<node>\S+) UNCORRECTABLE MEMORY ERROR AT ")
_NOT_LAUNCHED = re.compile(
    r"srun: (?:error|fatal): (?P<words>(?:Unable to (?:create|confirm|allocate)|Task launch for|Application launch failed"
    r"|.*set by two different environment variables|SLURM_MEM_PER_\w+).*)"
)
_ON_NODE = re.compile(r"failed on node (?P<node>[^\s:]+)")
_EXIT_CODE = re.compile(r"Exited with exit code (?P<code>\d+)")
_OUT_OF_MEMORY = re.compile(r"Detected \d+ oom[_-]kill event|oom-kill", re.IGNORECASE)
_SRUN_TOLD_TO_END = "srun: forcing job termination"
"""srun got SIGTERM or SIGQUIT, and kills its tasks."""
_ENDED_BY_SRUN = ("Terminated", "Killed by signal 15")
"""What the other tasks get when one failed, or the job ends."""
_CONSEQUENCES = (16, 17, 20)
"""Exit codes of ranks that were told to end or lost another one, see ``worker.end_reasons``: what they saw is in their record."""

_CAUSES: dict[str, tuple[EndReason, str]] = {
    "TIME LIMIT": ("time_limit", "Slurm's time limit was reached"),
    "PREEMPTION": ("preempted", "preempted by a job of higher priority"),
    "NODE FAILURE": ("node_failure", "a node failed"),
    "JOB REQUEUE": ("requeued", "requeued (scontrol requeue)"),
}
_CANCELLED: tuple[EndReason, str] = ("cancelled", "cancelled (scancel)")


@dataclass(frozen=True)
class EndEvidence:
    """Why an attempt ended, by Slurm's words."""

    reason: EndReason
    message: str
    exit_code: int | None = None
    """Of the first task that failed."""
    failed_rank: int | None = None
    failed_node: str | None = None


def end_evidence(log: str) -> EndEvidence | None:
    """The first event in the log that ended the job; None: Slurm said nothing of one.

    Args:
        log: the part of ``logs/batch.log`` that was written since the attempt began.

    >>> end_evidence("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T08:12:29 DUE TO TIME LIMIT ***").reason
    'time_limit'
    >>> end_evidence("srun: error: n2: task 2: Exited with exit code 3").failed_rank
    2
    """
    readers: tuple[Callable[[str, str], EndEvidence | None], ...] = (_of_node, _of_job, _of_task, _of_launch)
    for line in log.splitlines():
        for reader in readers:
            if (evidence := reader(line, log)) is not None:
                return evidence
    return None


def _of_node(line: str, log: str) -> EndEvidence | None:
    if broken := _MEMORY_ERROR.search(line):
        return EndEvidence(
            "node_failure", f"uncorrectable memory error on {broken['node']}", failed_node=broken["node"]
        )
    if _NODE_FAILED.search(line) is None:
        return None
    nodes = list(dict.fromkeys(found["node"].rstrip(",") for found in _NODE_FAILED.finditer(log)))
    return EndEvidence("node_failure", f"node failure on {', '.join(nodes)}", failed_node=",".join(nodes))


def _of_job(line: str, log: str) -> EndEvidence | None:
    match = _JOB_ENDED.search(line)
    if match is None:
        return None
    cause = (match["cause"] or "").upper()
    reason, message = _CAUSES.get(cause, _CANCELLED)
    if reason == "node_failure" and (named := _NODE_FAILED.search(log)):
        return _of_node(named[0], log)
    return EndEvidence(reason, message)


def _of_task(line: str, log: str) -> EndEvidence | None:
    match = _TASK_ENDED.search(line)
    if match is None or match["words"].strip() in _ENDED_BY_SRUN:
        return None
    words, first_rank = match["words"].strip(), int(re.split(r"[,-]", match["ranks"])[0])
    where = f"rank {first_rank} on {match['node']}"
    code = _EXIT_CODE.search(words)
    if code is not None and int(code["code"]) in _CONSEQUENCES:
        return None
    if words.startswith("User defined signal 1"):
        # It came while Python was starting, and nobody had taken the signal over yet.
        return EndEvidence("time_limit", f"Slurm's warning before the time limit (USR1) came before {where} had begun")
    if words == "Out Of Memory" or (words.startswith("Killed") and _OUT_OF_MEMORY.search(log)):
        message = f"{where} was killed: out of memory; see the node's memory and --mem"
        return EndEvidence("out_of_memory", message, None, first_rank, match["node"])
    if words.startswith("Killed") and _SRUN_TOLD_TO_END in log:
        return EndEvidence("cancelled", "cancelled: srun was told to end")
    if words.startswith("Killed"):
        message = f"{where} was killed (9), probably out of memory: see the node's memory and --mem"
        return EndEvidence("killed", message, None, first_rank, match["node"])
    message = f"{where} ended without a word: {words[0].lower()}{words[1:]}; see logs"
    return EndEvidence("exception", message, int(code["code"]) if code else None, first_rank, match["node"])


def _of_launch(line: str, log: str) -> EndEvidence | None:
    """srun could not start the ranks."""
    match = _NOT_LAUNCHED.search(line)
    if match is None:
        return None
    node = _ON_NODE.search(match["words"])
    return EndEvidence("launch_failed", f"srun: {match['words'].strip()}", failed_node=node["node"] if node else None)
