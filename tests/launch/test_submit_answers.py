"""sbatch's answers, with fakes on PATH for those that a real sbatch gives only on other sites or in rare moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import run
from hpctrain.errors import LaunchError, SubmitLimitError, UnclearSubmissionError
from hpctrain.launch.slurm.sbatch import SbatchAnswer
from tests.launch.fake_slurm import FakeSlurm
from tests.launch.fake_slurm import slurm as slurm  # the fixture

WORDS = ("model=tiny", "cluster=sandbox", "launch.submit_retry_s=6")


def submitted(slurm: FakeSlurm) -> dict[str, Any]:
    (path,) = slurm.root.glob("*/submission.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(record, dict)
    return record


def run_folders(slurm: FakeSlurm) -> list[Path]:
    return list(slurm.root.glob("tiny-*"))


@pytest.mark.parametrize(
    ("stdout", "stderr", "job_id", "cluster"),
    [
        ("123\n", "", "123", ""),
        ("123;my-c.2\n", "", "123", "my-c.2"),
        ("Welcome to 128 nodes ok\n123\n", "", "123", ""),
        ("123\n", "sbatch: info: charged 12 h\n77\n", "123", ""),
        ("16 jobs of yours are waiting\n123\n\n", "", "123", ""),
        ("42\nYour quota:\n17 TB\n123;c2\n", "", "123", "c2"),
        ("\x1b[32mhello\x1b[0m\n\x1b[1m123\x1b[0m\r\n", "", "123", ""),
        ("  123  \nbye\n", "", "123", ""),
        ("Submitted batch job 123\n", "", "123", ""),
        ("7 notices\nSubmitted batch job 123 on cluster c2\n", "", "123", "c2"),
    ],
    ids=[
        *("plain", "other-cluster", "banner", "stderr", "number-in-a-notice", "many-numbers", "colours", "blanks"),
        *("wrapper-without-parsable", "wrapper-other-cluster"),
    ],
)
def test_job_ids(slurm: FakeSlurm, stdout: str, stderr: str, job_id: str, cluster: str) -> None:
    slurm.program("sbatch", f"printf '{stdout}'; printf '{stderr}' >&2")
    assert run([*WORDS, f"run.root={slurm.root}"]) == 0
    record = submitted(slurm)
    assert (record["job_id"], record["slurm_cluster"]) == (job_id, cluster)
    assert not list(slurm.root.glob("*/*.sbatch-*"))


@pytest.mark.parametrize(
    ("code", "stderr", "verdict"),
    [
        (1, "sbatch: error: Batch job submission failed: Invalid partition name specified", "refused"),
        (1, "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", "lost"),
        (1, "sbatch: error: slurm_receive_msg: Connection reset by peer", "lost"),
        (1, "sbatch: error: Batch job submission failed: Slurm backup controller in standby mode", "lost"),
        (-9, "", "lost"),
        (None, "", "lost"),
        (1, "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates", "limit"),
        (1, "sbatch: error: AssocGrpSubmitJobsLimit", "limit"),
        (1, "sbatch: error: QOSMaxSubmitJobPerUserLimit", "limit"),
        (1, "sbatch: error: Batch job submission failed: Resource temporarily unavailable", "limit"),
        (
            1,
            "sbatch: error: QOSMaxWallDurationPerJobLimit\nJob violates policy (job submit limit, time limit)",
            "refused",
        ),
        (0, "", "no id"),
    ],
)
def test_verdicts(code: int | None, stderr: str, verdict: str) -> None:
    assert SbatchAnswer(code, "", stderr).verdict == verdict


def test_a_job_id_with_a_failure_is_looked_up(slurm: FakeSlurm, tmp_path: Path) -> None:
    real = tmp_path / "bin" / "sbatch"
    real.rename(real.with_name("sbatch.real"))
    slurm.program("sbatch", 'sbatch.real "$@"; echo "wrapper: quota file is missing" >&2; exit 1')
    assert run([*WORDS, f"run.root={slurm.root}"]) == 0
    assert submitted(slurm)["job_id"] == "101"
    slurm.program("sbatch", "echo 7; exit 1")
    with pytest.raises(UnclearSubmissionError, match="answer names a job and fails"):
        run([*WORDS, f"run.root={slurm.root}"])


def test_a_wrong_slurm_conf_is_told_at_once(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/no/such/slurm.conf")
    with pytest.raises(LaunchError, match=r"SLURM_CONF=/no/such/slurm\.conf: there is no such file"):
        run([*WORDS, f"run.root={slurm.root}"])
    assert slurm.num_calls == 0


def test_a_name_that_the_locale_has_no_file_for_is_told(slurm: FakeSlurm) -> None:
    command = [sys.executable, "-m", "hpctrain", *WORDS, f"run.root={slurm.root}/é"]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answer = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ) | locale, check=False)
    assert (answer.returncode, slurm.num_calls) == (2, 0)
    assert "file names are ascii; set LC_ALL=C.UTF-8" in answer.stderr


def test_an_answer_without_a_number_says_that_a_job_may_exist(slurm: FakeSlurm) -> None:
    slurm.act("none")
    with pytest.raises(UnclearSubmissionError, match="may have been submitted") as caught:
        run([*WORDS, f"run.root={slurm.root}"])
    assert "queued, good luck" in str(caught.value)
    assert caught.value.exit_code == 4
    # The job, if there is one, needs its folder.
    assert len(run_folders(slurm)) == 1


def test_a_job_without_an_answer_is_found_by_its_key(slurm: FakeSlurm) -> None:
    slurm.act("silent")
    assert run([*WORDS, f"run.root={slurm.root}"]) == 0
    assert (submitted(slurm)["job_id"], slurm.num_calls) == ("101", 1)


def test_a_refusal_shows_slurms_words_and_leaves_nothing(slurm: FakeSlurm) -> None:
    slurm.act("refused")
    with pytest.raises(LaunchError, match="Requested node configuration is not available") as caught:
        run([*WORDS, f"run.root={slurm.root}"])
    assert "$ sbatch --parsable" in str(caught.value)
    assert caught.value.exit_code == 4
    assert run_folders(slurm) == []


@pytest.mark.parametrize(
    "words",
    [(), ("cluster.comment='ours and theirs'",), ("launch.comment_key=false",)],
    ids=["key", "comment-of-the-user", "no-comment"],
)
def test_a_job_whose_answer_was_lost_is_not_submitted_twice(slurm: FakeSlurm, words: tuple[str, ...]) -> None:
    slurm.act("taken-then-lost", "ok")
    assert run([*WORDS, *words, f"run.root={slurm.root}"]) == 0
    assert (submitted(slurm)["job_id"], slurm.num_calls) == ("101", 1)
    script = Path(slurm.scripts[0]).read_text(encoding="utf-8")
    assert ("#SBATCH --comment=hpctrain-" in script) == (words == ())


def test_a_request_that_a_slow_controller_takes_late_is_not_sent_again(slurm: FakeSlurm) -> None:
    slurm.act("late", "ok")
    assert run([*WORDS, f"run.root={slurm.root}"]) == 0
    assert (submitted(slurm)["job_id"], slurm.num_calls) == ("101", 1)


def test_a_controller_that_comes_back_gets_the_job_once(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.act("away", "away", "ok")
    assert run([*WORDS, f"run.root={slurm.root}"]) == 0
    assert (submitted(slurm)["job_id"], slurm.num_calls, len(slurm.scripts)) == ("101", 3, 1)
    assert "for up to 6 s" in capsys.readouterr().err


def test_a_twin_of_a_retry_is_cancelled(slurm: FakeSlurm) -> None:
    # The first request is taken after it was looked for, at the moment of the second.
    jobs = f"{slurm.root.parent}/slurm/jobs"
    slurm.act("away", "ok")
    slurm.program("squeue", f"[ -f {jobs} ] && cat {jobs} && sed 's/^101/90/' {jobs}; exit 0")
    assert run([*WORDS, f"run.root={slurm.root}"]) == 0
    assert (submitted(slurm)["job_id"], slurm.cancelled) == ("90", ["101"])


@pytest.mark.parametrize("action", ["taken-then-lost", "away"])
def test_where_slurm_never_answers_the_folder_stays_since_the_job_may_exist(slurm: FakeSlurm, action: str) -> None:
    slurm.act(action)
    slurm.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UnclearSubmissionError, match="may have been submitted") as caught:
        run([*WORDS, "launch.submit_retry_s=1", f"run.root={slurm.root}"])
    assert "squeue: slurm_load_jobs error" in str(caught.value)
    assert (len(run_folders(slurm)), slurm.num_calls) == (1, 1)


def test_a_submit_limit_is_told_as_such(slurm: FakeSlurm) -> None:
    slurm.act("limit")
    with pytest.raises(SubmitLimitError, match="Slurm takes no more jobs now"):
        run([*WORDS, f"run.root={slurm.root}"])
    assert (run_folders(slurm), slurm.num_calls) == ([], 1)


def test_srun_is_asked_for_too(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm.root.parent / "only-sbatch"
    folder.mkdir()
    (folder / "sbatch").symlink_to(slurm.root.parent / "bin" / "sbatch")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(LaunchError, match="no srun"):
        run([*WORDS, f"run.root={slurm.root}"])
    assert not slurm.root.exists()


def start(slurm: FakeSlurm, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hpctrain", *WORDS, f"run.root={slurm.root}", *words]
    source = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        command, env={**os.environ, **source}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_calls(slurm: FakeSlurm, count: int) -> None:
    deadline = time.monotonic() + 60
    while slurm.num_calls < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)], ids=["int", "term", "hup"]
)
def test_a_signal_during_sbatch_waits_until_the_job_is_recorded(slurm: FakeSlurm, number: int, code: int) -> None:
    slurm.act("held")
    process = start(slurm)
    wait_for_calls(slurm, 1)
    process.send_signal(number)
    slurm.let_go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert submitted(slurm)["job_id"] == "101"
    assert "job 101 was submitted before the signal came" in out
    assert "Traceback" not in err


def test_a_signal_in_a_pause_without_a_job_leaves_nothing(slurm: FakeSlurm) -> None:
    slurm.act("away")
    process = start(slurm, "launch.submit_retry_s=60")
    assert process.stderr is not None
    told = ""
    while "asks Slurm for the job" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, told + err
    assert "Slurm has no job of this submission" in err
    assert run_folders(slurm) == []


def test_five_starts_in_the_same_second_are_five_jobs(slurm: FakeSlurm) -> None:
    slurm.program("sbatch", "echo $$")
    processes = [start(slurm) for _ in range(5)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 5, errors
    records = [json.loads(path.read_text(encoding="utf-8")) for path in slurm.root.glob("*/submission.json")]
    assert len({record["job_id"] for record in records}) == 5
    assert len({record["key"] for record in records}) == 5
