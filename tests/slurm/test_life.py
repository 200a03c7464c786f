"""The life of a run on a real Slurm: starts that are refused, ends that are named, chains, resume."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_submission
from tests.slurm.conftest import DEADLINE_S, start_now
from tests.slurm.test_status import SLEEPS, Runs, is_running
from tests.slurm.test_status import runs as runs  # the fixture

pytestmark = pytest.mark.slurm

T = TypeVar("T")
TRAINS = (
    *("training=pretrain", "parallelism=zero3"),
    *("model.num_layers=1", "training.micro_batch_size=1", "training.warmup_steps=1", "training.log_interval=1"),
    *("hardware.gpus_per_node=1", "training.checkpoint_interval=5"),
)
RANK_2_LEAVES = (
    "\"$python\" -c \"import os, sys, time; os.environ['SLURM_PROCID'] == '2' and os._exit(3); time.sleep(600)\""
)


def wait_until(condition: Callable[[], T | None], what: Callable[[], str]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(what())


def log(run: RunPaths) -> str:
    return run.batch_log.read_text(encoding="utf-8", errors="replace") if run.batch_log.exists() else ""


def wait_for_attempt(run: RunPaths, number: int) -> None:
    wait_until(lambda: run.attempt(number).exists() or None, lambda: f"no attempt {number}: {log(run)}")


def test_two_jobs_never_write_one_run_and_restarts_without_progress_end_it(runs: Runs) -> None:
    run = runs.submit("nodes=1", SLEEPS)
    runs.wait_for(run, is_running)
    job_id = read_submission(run).job_id
    second = runs.slurm("sbatch", "--parsable", str(run.submission_script)).strip()
    wait_until(
        lambda: f"attempt 1 of this run is running as job {job_id}" in log(run) or None, lambda: log(run) + second
    )
    assert len(read_attempts(run)) == 1
    refused = runs.call("resume", str(run.root))
    assert (refused.returncode, f"is RUNNING as job {job_id}" in refused.stderr) == (4, True)

    for number in (2, 3):
        runs.slurm("scontrol", "requeue", job_id)
        start_now(runs.slurm, job_id)
        wait_for_attempt(run, number)
    row = runs.wait_for(run, lambda row: row["is_over"])
    assert (row["state"], row["end_reason"], row["attempt"]) == ("FAILED", "no_progress", 3)
    assert "attempts 1 (requeued) and 2 (requeued) ended without a complete checkpoint" in row["detail"]
    # Said where Slurm leaves the time to ask: it kills the batch script 5 s after its signal.
    assert {attempt.continuation for attempt in read_attempts(run)[:2]} <= {"Slurm starts the job again", ""}

    # A resumed run has a new allowance.
    resumed = runs.call("resume", str(run.root), "cluster.setup=[]")
    assert resumed.returncode == 0, resumed.stderr
    row = runs.wait_for(run, lambda row: row["is_over"])
    assert (row["state"], row["attempt"]) == ("COMPLETED", 4)
    assert (run.earlier_submissions / "1.json").exists()
    assert read_submission(run).first_attempt == 4


def test_the_first_rank_that_leaves_without_a_word_is_named(runs: Runs) -> None:
    run = runs.submit("nodes=2", "cluster.extra.hold=true")
    script = run.submission_script.read_text(encoding="utf-8")
    held = read_submission(run).job_id
    runs.slurm("scancel", held)
    text = re.sub(r'"\$python" -u -m hpctrain\.launch\.rank_entry "\$run_dir"', lambda _: RANK_2_LEAVES, script)
    assert text != script
    run.submission_script.write_text(text.replace("#SBATCH --hold\n", ""), encoding="utf-8")
    started = time.monotonic()
    runs.slurm("sbatch", str(run.submission_script))
    (attempt,) = wait_until(
        lambda: [attempt for attempt in read_attempts(run) if attempt.state == "failed"], lambda: log(run)
    )
    assert time.monotonic() - started < 120
    assert (attempt.end_reason, attempt.failed_rank, attempt.exit_code) == ("exception", 2, 3)
    assert attempt.failed_node is not None
    assert f"rank 2 on {attempt.failed_node} ended without a word" in attempt.message


def test_a_failed_node_is_named_and_left_out_on_request(runs: Runs) -> None:
    run = runs.submit("nodes=2", "cluster.setup=['srun sleep 300']")
    runs.wait_for(run, is_running)
    job_id = read_submission(run).job_id
    wait_until(lambda: f"{job_id}.0" in runs.slurm("squeue", "-h", "-s", "-j", job_id) or None, lambda: log(run))
    nodes = runs.slurm("squeue", "-h", "-j", job_id, "-o", "%N").strip()
    lost = runs.slurm("scontrol", "show", "hostnames", nodes).split()[1]
    runs.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    try:
        row = runs.wait_for(run, lambda row: row["state"] == "PENDING")
        assert row["detail"].startswith("waiting for attempt 2; ")
        (attempt,) = read_attempts(run)
        assert (attempt.end_reason, attempt.failed_node) == ("node_failure", lost), log(run)
        runs.call("cancel", str(run.root))
        runs.wait_for(run, lambda row: row["is_over"])
    finally:
        subprocess.run(["scontrol", "update", f"nodename={lost}", "state=resume"], env=runs.env, check=False)
    told = runs.call("resume", str(run.root), "cluster.setup=[]", "cluster.extra.hold=true")
    assert f"node {lost} failed in an earlier attempt; leave it out with" in told.stdout, told.stderr
    runs.call("cancel", str(run.root))
    runs.wait_for(run, lambda row: row["is_over"])
    done = runs.call("resume", str(run.root), "launch.exclude_failed_nodes=true", "cluster.extra.hold=false")
    assert done.returncode == 0, done.stderr
    assert f"#SBATCH --exclude={lost}\n" in run.submission_script.read_text(encoding="utf-8")
    assert runs.wait_for(run, lambda row: row["is_over"])["state"] == "COMPLETED"
    assert lost not in {node.name for node in read_attempts(run)[-1].nodes}


def test_a_job_that_may_not_come_back_says_so(runs: Runs) -> None:
    name = "mortal"
    nodes = runs.slurm("sinfo", "-h", "-p", "main", "-o", "%N").strip()
    runs.slurm("scontrol", "create", f"PartitionName={name}", f"Nodes={nodes}", "PriorityTier=1", "PreemptMode=CANCEL")
    try:
        run = runs.submit("nodes=4", SLEEPS, f"cluster.partition={name}")
        runs.wait_for(run, is_running)
        urgent = ("sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-o/dev/null", "--wrap=true")
        runs.slurm(*urgent)
        row = runs.wait_for(run, lambda row: row["is_over"])
        assert (row["state"], row["end_reason"]) == ("PREEMPTED", "preempted"), log(run)
        assert "Slurm does not start it again" in row["detail"]
    finally:
        runs.slurm("scontrol", "delete", f"PartitionName={name}")


@pytest.mark.train
def test_chains_go_on_from_their_checkpoints_at_slurms_warning(runs: Runs) -> None:
    steps = "training.num_steps=100"
    chained = {
        chain: runs.submit("nodes=1", *TRAINS, steps, f"launch.chain={chain}", "launch.max_attempts=4")
        for chain in ("requeue", "dependency")
    }
    waiting = list(chained.values())

    def all_are_warned() -> bool | None:
        for run in [run for run in waiting if complete_checkpoints(run)]:
            # As Slurm sends it before the time limit, to the ranks alone.
            runs.slurm("scancel", "--signal=USR1", read_submission(run).job_id)
            waiting.remove(run)
        return not waiting or None

    wait_until(all_are_warned, lambda: "\n".join(map(log, waiting)))
    start_now(runs.slurm, read_submission(chained["requeue"]).job_id)
    for chain, run in chained.items():
        row = runs.wait_for(run, lambda row: row["is_over"])
        assert row["state"] == "COMPLETED", f"{row}\n{log(run)}"
        first, second = read_attempts(run)
        assert (first.end_reason, second.end_reason) == ("time_limit", "completed")
        assert second.start_step == second.resumed_from_step
        assert second.start_step >= 5
        assert first.continuation.startswith(f"goes on from step {second.start_step}"), chain
        made = [record.step for record in StepsFile(run.steps).new_records() if record.attempt == 2]
        assert made == list(range(second.start_step + 1, 101))
    submission = read_submission(chained["dependency"])
    assert len(submission.chain) == 3
    assert [attempt.job_id for attempt in read_attempts(chained["dependency"])] == [
        submission.job_id,
        submission.chain[0],
    ]
    # The batch script's last act.
    squeue = ("squeue", "-h", "-t", "all", "-j", ",".join(submission.chain[1:]), "-o", "%T")
    wait_until(lambda: runs.slurm(*squeue).split() == ["CANCELLED"] * 2 or None, lambda: runs.slurm(*squeue))
