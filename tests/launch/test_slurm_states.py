"""Words, ids and moments of Slurm, and its answers; fakes on PATH print what a real Slurm prints only in rare moments."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpctrain.launch.slurm.query import SlurmAnswer, down_nodes, query_states
from hpctrain.launch.slurm.states import ACTIVE, FINISHED, SlurmCluster, SlurmJob, SlurmState, printed_ids, state_word

SUBMITTED_S = 1796026098.0
KEY = "hpctrain-0123456789abcdef"


def fake(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH; what it does not have, this machine does not have."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("squeue", "scontrol", "sacct"):
        fake(tmp_path, name, f"echo {name}: no such host >&2; exit 1")
    fake(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    return tmp_path


def job(job_id: str, key: str = "", submitted_at_s: float = SUBMITTED_S) -> SlurmJob:
    return SlurmJob(job_id, f"/runs/{job_id}/submission.sh", key, submitted_at_s)


def line(job_id: str, state: str, reason: str = "None", comment: str = "(null)", script: str | None = None) -> str:
    """A line of squeue in the format that is asked for."""
    script = f"/runs/{job_id}/submission.sh" if script is None else script
    return f"{job_id}|{state}|{reason}|N/A|1796026098|N/A|n1|{comment}|{script}"


def queue(fakes: Path, *lines: str) -> None:
    fake(fakes, "squeue", "cat <<'END'\n" + "\n".join(lines) + "\nEND")


def accounting(fakes: Path, *lines: str, extra: str = "") -> None:
    fake(fakes, "sacct", extra + "cat <<'END'\n" + "\n".join(lines) + "\nEND")


def ask(*jobs: SlurmJob) -> SlurmAnswer:
    return query_states(SlurmCluster(), jobs)


def states(*jobs: SlurmJob) -> dict[str, str]:
    return {found.job_id: told.state for found, told in ask(*jobs).states.items()}


@pytest.mark.parametrize("word", sorted(FINISHED | ACTIVE))
def test_state_words_whole_cut_and_with_a_tail(word: str) -> None:
    assert state_word(word) == word
    assert state_word(f"{word} by 1000") == word
    assert state_word(f"{word}+") == word
    assert state_word(f"  {word.lower()} ") == word


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("CANCELLED+", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_F+", "NODE_FAIL"),
        ("", ""),
        ("NEW", "NEW"),
        ("NEW+", "NEW"),
        ("COMPLETED,COMPLETING", "COMPLETED"),
    ],
)
def test_state_words_of_narrow_columns_and_of_tomorrow(text: str, word: str) -> None:
    assert state_word(text) == word


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("7", ["7"]),
        ("7_3", ["7_3"]),
        ("7_[2]", ["7_2"]),
        ("7_[0-2,9%4]", ["7_0", "7_1", "7_2", "7_9"]),
        ("7_[1-9:4]", ["7_1", "7_5", "7_9"]),
        ("7_[1,3-...]", ["7_1"]),
        ("12+0", ["12"]),
    ],
)
def test_printed_ids(text: str, ids: list[str]) -> None:
    assert list(printed_ids(text)) == ids


def test_an_unknown_word_is_kept_and_not_taken_for_an_end(fakes: Path) -> None:
    queue(fakes, line("7", "NEWSTATE", "why"))
    state = ask(job("7")).states[job("7")]
    assert (state.state, state.reason, state.is_active) == ("NEWSTATE", "why", True)
    assert not SlurmState("NEWSTATE", "", "sacct", ended_at_s=5.0).is_active


def test_jobs_that_left_the_queue_are_asked_of_accounting(fakes: Path) -> None:
    queue(fakes, line("7", "RUNNING"))
    accounting(fakes, "8|FAILED|0:0|1796026098|1796026200|n1||", "8|OUT_OF_MEMORY|0:125|1796027000|1796027500|n2||")
    answer = ask(job("7"), job("8"))
    assert answer.states[job("7")].source == "squeue"
    # -D: a line for each restart, the last counts.
    told = answer.states[job("8")]
    assert (told.state, told.source, told.exit_code, told.nodes) == ("OUT_OF_MEMORY", "sacct", "0:125", "n2")
    assert told.ended_at_s == 1796027500.0


@pytest.mark.parametrize("word", sorted(FINISHED - {"FAILED"}))
@pytest.mark.parametrize("form", ["{}", "{} by 1000", "{}+"])
def test_every_word_of_accounting(fakes: Path, word: str, form: str) -> None:
    queue(fakes, line("1", "RUNNING"))
    accounting(fakes, f"8|{form.format(word)}|0:0|1796026098|1796026200|n1||")
    assert states(job("8")) == {"8": word}


def test_accounting_that_lags_says_nothing_or_something_old(fakes: Path) -> None:
    queue(fakes)
    accounting(fakes, "")
    answer = ask(job("7"))
    assert (answer.states, answer.trouble, answer.accounting) == ({}, "", "")
    accounting(fakes, "7|PENDING|0:0|1796026098|Unknown|None assigned||")
    assert ask(job("7")).states[job("7")].is_active


def test_only_the_training_step_tells_more_than_the_job(fakes: Path) -> None:
    queue(fakes)
    accounting(
        fakes,
        "7|FAILED|1:0|1796026098|1796026200|n1||",
        "7.batch|COMPLETED|0:0|1796026098|1796026200|n1||",
        "7.extern|COMPLETED|0:0|1796026098|1796026200|n1||",
        "7.0|OUT_OF_MEMORY|0:125|1796026098|1796026200|n1||",
        extra='for word; do [ "$word" = -X ] && { echo "7|FAILED|1:0|1796026098|1796026200|n1||"; exit; }; done\n',
    )
    told = ask(job("7")).states[job("7")]
    assert (told.state, told.exit_code) == ("OUT_OF_MEMORY", "0:125")


def test_steps_do_not_make_a_failed_job_completed(fakes: Path) -> None:
    queue(fakes)
    accounting(fakes, "7|FAILED|1:0|1796026098|Unknown|n1||", "7.batch|COMPLETED|0:0||||", "7.0|COMPLETED|0:0||||")
    assert states(job("7")) == {"7": "FAILED"}


def test_a_job_of_the_same_number_with_another_script_is_another_job(fakes: Path) -> None:
    queue(fakes, line("7", "RUNNING", script="/somebody/else.sh"))
    accounting(fakes, "7|RUNNING|0:0|1796099999|Unknown|n1||")
    answer = ask(job("7"))
    assert answer.states == {}
    assert answer.foreign == {job("7")}


def test_two_runs_of_the_same_number_are_told_apart(fakes: Path) -> None:
    """A new sandbox counts from 1 again; runs of the one before it lie in the same folder."""
    old = SlurmJob("7", "/runs/old/submission.sh", "", SUBMITTED_S - 9000)
    queue(fakes, line("7", "RUNNING"))
    answer = ask(old, job("7"))
    assert set(answer.states) == {job("7")}
    assert answer.foreign == {old}


def test_the_key_identifies_where_a_site_rewrites_the_script(fakes: Path) -> None:
    queue(fakes, line("7", "RUNNING", comment=KEY, script="/var/spool/rewritten"))
    assert states(job("7", KEY)) == {"7": "RUNNING"}
    assert ask(job("7", "hpctrain-fedcba9876543210")).states == {}


@pytest.mark.parametrize(
    ("record", "ours"),
    [
        ("7|FAILED|1:0|1796026090|1796026200|n1||", True),
        ("7|FAILED|1:0|1796026500|1796026900|n1||", False),
        ("7|FAILED|1:0|1796012345|1796026900|n1||", False),
        (f"7|FAILED|1:0|1796099999|1796026900|n1|{KEY}|", True),
        ("7|FAILED|1:0|1796026098|1796026900|n1||sbatch --parsable /runs/7/submission.sh", True),
        (f"7|FAILED|1:0|1796099999|1796026900|n1||sbatch --comment={KEY} /x.sh", True),
        ("7|FAILED|1:0|1796026098|1796026900|n1||sbatch /somebody/else.sh", False),
        ("7|FAILED|1:0|2026-11-30T08:08:18|2026-11-30T08:08:21|n1||sbatch /runs/7/submission.sh", True),
    ],
    ids=["moment", "later", "earlier", "comment", "script", "key-in-line", "other-script", "iso"],
)
def test_identity_in_accounting(fakes: Path, record: str, ours: bool) -> None:
    queue(fakes)
    accounting(fakes, record)
    answer = ask(job("7", KEY))
    assert (set(answer.states) == {job("7", KEY)}) is ours
    assert (answer.foreign == {job("7", KEY)}) is not ours


def test_a_restart_of_ours_may_be_much_later_than_the_submission(fakes: Path) -> None:
    queue(fakes)
    accounting(
        fakes,
        "7|NODE_FAIL|0:0|1796026098|1796026200|n1||",
        "7|COMPLETED|0:0|1796090000|1796091000|n2||",
    )
    assert states(job("7")) == {"7": "COMPLETED"}


def test_old_slurm_without_submitline(fakes: Path) -> None:
    queue(fakes)
    script = (
        'case "$*" in *SubmitLine*) echo \'sacct: error: Invalid field requested: "SubmitLine"\' >&2; exit 1;; esac\n'
    )
    accounting(fakes, "7|TIMEOUT|0:0|2026-11-30T08:08:18|2026-11-30T08:09:18|n1|", extra=script)
    # Local time, as a Slurm prints it that does not heed SLURM_TIME_FORMAT.
    assert states(job("7", submitted_at_s=0.0)) == {"7": "TIMEOUT"}


def test_one_query_for_all_jobs(fakes: Path) -> None:
    counter = fakes / "calls"
    lines = "\n".join(line(str(number), "RUNNING") for number in range(50))
    fake(fakes, "squeue", f"echo call >> {counter}; cat <<'END'\n{lines}\nEND")
    answer = ask(*(job(str(number)) for number in range(50)))
    assert (len(answer.states), answer.num_calls) == (50, 1)
    assert counter.read_text(encoding="utf-8").count("call") == 1


def test_thousands_of_ids_fit_the_command_lines(fakes: Path) -> None:
    calls = fakes / "calls"
    fake(fakes, "squeue", f'echo "${{#7}}" >> {calls}')
    fake(fakes, "sacct", "exit 0")
    ask(*(job(str(10_000_000 + number)) for number in range(30_000)))
    lengths = [int(text) for text in calls.read_text(encoding="utf-8").split()]
    assert len(lengths) == 3
    assert max(lengths) <= 100_009


def test_an_array_is_asked_for_by_one_number(fakes: Path) -> None:
    script = "/sweep/arrays/0.sh"
    tasks = [SlurmJob(f"83_{index}", script) for index in range(10)]
    fake(
        fakes,
        "squeue",
        'echo "$7" > "$(dirname "$0")/ids"\n'
        f"echo '83_[4-9%2]|PENDING|JobArrayTaskLimit|N/A|1796026098|N/A||(null)|{script}'\n"
        f'for i in 0 1 2 3; do echo "83_$i|RUNNING|None|1796026099|1796026098|N/A|n1|(null)|{script}"; done',
    )
    answer = ask(*tasks)
    assert (fakes / "ids").read_text(encoding="utf-8") == "83\n"
    assert [answer.states[task].state for task in tasks] == ["RUNNING"] * 4 + ["PENDING"] * 6


def test_a_failing_query_is_no_state(fakes: Path) -> None:
    fake(fakes, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    answer = ask(job("7"))
    assert answer.states == {}
    assert "Unable to contact" in answer.trouble


def test_accounting_tells_of_ended_jobs_while_the_controller_is_away(fakes: Path) -> None:
    fake(fakes, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    accounting(fakes, "7|TIMEOUT|0:0|1796026098|1796026200|n1||")
    assert states(job("7")) == {"7": "TIMEOUT"}


def test_a_failing_accounting_is_told(fakes: Path) -> None:
    queue(fakes)
    fake(fakes, "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    answer = ask(job("7"))
    assert "Connection refused" in answer.accounting
    assert answer.trouble == ""


def test_a_job_that_is_gone_is_no_trouble(fakes: Path) -> None:
    fake(fakes, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    accounting(fakes, "7|TIMEOUT|0:0|1796026098|1796026200|n1||")
    answer = ask(job("7"))
    assert (answer.states[job("7")].state, answer.trouble) == ("TIMEOUT", "")


SCONTROL = (
    "JobId=7 JobName=x JobState=FAILED Reason=JobLaunchFailure Dependency=(null) Requeue=1 Restarts=0 ExitCode=0:53"
    " SubmitTime=1796026098 EndTime=1796026101 NodeList=n[1-2] Comment=hpctrain-1 Command=/runs/7/submission.sh WorkDir=/"
)


def test_scontrol_knows_what_squeue_lost(fakes: Path) -> None:
    queue(fakes)
    fake(fakes, "scontrol", f"echo '{SCONTROL}'")
    told = ask(job("7")).states[job("7")]
    assert (told.state, told.source, told.exit_code, told.nodes) == ("FAILED", "scontrol", "0:53", "n[1-2]")
    assert (told.reason, told.ended_at_s) == ("JobLaunchFailure", 1796026101.0)


def test_scontrol_of_another_job_is_no_evidence(fakes: Path) -> None:
    queue(fakes)
    fake(fakes, "scontrol", f"echo '{SCONTROL}' | sed s,/runs/7,/elsewhere,")
    assert ask(job("7")).states == {}


def test_scontrol_adds_the_exit_code_and_is_asked_for_few(fakes: Path) -> None:
    queue(fakes, line("7", "FAILED", "JobLaunchFailure"))
    fake(fakes, "scontrol", f"echo '{SCONTROL}'")
    told = ask(job("7")).states[job("7")]
    assert (told.source, told.exit_code) == ("squeue", "0:53")
    many = [job(str(number)) for number in range(10, 20)]
    queue(fakes, *(line(found.job_id, "FAILED") for found in many))
    assert ask(*many).num_calls == 1


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = ask(job("7"))
    assert "no squeue" in answer.trouble
    assert "no sacct" in answer.accounting


def test_odd_names_do_not_break_the_columns(fakes: Path) -> None:
    fake(fakes, "squeue", "printf '7|PENDING|(x) \\351|N/A|N/A|N/A||a|b c \\351|/runs/7/submission.sh\\n'")
    assert states(job("7")) == {"7": "PENDING"}


def test_the_cluster_and_not_the_shells_filters_decide(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    fake(fakes, "squeue", f'echo "CLUSTER: c2"; echo "{line("7", "RUNNING", "$SLURM_CONF $SQUEUE_PARTITION $1 $2")}"')
    answer = query_states(SlurmCluster("/etc/c2.conf", "c2"), [job("7")])
    assert answer.states[job("7")].reason == "/etc/c2.conf  -M c2"


def test_what_matters_only_in_the_queue_is_not_asked_of_accounting(fakes: Path) -> None:
    queue(fakes)
    accounting(fakes, "7|FAILED|1:0|1796026098|1796026200|n1||")
    assert query_states(SlurmCluster(), [job("7")], queue_only={job("7")}).num_calls == 1


def test_down_nodes(fakes: Path) -> None:
    fake(fakes, "sinfo", "echo 'n1|down*'; echo 'n2|idle'; echo 'n3|drng'")
    assert down_nodes(SlurmCluster(), {"n1", "n2", "n3"}) == {"n1", "n3"}
    fake(fakes, "sinfo", "exit 1")
    assert down_nodes(SlurmCluster(), {"n1"}) == frozenset()


def test_no_jobs_no_query(fakes: Path) -> None:
    assert os.access(fakes / "squeue", os.X_OK)
    assert ask().num_calls == 0
