"""Evidence to state: the order end marker, squeue, scontrol, sacct, and what each gap means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.launch.slurm.states import SlurmState
from hpctrain.launch.status.verdict import Evidence, judge
from hpctrain.record.attempt_rules import STARTS_AGAIN
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, CancelRecord

NOW_S = 10_000.0


def attempt(number: int, state: Any = "running", job_id: str = "7", **fields: Any) -> AttemptRecord:
    return AttemptRecord(SCHEMA_VERSION, number, job_id, state, started_at_s=9_000.0, **fields)


def told(state: str, reason: str = "", source: str = "squeue", **fields: Any) -> SlurmState:
    return SlurmState(state, reason, source, **fields)


def evidence(*attempts: AttemptRecord, slurm: SlurmState | None = None, **fields: Any) -> Evidence:
    base = Evidence(("7",), (slurm,), attempts, first_attempt=1, submitted_at_s=1_000.0, now_s=NOW_S)
    return replace(base, **fields)


COMPLETED = attempt(1, "completed", end_reason="completed", exit_code=0)
FAILED = attempt(1, "failed", end_reason="bad_data", exit_code=13, message="too short", failed_rank=2, failed_node="n3")
GOES_ON = attempt(1, "failed", end_reason="node_failure", message="n3", continuation=STARTS_AGAIN)
REQUEUED = replace(GOES_ON, end_reason="time_limit", ended_at_s=NOW_S - 5)
KILLED = attempt(1, "failed", end_reason="killed", exit_code=137, message="killed (9)")


@pytest.mark.parametrize(
    ("given", "state", "detail"),
    [
        pytest.param(evidence(COMPLETED, slurm=told("RUNNING")), "COMPLETED", "", id="marker-before-squeue"),
        pytest.param(evidence(FAILED), "FAILED", "bad_data (exit code 13, rank 2 on n3): too short", id="marker"),
        pytest.param(evidence(FAILED, slurm=told("RUNNING", source="sacct")), "FAILED", "bad_data", id="sacct-lags"),
        pytest.param(evidence(GOES_ON), "NODE_FAIL", "node_failure", id="not-started-again"),
        pytest.param(
            evidence(GOES_ON, is_stale=True),
            "PENDING",
            "waiting for attempt 2, by its own record: node_failure: n3; Slurm starts the job again",
            id="starts-again-and-the-controller-is-away",
        ),
        pytest.param(
            evidence(REQUEUED, slurm=told("TIMEOUT")),
            "PENDING",
            "waiting for attempt 2",
            id="on-its-way-into-the-queue",
        ),
        pytest.param(
            evidence(REQUEUED, slurm=told("TIMEOUT"), now_s=NOW_S + 60), "TIMEOUT", "time_limit", id="never-came-there"
        ),
        pytest.param(evidence(KILLED, is_stale=True), "FAILED", "killed", id="over-and-the-controller-is-away"),
        pytest.param(evidence(KILLED, slurm=told("OUT_OF_MEMORY")), "OUT_OF_MEMORY", "killed", id="oom"),
        pytest.param(evidence(KILLED, slurm=told("TIMEOUT", source="sacct")), "TIMEOUT", "killed", id="timeout"),
        pytest.param(
            evidence(attempt(1, "failed", end_reason="time_limit", message="x")), "TIMEOUT", "time_limit", id="limit"
        ),
        pytest.param(evidence(FAILED, slurm=told("CANCELLED")), "FAILED", "bad_data", id="cause-before-cancel"),
        pytest.param(evidence(slurm=told("PENDING", "Priority")), "PENDING", "Priority", id="waits"),
        pytest.param(
            evidence(slurm=told("PENDING", "Resources", start_at_s=NOW_S + 7200)),
            "PENDING",
            "Resources; expected to start",
            id="expected",
        ),
        pytest.param(
            evidence(KILLED, slurm=told("PENDING", "BeginTime")),
            "PENDING",
            "attempt 2; BeginTime: it may not start before its time; a requeued job waits a while; attempt 1 ended: killed",
            id="requeued",
        ),
        pytest.param(
            evidence(attempt(1), slurm=told("PENDING", "BeginTime"), down_nodes=("n4",)),
            "PENDING",
            "attempt 1 lost node n4",
            id="node-failure",
        ),
        pytest.param(
            evidence(slurm=told("PENDING", "JobHeldUser")), "PENDING", "JobHeldUser: held by its user", id="held"
        ),
        pytest.param(
            evidence(slurm=told("PENDING", "JobHeldAdmin")), "PENDING", "held by an administrator", id="held-admin"
        ),
        pytest.param(
            evidence(slurm=told("PENDING", "launch failed requeued held")),
            "LAUNCH_FAILED",
            "launch failed requeued held: Slurm could not start it and holds it",
            id="launch-failed-held",
        ),
        pytest.param(evidence(slurm=told("PENDING", "DependencyNeverSatisfied")), "PENDING", "never start", id="never"),
        pytest.param(evidence(attempt(1), slurm=told("RUNNING")), "RUNNING", "", id="runs"),
        pytest.param(evidence(attempt(1), slurm=told("NEWSTATE")), "NEWSTATE", "", id="unknown-word"),
        pytest.param(
            evidence(replace(attempt(1), started_at_s=9_995.0), slurm=told("PENDING", "Priority"), asked_at_s=9_990.0),
            "RUNNING",
            "",
            id="started-since-asked",
        ),
        pytest.param(
            evidence(attempt(1), slurm=told("COMPLETED", ended_at_s=NOW_S - 20)),
            "COMPLETING",
            "its end marker is not here yet",
            id="marker-late",
        ),
        pytest.param(
            evidence(attempt(1), slurm=told("COMPLETED", ended_at_s=NOW_S - 61)),
            "UNKNOWN",
            "no rank left an end marker",
            id="marker-never",
        ),
        pytest.param(
            evidence(slurm=told("FAILED", "JobLaunchFailure", exit_code="0:53", nodes="n1")),
            "FAILED",
            "launch failure: output path, exit code 0:53: Slurm could not start the script on n1",
            id="output-path",
        ),
        pytest.param(
            evidence(slurm=told("NODE_FAIL", nodes="n1", source="sacct")), "NODE_FAIL", "on n1", id="node-fail"
        ),
        pytest.param(
            evidence(slurm=told("PREEMPTED", source="sacct")), "PREEMPTED", "does not start it again", id="preempted"
        ),
        pytest.param(
            evidence(slurm=told("CANCELLED", "by 1000", "sacct")), "CANCELLED", "sacct says CANCELLED: by 1000", id="by"
        ),
        pytest.param(
            evidence(slurm=told("CANCELLED", "JobHeldUser")),
            "CANCELLED",
            "CANCELLED before it started;",
            id="never-began",
        ),
        # The batch script was killed; Slurm calls that so, too.
        pytest.param(
            evidence(attempt(1), slurm=told("FAILED", "JobLaunchFailure", exit_code="0:9")),
            "FAILED",
            "exit code 0:9: JobLaunchFailure; no end marker; see logs",
            id="killed-script",
        ),
        pytest.param(evidence(submitted_at_s=NOW_S - 5), "SUBMITTED", "waiting to be seen by Slurm", id="fresh"),
        pytest.param(evidence(submitted_at_s=NOW_S - 61), "UNKNOWN", "no longer knows job 7", id="forgotten"),
        pytest.param(
            evidence(attempt(1), last_sign_s=NOW_S - 12, accounting="accounting is off here"),
            "UNKNOWN",
            "(accounting is off here), and it left no end marker; last step 12 s ago",
            id="forgotten-without-accounting",
        ),
        pytest.param(evidence(trouble="squeue: away"), "UNKNOWN", "squeue: away", id="away"),
        pytest.param(evidence(FAILED, trouble="squeue: away"), "FAILED", "bad_data", id="away-with-marker"),
        pytest.param(
            evidence(slurm=told("RUNNING", source="sacct"), trouble="squeue: away"), "RUNNING", "sacct", id="away-sacct"
        ),
        pytest.param(
            evidence(slurm=told("NEWSTATE", source="sacct", ended_at_s=5.0)),
            "UNKNOWN",
            "sacct: NEWSTATE, a word that is not known here",
            id="unknown-word-with-an-end",
        ),
        pytest.param(evidence(foreign=True), "UNKNOWN", "job 7 is another one now", id="foreign"),
    ],
)
def test_states(given: Evidence, state: str, detail: str) -> None:
    verdict = judge(given)
    assert verdict.state == state
    assert detail in verdict.detail
    assert "; ;" not in verdict.detail


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (evidence(COMPLETED), "completed"),
        (evidence(FAILED), "bad_data"),
        (evidence(KILLED, slurm=told("OUT_OF_MEMORY")), "out_of_memory"),
        (evidence(KILLED, slurm=told("CANCELLED")), "cancelled"),
        (evidence(KILLED), "killed"),
        (evidence(slurm=told("TIMEOUT")), "time_limit"),
        (evidence(slurm=told("BOOT_FAIL")), "node_failure"),
        (evidence(slurm=told("PREEMPTED")), "preempted"),
        (evidence(slurm=told("FAILED", exit_code="0:53")), "launch_failed"),
        (evidence(slurm=told("PENDING", "launch failed requeued held")), "launch_failed"),
        (evidence(slurm=told("RUNNING")), ""),
        (evidence(), ""),
    ],
)
def test_the_end_reason_is_a_field_of_its_own(given: Evidence, reason: str) -> None:
    assert judge(given).end_reason == reason


def test_what_waits_or_runs_is_not_over() -> None:
    for state in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "NEWSTATE"):
        assert not judge(evidence(slurm=told(state))).is_over
    assert not judge(evidence(slurm=told("PENDING", "launch failed requeued held"))).is_over
    assert not judge(evidence(trouble="squeue: away")).is_over
    assert judge(evidence(slurm=told("TIMEOUT"))).is_over


def chain(*slurm: SlurmState | None, attempts: tuple[AttemptRecord, ...] = ()) -> Evidence:
    ids = tuple(str(7 + number) for number in range(len(slurm)))
    return evidence(*attempts, job_ids=ids, told=slurm)


TIMED_OUT = attempt(1, "failed", end_reason="time_limit", exit_code=16, message="limit")


@pytest.mark.parametrize(
    ("given", "state", "job_id"),
    [
        (chain(told("RUNNING"), told("PENDING", "Dependency"), attempts=(attempt(1),)), "RUNNING", "7"),
        (chain(told("TIMEOUT"), told("PENDING", "Resources"), None, attempts=(TIMED_OUT,)), "PENDING", "8"),
        (chain(None, told("RUNNING"), None, attempts=(TIMED_OUT, attempt(2, job_id="8"))), "RUNNING", "8"),
        (chain(None, None, attempts=(TIMED_OUT, replace(COMPLETED, attempt=2, job_id="8"))), "COMPLETED", "8"),
        (chain(told("TIMEOUT"), told("CANCELLED"), attempts=(TIMED_OUT,)), "TIMEOUT", "7"),
        (chain(told("COMPLETED"), told("COMPLETED"), attempts=(COMPLETED,)), "COMPLETED", "7"),
        (chain(told("NODE_FAIL"), told("CANCELLED"), attempts=()), "NODE_FAIL", "7"),
    ],
    ids=["first-runs", "second-waits", "second-runs", "done", "rest-cancelled", "rest-not-needed", "nothing-started"],
)
def test_the_state_of_a_chain_is_that_of_its_newest_job(given: Evidence, state: str, job_id: str) -> None:
    verdict = judge(given)
    assert (verdict.state, verdict.job_id) == (state, job_id)


def test_a_resumed_run_that_waits_is_not_what_its_earlier_submission_was() -> None:
    waits = evidence(FAILED, slurm=told("PENDING", "Priority"), first_attempt=2)
    assert judge(waits).state == "PENDING"
    assert judge(waits).detail.startswith("waiting for attempt 2; Priority")
    fresh = evidence(FAILED, first_attempt=2, submitted_at_s=NOW_S - 1)
    assert judge(fresh).state == "SUBMITTED"


def test_points_of_one_allocation_have_their_own_states() -> None:
    runs = told("RUNNING")
    assert judge(evidence(slurm=runs, is_shared=True)).detail == "waits for its turn in job 7"
    assert judge(evidence(FAILED, slurm=runs, is_shared=True)).state == "FAILED"
    assert judge(evidence(attempt(1), slurm=runs, is_shared=True)).state == "RUNNING"
    left = judge(evidence(slurm=told("TIMEOUT"), is_shared=True))
    assert (left.state, left.is_over) == ("TIMEOUT", True)
    assert "before its turn" in left.detail


NOTE = CancelRecord(SCHEMA_VERSION, ("7",), 9_500.0, "ada")


@pytest.mark.parametrize(
    ("given", "state", "detail"),
    [
        (evidence(cancelled=NOTE), "CANCELLED", "cancelled by ada at"),
        (evidence(cancelled=NOTE, submitted_at_s=NOW_S - 5), "CANCELLED", "cancelled by ada at"),
        (evidence(cancelled=NOTE, slurm=told("PENDING", source="sacct")), "CANCELLED", "cancelled by ada at"),
        (evidence(cancelled=NOTE, slurm=told("RUNNING")), "RUNNING", ""),
        (evidence(KILLED, cancelled=NOTE), "CANCELLED", "killed"),
        (evidence(FAILED, cancelled=NOTE), "FAILED", "bad_data"),
        (evidence(COMPLETED, cancelled=NOTE), "COMPLETED", ""),
        (evidence(cancelled=NOTE, trouble="squeue: away"), "UNKNOWN", "squeue: away"),
    ],
)
def test_what_a_user_cancelled_is_known_where_slurm_keeps_no_trace(given: Evidence, state: str, detail: str) -> None:
    assert judge(given).state == state
    assert detail in judge(given).detail


def test_a_requeued_run_that_is_cancelled_while_it_waits_is_cancelled() -> None:
    preempted = attempt(1, "failed", end_reason="preempted", message="preempted")
    verdict = judge(evidence(preempted, slurm=told("CANCELLED", source="sacct")))
    assert (verdict.state, verdict.end_reason) == ("CANCELLED", "cancelled")
