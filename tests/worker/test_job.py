"""How a rank ends when it can't go on: its record, its exit code, and the other ranks'."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.plan.layout import Layout
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.code_version import source_digests
from hpctrain.record.files import read_record
from hpctrain.record.schema import AttemptRecord, EndReason
from hpctrain.worker.end_reasons import EXIT_CODES
from tests.worker.run_folder import (
    GPT,
    RANK_COMMAND,
    SOURCE,
    failure_of,
    make_config,
    make_run,
    start_ranks,
    step_records,
    write_run,
)

pytestmark = pytest.mark.train

EXCEPTION, ENVIRONMENT, WORLD_SIZE, DATA, NON_FINITE, SIGNAL, LOST = 1, 11, 12, 13, 14, 16, 17
RANK_1_FAILS_IN_STEP_3 = """
import os, sys
from hpctrain.worker import loop
from hpctrain.worker.job import run
from hpctrain.worker.schedule import learning_rate
def failing(step, *rest):
    if step == 3 and os.environ["RANK"] == "1":
        raise ZeroDivisionError("made up")
    return learning_rate(step, *rest)
loop.learning_rate = failing
run(sys.argv[1])
"""
RANK_1_READS_ANOTHER_TEXT = """
import os, sys
from hpctrain.worker import training
from hpctrain.worker.job import run
load = training.load_corpus
def loading(data, vocab_size, seq_len, seed):
    return load(data, vocab_size, seq_len, seed + (os.environ["RANK"] == "1"))
training.load_corpus = loading
run(sys.argv[1])
"""
LEFT_OVER_THREAD = (
    """
import threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
"""
    + RANK_COMMAND
)


def test_a_failing_rank_leaves_its_record_and_takes_the_others_with_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(zero_stage=1, log_interval=1))
    with start_ranks(run, command=RANK_1_FAILS_IN_STEP_3) as ranks:
        assert ranks.wait() == [LOST, EXCEPTION], ranks.logs()
    failure = failure_of(run)
    assert (failure.state, failure.end_reason, failure.exit_code) == ("failed", "exception", EXCEPTION)
    assert (failure.failed_rank, failure.message) == (1, "ZeroDivisionError: made up")
    assert failure.failed_node == read_record(run.attempt(1), AttemptRecord).nodes[0].name
    assert "Traceback" in ranks.log(1)
    assert "another rank failed first" in ranks.log(0)
    assert [record.step for record in step_records(run)] == [1, 2]


def test_a_killed_rank_is_missed_by_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(zero_stage=3, num_steps=100_000, log_interval=1))
    with start_ranks(run, forked=False) as ranks:
        ranks.wait_for_steps(1)
        ranks.processes[1].kill()
        assert ranks.wait() == [LOST, -signal.SIGKILL], ranks.logs()
    failure = failure_of(run)
    assert (failure.end_reason, failure.exit_code, failure.failed_rank) == ("killed", LOST, None)
    assert "another rank went away without a record: killed, probably out of host memory" in failure.message


@pytest.mark.parametrize(("name", "reason"), [("SIGUSR1", "time_limit"), ("SIGTERM", "signal")])
def test_a_signal_to_one_rank_ends_all_after_the_same_step(name: str, reason: EndReason, tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(zero_stage=2, num_steps=100_000, log_interval=1))
    with start_ranks(run, forked=name != "SIGUSR1") as ranks:
        ranks.wait_for_steps(1)
        for _ in range(20):
            ranks.processes[1].send_signal(getattr(signal, name))
        assert ranks.wait() == [SIGNAL, EXIT_CODES[reason]], ranks.logs()
    failure = failure_of(run)
    last = step_records(run)[-1].step
    # Either may be first: rank 0 does not know which signal it was.
    assert (failure.state, failure.end_reason in ("signal", reason)) == ("failed", True)
    assert failure.message.startswith(f"stopped after step {last} of 100000 by ")
    assert f"by {name}" in ranks.log(1)
    assert "by a signal to another rank" in ranks.log(0)


def test_the_world_must_be_that_of_the_plan(tmp_path: Path) -> None:
    config = make_config()
    run = write_run(tmp_path, config, replace(build_run_plan(config), layout=Layout(num_nodes=2, gpus_per_node=2)))
    with start_ranks(run) as ranks:
        assert ranks.wait() == [WORLD_SIZE, WORLD_SIZE], ranks.logs()
    failure = failure_of(run)
    assert failure.end_reason == "world_size_mismatch"
    assert failure.message == "world size: 2 ranks met, the plan has 2 nodes x 2 = 4"
    assert not run.attempt(1).exists()
    assert not run.steps.exists()


def test_a_rank_that_does_not_know_itself_ends_the_start(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config())
    with start_ranks(run, changes={1: {"SUBMITIT_LOCAL_GLOBALID": None}}, forked=False) as ranks:
        assert ranks.wait() == [LOST, ENVIRONMENT], ranks.logs()
    failure = failure_of(run)
    assert failure.end_reason == "bad_environment"
    assert failure.message.startswith("SUBMITIT_LOCAL_GLOBALID: missing in this task's environment")


def test_refused_ranks_leave_nothing_on_their_node(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(env={"MASTER_ADDR": "n" * 64}))
    with start_ranks(run) as ranks:
        assert ranks.wait() == [ENVIRONMENT, ENVIRONMENT], ranks.logs()
        assert "compiled code is kept in " in ranks.log(0)
        assert list(Path(ranks.scratch).iterdir()) == []
    assert "cannot resolve it" in failure_of(run).message


def test_a_node_without_the_memory_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Of hardware that states no memory: 315 billion parameters, which are some TiB, are more than a machine for tests has."""
    wide = GPT | {"hidden_size": 5120, "num_heads": 40, "num_layers": 1000, "max_seq_len": 2048}
    run = make_run(tmp_path, make_config(model=wide, offload=True, activation_checkpointing="full"))
    with start_ranks(run) as ranks:
        assert ENVIRONMENT in ranks.wait(), ranks.logs()
    assert re.match(r"memory.host=\d,\d{3}\.\d\d GiB: .*, short by .* GiB; nearest: ", failure_of(run).message)
    assert not run.steps.exists()


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config())
    run.plan.unlink()
    with start_ranks(run, num_ranks=1, forked=False) as ranks:
        assert ranks.wait() == [ENVIRONMENT]
    assert "plan.json: no such file" in failure_of(run).message


def test_nowhere_to_leave_a_record(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config())
    run.plan.unlink()
    run.attempts.rmdir()
    with start_ranks(run, num_ranks=1, forked=False) as ranks:
        assert ranks.wait() == [ENVIRONMENT]
    assert "no failure record" in ranks.log()


def test_data_that_does_not_fit(tmp_path: Path) -> None:
    config = make_config(
        num_ranks=1, model=GPT | {"vocab_size": 256}, data={"name": "s", "kind": "stdlib", "max_bytes": 10000}
    )
    run = make_run(tmp_path, config)
    with start_ranks(run, num_ranks=1) as ranks:
        assert ranks.wait() == [DATA], ranks.logs()
    assert "model.vocab_size=256: " in failure_of(run).message


def test_ranks_with_different_texts(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config())
    with start_ranks(run, command=RANK_1_READS_ANOTHER_TEXT) as ranks:
        assert ranks.wait() == [DATA, DATA], ranks.logs()
    assert "all nodes must read the same text" in failure_of(run).message


def test_a_loss_that_stays_not_finite(tmp_path: Path) -> None:
    config = make_config(
        num_ranks=1, zero_stage=1, precision="bf16", learning_rate=1e35, gradient_clipping=0.0, log_interval=2
    )
    run = make_run(tmp_path, config)
    with start_ranks(run, num_ranks=1) as ranks:
        assert ranks.wait() == [NON_FINITE], ranks.logs()
    failure = failure_of(run)
    assert failure.end_reason == "non_finite_loss"
    assert "steps in a row" in failure.message
    records = step_records(run)
    assert all(record.loss is None for record in records[-5:])
    assert len(records) < 20


def test_a_left_over_thread_does_not_keep_the_job(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(num_ranks=1, zero_stage=1, num_steps=2))
    with start_ranks(run, num_ranks=1, command=LEFT_OVER_THREAD, forked=False) as ranks:
        assert ranks.wait() == [0], ranks.logs()


def test_what_differs_from_the_submission_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(num_ranks=1, zero_stage=1, num_steps=2, env={"MASTER_PORT": 23456}))
    versions = {"python": "3.0.0", "hpctrain": "0.1.0", "torch": "1.0", "deepspeed": "0.19.8"}
    sources = source_digests() | {"cli.py": "another", "gone.py": "one more"}
    run.code.write_text(json.dumps({"interpreter": sys.executable, "versions": versions, "sources": sources}))
    with start_ranks(run, num_ranks=1, changes={0: {"OMPI_COMM_WORLD_LOCAL_RANK": "5"}}) as ranks:
        assert ranks.wait() == [0], ranks.logs()
    log = ranks.log()
    assert "warning: torch is " in log
    assert "1.0 at submission" in log
    assert "warning: python is " in log
    assert "warning: interpreter" not in log
    assert "warning: source changed since submission: cli.py, gone.py" in log
    assert "MASTER_PORT=23456 (from env.MASTER_PORT)" in log


@pytest.mark.parametrize("place", ["elsewhere", "here"])
def test_other_code_than_was_submitted_is_not_run(place: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(num_ranks=1, zero_stage=1, num_steps=2))
    snapshot = str(SOURCE) if place == "here" else "/gone/.code/0a1b"
    recorded = {"interpreter": sys.executable, "versions": {}, "snapshot": snapshot}
    run.code.write_text(json.dumps(recorded | {"sources": source_digests() | {"cli.py": "another"}}))
    with start_ranks(run, num_ranks=1, forked=False) as ranks:
        assert ranks.wait() == [ENVIRONMENT]
    message = failure_of(run).message
    assert "1 files differ from those of the submission (cli.py)" in message
    assert snapshot in message


def test_the_same_code_at_another_place_is_run(tmp_path: Path) -> None:
    """As in a container that mounts the copy where it likes."""
    run = make_run(tmp_path, make_config(num_ranks=1, zero_stage=1, num_steps=2))
    recorded = {"interpreter": sys.executable, "versions": {}, "snapshot": "/mounted/.code/0a1b"}
    run.code.write_text(json.dumps(recorded | {"sources": source_digests()}))
    with start_ranks(run, num_ranks=1) as ranks:
        assert ranks.wait() == [0], ranks.logs()
