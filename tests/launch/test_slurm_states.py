"""Reading squeue and sacct; fakes on PATH print what a real Slurm prints only in rare moments."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpctrain.launch.slurm_states import ACTIVE, FINISHED, SlurmAnswer, SlurmCluster, query_states, state_word


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


def ask(*job_ids: str) -> SlurmAnswer:
    return query_states(SlurmCluster(), {job_id: f"/runs/{job_id}/submission.sh" for job_id in job_ids})


def test_an_unknown_word_is_kept_and_not_taken_for_an_end(fakes: Path) -> None:
    fake(fakes, "squeue", "echo '7|NEWSTATE|why|/runs/7/submission.sh'")
    state = ask("7").states["7"]
    assert (state.state, state.is_active) == ("NEWSTATE", True)


def test_jobs_that_left_the_queue_are_asked_of_accounting(fakes: Path) -> None:
    fake(fakes, "squeue", "echo '7|RUNNING|None|/runs/7/submission.sh'")
    fake(fakes, "sacct", "echo '8|FAILED|0:0'; echo '8|OUT_OF_MEMORY|0:125'")
    answer = ask("7", "8")
    assert answer.states["7"].source == "squeue"
    assert (answer.states["8"].state, answer.states["8"].source) == ("OUT_OF_MEMORY", "sacct")


def test_a_job_of_the_same_number_with_another_script_is_another_job(fakes: Path) -> None:
    fake(fakes, "squeue", "echo '7|RUNNING|None|/somebody/else.sh'")
    fake(fakes, "sacct", "echo '7|RUNNING|0:0'")
    assert ask("7").states == {}


def test_one_query_for_all_jobs(fakes: Path) -> None:
    counter = fakes / "calls"
    script = f'echo call >> {counter}; for i in $(seq 50); do echo "$i|RUNNING|None|/runs/$i/submission.sh"; done'
    fake(fakes, "squeue", script)
    assert len(ask(*(str(number) for number in range(1, 51))).states) == 50
    assert counter.read_text(encoding="utf-8").count("call") == 1


def test_a_failing_query_is_no_state(fakes: Path) -> None:
    fake(fakes, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    fake(fakes, "sacct", "exit 0")
    answer = ask("7")
    assert answer.states == {}
    assert "Unable to contact" in answer.trouble


def test_a_job_that_is_gone_is_no_trouble(fakes: Path) -> None:
    fake(fakes, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake(fakes, "sacct", "echo '7|TIMEOUT|0:0'")
    answer = ask("7")
    assert (answer.states["7"].state, answer.trouble) == ("TIMEOUT", "")


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no squeue" in ask("7").trouble


def test_odd_names_do_not_break_the_columns(fakes: Path) -> None:
    fake(fakes, "squeue", "printf '7|PENDING|(x) \\351|/runs/7/submission.sh\\n'")
    assert ask("7").states["7"].state == "PENDING"


def test_the_cluster_and_not_the_shells_filters_decide(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    fake(fakes, "squeue", 'echo "7|RUNNING|$SLURM_CONF $SQUEUE_PARTITION $1 $2|/runs/7/submission.sh"')
    answer = query_states(SlurmCluster("/etc/c2.conf", "c2"), {"7": "/runs/7/submission.sh"})
    assert answer.states["7"].reason == "/etc/c2.conf  -M c2"


def test_no_jobs_no_query(fakes: Path) -> None:
    fake(fakes, "squeue", "exit 1")
    assert ask().trouble == ""
