"""Ranks that hang (case 68): what is said of them, and the run's end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpctrain.config.schema import LaunchConfig
from hpctrain.worker.watchdog import HangWord, hang_error
from tests.worker.run_folder import failure_of, make_config, make_run, start_ranks, step_records

HANG = 19
RANK_1_HANGS = """
import os, sys, time
from hpctrain.worker import loop, watchdog
from hpctrain.worker.job import run
from hpctrain.worker.schedule import learning_rate
watchdog._GATHER_S, watchdog._C_TIMER_S, watchdog._LEAVE_S = 2.0, 3.0, 4.0
def hanging(step, *rest):
    if step == 3 and os.environ["RANK"] == "1":
        {how}
    return learning_rate(step, *rest)
loop.learning_rate = hanging
run(sys.argv[1])
"""
IN_PYTHON = "time.sleep(600)"
# A regular expression holds Python's lock for as long as it takes.
IN_C = "time.sleep(2); import re; re.match(r'(a*)*b', 'a' * 60)"


def word(rank: int, place: str, is_waiting: bool) -> HangWord:
    return HangWord(rank, f"n{rank // 2}", place, is_waiting)


def test_the_rank_that_others_wait_for_is_named() -> None:
    words = {rank: word(rank, "c10d.py:1 all_reduce", True) for rank in (0, 1, 3)} | {
        2: word(2, "loop.py:9 load", False)
    }
    error = hang_error(600, 5, 4, words)
    assert (error.rank, error.node) == (2, "n1")
    assert str(error) == (
        "no step for 600 s after step 5 (launch.watchdog_min): rank 2 on n1 in loop.py:9 load; ranks 0, 1, 3 in"
        " c10d.py:1 all_reduce; stacks are in the logs"
    )


def test_a_silent_rank_is_named_and_many_are_counted() -> None:
    error = hang_error(60, 5, 20, {rank: word(rank, "x", True) for rank in range(19)})
    assert (error.rank, error.node) == (19, None)
    assert "no word from rank 19; ranks 0, 1, 2, 3, 4, 5, 6, 7 and 11 more in x" in str(error)
    assert hang_error(60, 5, 2, {0: word(0, "x", True), 1: word(1, "x", True)}).rank is None


@pytest.mark.train
@pytest.mark.parametrize("how", [IN_PYTHON, IN_C], ids=["in Python", "in C"])
def test_a_hang_ends_with_the_stacks_of_all_ranks(how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = make_config(zero_stage=1, log_interval=1, telemetry_interval_s=None)
    config = replace(config, launch=LaunchConfig(watchdog_min=0.1))
    run = make_run(tmp_path_factory.mktemp("hang"), config)
    with start_ranks(run, command=RANK_1_HANGS.replace("{how}", how), forked=how != IN_C) as ranks:
        codes = ranks.wait()
        assert codes[0] == HANG, ranks.logs()
        assert codes[1] in (1, HANG)
    failure = failure_of(run)
    assert (failure.end_reason, failure.exit_code, failure.failed_rank) == ("hang", HANG, 1)
    assert "no step for 6 s after step 2" in failure.message
    for rank in (0, 1):
        assert "most recent call first" in ranks.log(rank)
    assert "in hanging" in ranks.log(1)
    assert [record.step for record in step_records(run)] == [1, 2]
    assert not list(run.logs.glob("hang-*"))
