"""Why a job waits, in words: Slurm's reason, what it means where it does not pass by itself, and when it may start."""

from __future__ import annotations

import time

from hpctrain.launch.slurm.states import SlurmState
from hpctrain.units import duration_in_words

_HELD = {
    "JobHeldUser": "held by its user; scontrol release {job}",
    "JobHeldAdmin": "held by an administrator of the cluster, who alone can release it",
    "JobHoldMaxRequeue": "held after too many requeues; look at its logs, then scontrol release {job} or cancel it",
}
_MEANINGS = {
    "DependencyNeverSatisfied": "it will never start, since the job before it did not end as asked for; cancel it",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives; it may wait for ever",
    "PartitionTimeLimit": "it asks for more time than the partition gives; it may wait for ever",
    "PartitionDown": "the partition takes no jobs now",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Dependency": "it waits for another job",
    "BeginTime": "it may not start before its time; a requeued job waits a while",
}
_LAUNCH_HELD = ("launch failed requeued held", "launch_failed_requeued_held")


def waiting_detail(told: SlurmState, job_id: str, now_s: float) -> tuple[str, str]:
    """State and detail of a job that waits.

    >>> waiting_detail(SlurmState("PENDING", "JobHeldUser", "squeue"), "7", 0.0)
    ('PENDING', 'JobHeldUser: held by its user; scontrol release 7')
    """
    reason = told.reason
    if reason.lower() in _LAUNCH_HELD:
        detail = f"{reason}: Slurm could not start it and holds it; see the node's slurmd log, then scontrol release {job_id}"
        return "LAUNCH_FAILED", detail
    key = reason.partition(",")[0].strip("() ")
    meaning = _HELD.get(key, _MEANINGS.get(key, "")).format(job=job_id)
    detail = f"{reason}: {meaning}" if meaning else reason
    if told.start_at_s is not None and told.start_at_s > now_s:
        wait = duration_in_words(told.start_at_s - now_s)
        detail += f"; expected to start {time.strftime('%d %b %H:%M', time.localtime(told.start_at_s))} (in {wait})"
    return told.state, detail
