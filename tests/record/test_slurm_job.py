"""What a job asks of Slurm."""

from __future__ import annotations

import time

import pytest

from hpctrain.record.slurm_job import JobFacts, parse_job, parse_nodes_down_since


@pytest.mark.parametrize(
    ("text", "facts", "holds"),
    [
        ("JobId=7 JobName=x JobState=RUNNING Requeue=1 Restarts=0", JobFacts("RUNNING", 0), True),
        ("JobId=7 JobName=x JobState=COMPLETING Restarts=3", JobFacts("COMPLETING", 3), True),
        ("JobId=7 JobName=x JobState=PENDING Restarts=1", JobFacts("PENDING", 1), False),
        ("JobId=7 JobName=x JobState=COMPLETED", JobFacts("COMPLETED", 0), False),
    ],
)
def test_a_job(text: str, facts: JobFacts, holds: bool) -> None:
    assert parse_job(text) == facts
    assert facts.holds_nodes == holds


def test_no_job() -> None:
    assert parse_job("") is None


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("NodeName=n1 State=IDLE BootTime=2020-01-01T00:00:00 SlurmdStartTime=2020-01-01T00:01:00", False),
        ("NodeName=n1 State=DOWN* BootTime=None", True),
        ("NodeName=n1 State=MIXED+NOT_RESPONDING BootTime=None", True),
        ("NodeName=n1 State=ALLOCATED* BootTime=None", True),
        ("NodeName=n1 State=IDLE+DRAIN BootTime=2020-01-01T00:00:00", False),
        ("NodeName=n1 State=IDLE BootTime=2020-01-01T00:00:00 SlurmdStartTime=2026-11-30T08:25:03", True),
        ("NodeName=n1 State=IDLE BootTime=Unknown SlurmdStartTime=Unknown", False),
        ("", False),
    ],
)
def test_a_node_that_failed(line: str, failed: bool) -> None:
    since_s = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, -1))
    assert parse_nodes_down_since(line, since_s) == (["n1"] if failed else [])
