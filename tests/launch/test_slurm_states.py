"""Reading squeue and sacct; fakes on PATH print what a real Slurm prints only in rare moments."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpctrain.launch.slurm_states import ACTIVE, FINISHED, query_states, state_word


def fake(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("word", sorted(FINISHED | ACTIVE))
def test_state_words_whole_cut_and_with_a_tail(word: str) -> None:
    assert state_word(word) == word
    assert state_word(f"{word} by 1000") == word
    assert state_word(f"{word}+") == word


@pytest.mark.parametrize(
    ("text", "word"), [("CANCELLED+", "CANCELLED"), ("OUT_OF_ME+", "OUT_OF_MEMORY"), ("", ""), ("NEW", "NEW")]
)
def test_state_words_of_narrow_columns_and_of_tomorrow(text: str, word: str) -> None:
    assert state_word(text) == word


def test_an_unknown_word_is_kept_and_not_taken_for_an_end(fakes: Path) -> None:
    fake(fakes, "squeue", "echo '7|NEWSTATE|why'")
    state = query_states(["7"]).states["7"]
    assert (state.state, state.is_active) == ("NEWSTATE", True)


def test_jobs_that_left_the_queue_are_asked_of_accounting(fakes: Path) -> None:
    fake(fakes, "squeue", "echo '7|RUNNING|None'")
    fake(fakes, "sacct", "echo '8|FAILED|0:0'; echo '8|OUT_OF_MEMORY|0:125'")
    answer = query_states(["7", "8"])
    assert answer.states["7"].source == "squeue"
    assert (answer.states["8"].state, answer.states["8"].source) == ("OUT_OF_MEMORY", "sacct")


def test_one_query_for_all_jobs(fakes: Path) -> None:
    counter = fakes / "calls"
    fake(fakes, "squeue", f'echo call >> {counter}; for i in $(seq 50); do echo "$i|RUNNING|None"; done')
    assert len(query_states([str(number) for number in range(1, 51)]).states) == 50
    assert counter.read_text(encoding="utf-8").count("call") == 1


def test_a_failing_query_is_no_state(fakes: Path) -> None:
    fake(fakes, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    fake(fakes, "sacct", "exit 0")
    answer = query_states(["7"])
    assert answer.states == {}
    assert "Unable to contact" in answer.trouble


def test_odd_names_do_not_break_the_columns(fakes: Path) -> None:
    fake(fakes, "squeue", "printf '7|PENDING|(Nodes required | \\351)\\n'")
    assert query_states(["7"]).states["7"].state == "PENDING"


def test_no_jobs_no_query(fakes: Path) -> None:
    fake(fakes, "squeue", "exit 1")
    assert query_states([]).trouble == ""
