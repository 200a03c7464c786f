"""What a job started again finds in its run folder (case 72)."""

from __future__ import annotations

import pytest

from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.reader import StepsFile, read_attempts, read_submission
from hpctrain.record.schema import StepRecord
from tests.slurm.conftest import start_now
from tests.slurm.test_submit import Cluster, logs, wait_until
from tests.slurm.test_submit import cluster as cluster  # the fixture

pytestmark = [pytest.mark.slurm, pytest.mark.train]


def test_a_requeued_job_goes_on_from_its_newest_checkpoint(cluster: Cluster) -> None:
    run = cluster.submit(
        "nodes=1", "training.num_steps=60", "training.log_interval=1", "training.checkpoint_interval=4"
    )
    wait_until(lambda: complete_checkpoints(run), "the first checkpoint")
    job_id = read_submission(run).job_id
    cluster.slurm("scontrol", "requeue", job_id)
    assert "waiting for attempt 2" in cluster.wait_for(run, ("PENDING",))["detail"]
    start_now(cluster.slurm, job_id)
    row = cluster.wait_for(run, ("COMPLETED", "FAILED"))
    assert (row["state"], row["attempt"], row["step"]) == ("COMPLETED", 2, 60), logs(run)

    first, second = read_attempts(run)
    assert first.resumed_from_step == 0
    step = second.resumed_from_step
    assert step is not None
    assert step >= 4
    assert second.start_step == step
    records: dict[int, list[StepRecord]] = {1: [], 2: []}
    for record in StepsFile(run.steps).new_records():
        records[record.attempt].append(record)
    assert [record.step for record in records[2]] == list(range(step + 1, 61))
    # A requeue sends TERM first, so the ranks had the time to save where they were.
    assert records[1][-1].step - step in (0, 1, 2, 3, 4)
    loss_before, loss_after = records[1][step - 1].loss, records[2][0].loss
    assert loss_before is not None
    assert loss_after == pytest.approx(loss_before, abs=0.3)
    assert [checkpoint.step for checkpoint in complete_checkpoints(run)] == [56, 60]
    assert [checkpoint.record.attempt for checkpoint in complete_checkpoints(run)] == [2, 2]
