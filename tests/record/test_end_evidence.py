"""Slurm's own words about the end of a job."""

from __future__ import annotations

import pytest

from hpctrain.record.end_evidence import end_evidence

# Copied from Slurm 22.05.8; the last but one form is that of 23.11 and later.
CANCELLED = "slurmstepd-n1: error: *** JOB 10 ON n1 CANCELLED AT 2026-11-30T08:20:33 ***"
PREEMPTED = "slurmstepd-n1: error: *** JOB 11 ON n1 CANCELLED AT 2026-11-30T08:20:56 DUE TO PREEMPTION ***"
TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n3 CANCELLED AT 2026-11-30T08:12:29 DUE TO TIME LIMIT ***"
REQUEUED = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-30T08:10:06 DUE TO JOB REQUEUE ***"
NODE = (
    "srun: error: n1: task 0: Exited with exit code 17\n"
    "srun: launch/slurm: _step_signal: Terminating StepId=11.0\n"
    "srun: error: Node failure on n2\n"
    "slurmstepd: error: *** JOB 11 ON n1 CANCELLED AT 2026-11-30T08:22:59 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR"
    " DETAILS ***"
)
NEWER = "[2026-06-22T17:29:45.166] error: *** JOB 49 ON irene4869 CANCELLED AT 2026-06-22T17:29:45 DUE to SIGNAL Terminated ***"
ENDED_BY_SRUN = "srun: error: n2: task 1: Terminated"


@pytest.mark.parametrize(
    ("log", "reason", "words", "node", "rank", "code"),
    [
        (f"srun: got SIGCONT\n{CANCELLED}\n{ENDED_BY_SRUN}", "cancelled", "scancel", None, None, None),
        (PREEMPTED, "preempted", "higher priority", None, None, None),
        (TIME_LIMIT, "time_limit", "time limit", None, None, None),
        (REQUEUED, "requeued", "scontrol requeue", None, None, None),
        (NODE, "node_failure", "node failure on n2", "n2", None, None),
        (NODE.splitlines()[-1], "node_failure", "a node failed", None, None, None),
        (f"{NODE}\nsrun: error: Node failure on n3", "node_failure", "on n2, n3", "n2,n3", None, None),
        (NEWER, "cancelled", "scancel", None, None, None),
        (f"srun: error: n2: task 2: Exited with exit code 3\n{ENDED_BY_SRUN}", "exception", "rank 2 on n2", "n2", 2, 3),
        ("srun: error: n1: tasks 4-7,9: Exited with exit code 1", "exception", "rank 4 on n1", "n1", 4, 1),
        ("srun: error: n1: task 5: Segmentation fault (core dumped)", "exception", "segmentation", "n1", 5, None),
        ("srun: error: n1: task 0: User defined signal 1", "time_limit", "came before rank 0 on n1", None, None, None),
        ("srun: error: n1: task 0: Killed", "killed", "killed (9), probably out of memory", "n1", 0, None),
        ("srun: error: n1: task 0: Out Of Memory", "out_of_memory", "out of memory", "n1", 0, None),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.\n"
            "srun: error: n1: task 3: Killed",
            *("out_of_memory", "rank 3 on n1", "n1", 3, None),
        ),
        (
            "slurmstepd: error: *** STEP 8.0 ON n4 UNCORRECTABLE MEMORY ERROR AT 2026-11-30T08:12:29 ***",
            *("node_failure", "uncorrectable memory error on n4", "n4", None, None),
        ),
        (
            "srun: error: Unable to create step for job 9: Invalid generic resource (gres) specification",
            *("launch_failed", "Invalid generic resource", None, None, None),
        ),
        (
            "srun: error: Task launch for StepId=9.0 failed on node n2: Communication connection failure",
            *("launch_failed", "Communication connection failure", "n2", None, None),
        ),
        # The first event ended the job, the later ones follow from it.
        (f"srun: error: n1: task 0: Exited with exit code 3\n{CANCELLED}", "exception", "rank 0", "n1", 0, 3),
        (
            "srun: forcing job termination\nsrun: error: n1: tasks 0-1: Killed",
            "cancelled",
            "srun was told to end",
            None,
            None,
            None,
        ),
        (f"{TIME_LIMIT}\nsrun: error: n1: task 0: Killed", "time_limit", "time limit", None, None, None),
    ],
)
def test_what_slurm_says(
    log: str, reason: str, words: str, node: str | None, rank: int | None, code: int | None
) -> None:
    evidence = end_evidence(log)
    assert evidence is not None
    assert (evidence.reason, evidence.failed_node, evidence.failed_rank, evidence.exit_code) == (
        reason,
        node,
        rank,
        code,
    )
    assert words in evidence.message


@pytest.mark.parametrize(
    "log",
    [
        "",
        "my program: error: *** nothing CANCELLED ***\nsome line",
        # Ranks that were told to end, or lost another one, have said so themselves.
        *(f"srun: error: n1: tasks 0-3: Exited with exit code {code}" for code in (16, 17, 20)),
        ENDED_BY_SRUN,
        "slurmstepd: error: *** STEP 11.0 ON n1 CANCELLED AT 2026-11-30T08:20:56 ***",
        "\x00\ufffd broken",
    ],
)
def test_no_evidence(log: str) -> None:
    assert end_evidence(log) is None
