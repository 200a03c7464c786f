"""Real ranks that save, are ended, and go on: to the bit where they would have been."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.schema import Config
from hpctrain.plan.checkpoint_size import saved_bytes
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.checkpoints import complete_checkpoints, read_checkpoints
from hpctrain.record.files import read_record, write_record, write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import AttemptRecord, StepRecord
from hpctrain.worker.end_reasons import EXIT_CODES
from tests.worker.run_folder import RANK_COMMAND, Ranks, make_config, make_run, start_ranks, step_records

pytestmark = pytest.mark.train

SIGNAL, TIME_LIMIT, BAD_CHECKPOINT = (EXIT_CODES[reason] for reason in ("signal", "time_limit", "bad_checkpoint"))
NUM_STEPS, FILE_OVERHEAD_BYTES = 8, 20_000

RANK_1_HAS_A_FULL_DISK_FROM_STEP_3_TO_5 = """
import os, resource, sys
from hpctrain.worker import loop
from hpctrain.worker.job import run
from hpctrain.worker.schedule import learning_rate
ALL = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
def limiting(step, *rest):
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if 3 <= step <= 5 else ALL, ALL))
    return learning_rate(step, *rest)
loop.learning_rate = limiting
run(sys.argv[1])
"""
RANK_1_HANGS_IN_STEP_3 = """
import os, sys, time
from hpctrain.worker import loop
from hpctrain.worker.job import run
from hpctrain.worker.schedule import learning_rate
def hanging(step, *rest):
    while step == 3 and os.environ["RANK"] == "1":
        time.sleep(1)
    return learning_rate(step, *rest)
loop.learning_rate = hanging
run(sys.argv[1])
"""
SAVES_TAKE_TWO_SECONDS = """
import sys, time
from hpctrain.worker.checkpoint_files import RankFiles
from hpctrain.worker.job import run
save = RankFiles.save
def slow(self, state_dict, path):
    save(self, state_dict, path)
    time.sleep(1)
RankFiles.save = slow
run(sys.argv[1])
"""


def start(run: RunPaths, attempt: int, num_ranks: int = 2, command: str = RANK_COMMAND) -> Ranks:
    changes = {rank: {"HPCTRAIN_ATTEMPT": str(attempt)} for rank in range(num_ranks)}
    return start_ranks(run, num_ranks, changes, command)


def end(run: RunPaths, attempt: int, num_ranks: int = 2, command: str = RANK_COMMAND) -> tuple[list[int], str]:
    """Exit codes and the log of rank 0 of an attempt that ends by itself."""
    with start(run, attempt, num_ranks, command) as ranks:
        codes = ranks.wait()
        return codes, ranks.log()


def records_of(run: RunPaths, attempt: int) -> list[StepRecord]:
    return [record for record in step_records(run) if record.attempt == attempt]


def curve(records: list[StepRecord]) -> list[tuple[int, float | None, float | None, float]]:
    return [(record.step, record.loss, record.grad_norm, record.learning_rate) for record in records]


def saved_steps(run: RunPaths) -> list[int]:
    return [checkpoint.step for checkpoint in complete_checkpoints(run)]


def attempt_record(run: RunPaths, number: int) -> AttemptRecord:
    return read_record(run.attempt(number), AttemptRecord)


CASES: dict[str, dict[str, Any]] = {
    "zero1": {"zero_stage": 1},
    "zero2, bf16": {"zero_stage": 2, "precision": "bf16"},
    "zero3, in a batch ramp": {
        "zero_stage": 3,
        "gradient_accumulation_steps": 2,
        "micro_batch_size": 2,
        "batch_ramp": {"start": 4, "increment": 4, "samples": 28},  # 7 steps of 4 sequences, then 8
        "decay": "linear",
    },
    "zero3, offloaded, bf16": {"zero_stage": 3, "offload": True, "precision": "bf16"},
    "zero1, tensor parallel": {"zero_stage": 1, "degrees": {"tensor_parallel_size": 2}},
    "zero3, tensor parallel, bf16": {"precision": "bf16", "degrees": {"tensor_parallel_size": 2}},
    "zero3, sequence parallel": {"degrees": {"sequence_parallel_size": 2}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(case: str, tmp_path: Path) -> None:
    config = make_config(num_steps=NUM_STEPS, checkpoint_interval=3, checkpoint_at_end=True, **CASES[case])
    run = make_run(tmp_path, config)
    codes, log = end(run, 1)
    assert codes == [0, 0], log
    newest = complete_checkpoints(run)[-1]
    assert saved_steps(run) == [6, 8]  # 3 went: two are kept
    plan = build_run_plan(config)
    predicted = saved_bytes(plan)
    files = newest.record.files
    assert 0 <= newest.record.num_bytes - predicted < FILE_OVERHEAD_BYTES * len(files)
    assert {file.rank for file in files} == {0, 1}
    first = attempt_record(run, 1)
    assert (first.resumed_from_step, first.num_checkpoints, first.num_failed_checkpoints) == (0, 3, 0)

    # As if the time limit had come in step 8.
    shutil.rmtree(newest.folder)
    (run.checkpoints / "step-00000007.partial").mkdir()
    codes, log = end(run, 2)
    assert codes == [0, 0], log
    assert "goes on after step 6 of 8 (step-00000006)" in log
    assert "removed unfinished step-00000007.partial" in log
    assert curve(records_of(run, 2)) == curve(records_of(run, 1))[6:]
    assert attempt_record(run, 2).resumed_from_step == 6
    assert sorted(os.listdir(run.checkpoints)) == ["step-00000006", "step-00000008"]


def test_twenty_signals_to_every_rank_make_one_checkpoint_from_which_the_run_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(zero_stage=2, num_steps=100_000, log_interval=1))
    for attempt in (1, 2):
        with start(run, attempt) as ranks:
            ranks.wait_for_steps(len(step_records(run)) + 1 if attempt == 2 else 1)
            for _ in range(20):
                for process in ranks.processes:
                    process.send_signal(signal.SIGUSR1)
            assert ranks.wait() == [TIME_LIMIT, TIME_LIMIT], ranks.logs()
            last = step_records(run)[-1].step
            assert ranks.log().count(" saved: step-") == 1
            assert saved_steps(run)[-1] == last
            assert len(saved_steps(run)) == attempt
        failure = read_record(run.failure(attempt), AttemptRecord)
        assert failure.message.startswith(f"stopped after step {last} of 100000 by ")
        assert failure.message.endswith(f"; checkpoint of step {last} saved")
    assert records_of(run, 2)[0].step == records_of(run, 1)[-1].step + 1


def test_a_signal_during_a_save_ends_the_run_with_that_checkpoint_and_no_step_holds_a_saves_time(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, make_config(zero_stage=3, num_steps=100, checkpoint_interval=2, log_interval=1))
    with start(run, 1, command=SAVES_TAKE_TWO_SECONDS) as ranks:
        ranks.wait_for_steps(4)
        ranks.processes[1].send_signal(signal.SIGTERM)
        assert ranks.wait() == [SIGNAL, SIGNAL], ranks.logs()
    assert saved_steps(run) == [2, 4]
    attempt, failure = attempt_record(run, 1), read_record(run.failure(1), AttemptRecord)
    records = step_records(run)
    assert [record.step for record in records] == [1, 2, 3, 4]
    assert attempt.checkpoint_time_s > 4
    assert records[2].time_s - records[1].time_s - records[2].step_time_s > 2
    assert attempt.setup_time_s is not None
    assert failure.ended_at_s is not None
    in_steps_s = sum(record.step_time_s for record in records)
    lost_s = failure.ended_at_s - attempt.started_at_s - attempt.setup_time_s - in_steps_s
    assert lost_s == pytest.approx(attempt.checkpoint_time_s, abs=3)


def test_a_run_that_wants_no_checkpoint_at_a_stop(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=1, num_steps=100_000, log_interval=1, checkpoint_at_stop=False)
    run = make_run(tmp_path, config)
    with start(run, 1, num_ranks=1) as ranks:
        ranks.wait_for_steps(1)
        ranks.processes[0].send_signal(signal.SIGUSR2)
        assert ranks.wait() == [SIGNAL], ranks.logs()
    assert not run.checkpoints.exists()


def test_a_rank_that_cannot_come_to_the_end_of_its_step_leaves_at_the_deadline(tmp_path: Path) -> None:
    config = make_config(zero_stage=1, num_steps=100, log_interval=1)
    config = replace(config, cluster=replace(config.cluster, signal_lead_s=2))
    run = make_run(tmp_path, config)
    with start(run, 1, command=RANK_1_HANGS_IN_STEP_3) as ranks:
        ranks.wait_for_steps(2)
        started_s = time.monotonic()
        for process in ranks.processes:
            process.send_signal(signal.SIGUSR1)
        assert ranks.wait() == [TIME_LIMIT, TIME_LIMIT], ranks.logs()
        assert 1.5 < time.monotonic() - started_s < 60
    failure = read_record(run.failure(1), AttemptRecord)
    assert failure.end_reason == "time_limit"
    assert "stopped by SIGUSR1: the step or the save under way did not end within 2 s" in failure.message
    assert saved_steps(run) == []


def test_a_failed_save_is_told_and_training_goes_on(tmp_path: Path) -> None:
    config = make_config(zero_stage=3, num_steps=NUM_STEPS, checkpoint_interval=2, keep_checkpoints=1)
    run = make_run(tmp_path, config)
    codes, log = end(run, 1, command=RANK_1_HAS_A_FULL_DISK_FROM_STEP_3_TO_5)
    assert codes == [0, 0], log
    assert "warning: no checkpoint of step 4: rank 1: " in log
    assert (
        "step-00000004.partial/zero_pp_rank_1_mp_rank_00_optim_states.pt: File too large (1 saves failed so far)" in log
    )
    attempt = attempt_record(run, 1)
    assert (attempt.num_checkpoints, attempt.num_failed_checkpoints) == (3, 1)
    assert sorted(os.listdir(run.checkpoints)) == ["step-00000008"]
    assert [record.step for record in step_records(run)] == list(range(1, 9))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunPaths, Config]:
    """A run of two ranks that has ended, with the checkpoints of its four steps."""
    config = make_config(zero_stage=3, num_steps=4, checkpoint_interval=1, keep_checkpoints=4, log_interval=1)
    run = make_run(tmp_path_factory.mktemp("ended"), config)
    codes, log = end(run, 1)
    assert codes == [0, 0], log
    return run, config


@pytest.fixture
def copied(ended: tuple[RunPaths, Config], tmp_path: Path) -> tuple[RunPaths, Config]:
    """The ended run in a folder whose name has a pattern's signs in it."""
    run = RunPaths(tmp_path / "a run [1-2]* $x")
    shutil.copytree(ended[0].root, run.root)
    return run, ended[1]


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def give_plan(run: RunPaths, config: Config) -> None:
    write_text(run.config, config_text(config))
    write_text(run.plan, build_run_plan(config).to_json())


def test_a_damaged_checkpoint_gives_way_to_the_next_older(copied: tuple[RunPaths, Config]) -> None:
    run, _ = copied
    flip_a_byte(run.checkpoints / "step-00000004" / "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    of_another_step = complete_checkpoints(run)[0]
    record = replace(of_another_step.record, step=5, num_sequences=5 * 8)
    write_record(of_another_step.folder / "complete.json", record)
    (run.checkpoints / "step-00000003" / "complete.json").write_text("{")
    give_plan(run, replace(copied[1], training=replace(copied[1].training, num_steps=6)))
    codes, log = end(run, 2)
    assert codes == [0, 0], log
    assert "step-00000001 cannot be loaded: rank 0: its files are of step 1, its complete.json says 5" in log
    assert "step-00000004 cannot be loaded: rank 1: " in log
    assert "has another checksum than when it was saved; the next older one is tried" in log
    assert "not usable: step-00000003: " in log
    assert "goes on after step 2 of 6" in log
    assert [record.step for record in records_of(run, 2)] == [3, 4, 5, 6]
    assert curve(records_of(run, 2))[0][1:3] == curve(records_of(run, 1))[2][1:3]
    # Four of the good ones stay; damaged ones are not counted, not removed and not written over.
    names = {"step-00000003-attempt-2", "step-00000004-attempt-2", "step-00000005", "step-00000006"}
    assert set(os.listdir(run.checkpoints)) == names | {"step-00000001", "step-00000003", "step-00000004"}


def test_damaged_checkpoints_alone_do_not_let_a_run_begin_again(copied: tuple[RunPaths, Config]) -> None:
    run, _ = copied
    for folder in run.checkpoints.iterdir():
        (folder / "complete.json").write_text("")
    codes, log = end(run, 2)
    assert codes == [BAD_CHECKPOINT, BAD_CHECKPOINT], log
    message = read_record(run.failure(2), AttemptRecord).message
    assert message.startswith(
        f"none of the checkpoints in {run.checkpoints} can be loaded, and the run does not begin at"
    )
    assert "unasked; resume RUN --from-step 0 sets them aside. step-" in message
    assert len(records_of(run, 2)) == 0


def test_another_text_is_refused(copied: tuple[RunPaths, Config]) -> None:
    run, _ = copied
    other_text = {"name": "s", "kind": "stdlib", "max_bytes": 20000}
    give_plan(run, make_config(num_ranks=1, zero_stage=3, num_steps=6, micro_batch_size=8, data=other_text))
    codes, log = end(run, 2, num_ranks=1)
    assert codes == [BAD_CHECKPOINT], log
    assert "data=s: the tokens have digest" in log
    assert len(records_of(run, 2)) == 0


def test_a_finished_run_that_is_started_again_has_nothing_to_do(copied: tuple[RunPaths, Config]) -> None:
    run, _ = copied
    codes, log = end(run, 2)
    assert codes == [0, 0], log
    attempt = attempt_record(run, 2)
    assert (attempt.state, attempt.resumed_from_step, attempt.num_checkpoints) == ("completed", 4, 0)
    assert len(records_of(run, 2)) == 0


def test_a_disk_without_room_is_refused_before_the_first_step(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=1, num_steps=8, checkpoint_interval=1, keep_checkpoints=2**40)
    config = replace(config, training=replace(config.training, num_steps=2**40, check_checkpoint_room=True))
    run = make_run(tmp_path, config)
    codes, log = end(run, 1, num_ranks=1)
    assert codes == [BAD_CHECKPOINT], log
    assert "training.keep_checkpoints=1099511627776: " in log
    assert "short by" in log
    assert not run.steps.exists()


def test_a_kill_while_saves_follow_one_another_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(zero_stage=3, num_steps=100_000, checkpoint_interval=1, log_interval=1))
    with start(run, 1) as ranks:
        ranks.wait_for_steps(3)
        for process in ranks.processes:
            process.kill()
        ranks.wait()
    found = read_checkpoints(run)
    assert found.complete
    assert not [checkpoint for checkpoint in found.unusable if checkpoint.was_complete]
    assert found.complete[-1].step >= step_records(run)[-1].step - 1
