"""sbatch's answers, with fakes on PATH for those that a real sbatch gives only on other sites."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpctrain.cli import run
from hpctrain.errors import ConfigError, LaunchError
from tests.launch.test_slurm_states import fake

WORDS = ("model=tiny", "cluster=sandbox")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for fakes first in PATH, and the place where runs go."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", "srun", "exit 0")
    return tmp_path


@pytest.mark.parametrize(
    ("script", "job_id", "cluster"),
    [
        ("echo 123", "123", ""),
        ("echo '123;my-c.2'", "123", "my-c.2"),
        ("echo 'Welcome to 128 nodes ok'; echo 123", "123", ""),
        ("echo 'sbatch: info: charged 12 h' >&2; echo 123", "123", ""),
        ("echo '16 jobs of yours are waiting'; echo 123; echo", "123", ""),
    ],
    ids=["plain", "other-cluster", "banner", "stderr", "number-in-a-notice"],
)
def test_job_ids(slurm: Path, script: str, job_id: str, cluster: str) -> None:
    fake(slurm / "bin", "sbatch", script)
    assert run([*WORDS, f"run.root={slurm}/runs"]) == 0
    (submission,) = (slurm / "runs").glob("*/submission.json")
    record = json.loads(submission.read_text(encoding="utf-8"))
    assert (record["job_id"], record["slurm_cluster"]) == (job_id, cluster)


def test_an_answer_without_a_number_says_that_a_job_may_exist(slurm: Path) -> None:
    fake(slurm / "bin", "sbatch", "echo 'queued, good luck'")
    with pytest.raises(LaunchError, match="may have been submitted") as caught:
        run([*WORDS, f"run.root={slurm}/runs"])
    assert "queued, good luck" in str(caught.value)
    # The job, if there is one, needs its folder.
    assert len(list((slurm / "runs").glob("tiny-*"))) == 1


def test_a_refusal_shows_slurms_words_and_leaves_nothing(slurm: Path) -> None:
    fake(slurm / "bin", "sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    with pytest.raises(LaunchError, match="QOSMaxSubmitJobPerUserLimit") as caught:
        run([*WORDS, f"run.root={slurm}/runs"])
    assert "$ sbatch --parsable" in str(caught.value)
    assert caught.value.exit_code == 4
    assert list((slurm / "runs").iterdir()) == []


@pytest.mark.parametrize("words", ["Socket timed out on send/recv operation", "Unable to contact slurm controller"])
def test_a_lost_answer_keeps_the_folder_since_the_job_may_exist(slurm: Path, words: str) -> None:
    fake(slurm / "bin", "sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")
    with pytest.raises(LaunchError, match="may have been submitted"):
        run([*WORDS, f"run.root={slurm}/runs"])
    assert len(list((slurm / "runs").glob("tiny-*"))) == 1


def test_srun_is_asked_for_too(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "bin" / "srun").unlink()
    fake(slurm / "bin", "sbatch", "echo 1")
    monkeypatch.setenv("PATH", str(slurm / "bin"))
    with pytest.raises(LaunchError, match="no srun"):
        run([*WORDS, f"run.root={slurm}/runs"])
    assert not (slurm / "runs").exists()


def test_a_sweep_has_one_root(slurm: Path) -> None:
    fake(slurm / "bin", "sbatch", "echo 1")
    with pytest.raises(ConfigError, match="share one folder"):
        run(["-m", *WORDS, f"run.root={slurm}/a,{slurm}/b"])


def test_a_sweep_stops_at_a_limit_and_keeps_what_was_reached(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = slurm / "calls"
    script = f"echo x >> {calls}; n=$(wc -l < {calls}); [ $n -le 2 ] && echo $n && exit 0; echo limit >&2; exit 1"
    fake(slurm / "bin", "sbatch", script)
    assert run(["-m", *WORDS, "nodes=1,2,3,4", f"run.root={slurm}/runs"]) == 4
    (manifest,) = (slurm / "runs").glob("*/sweep.json")
    states = [point["state"] for point in json.loads(manifest.read_text(encoding="utf-8"))["points"]]
    assert states == ["submitted", "submitted", "refused", "not reached"]
    assert "limit" in capsys.readouterr().out


def test_a_sweep_with_bad_points_submits_nothing(slurm: Path) -> None:
    fake(slurm / "bin", "sbatch", "echo 1")
    words = ["-m", *WORDS, "hardware.gpus_per_node=1", "training.micro_batch_size=1", "training.global_batch_size=8"]
    with pytest.raises(Exception, match="2 of 4 points are wrong") as caught:
        run([*words, "nodes=1,3,2,5", f"run.root={slurm}/runs"])
    assert "nodes=3" in str(caught.value)
    assert "nodes=5" in str(caught.value)
    assert not (slurm / "runs").exists()


def test_a_sweep_folder_is_flat_with_short_names(slurm: Path) -> None:
    fake(slurm / "bin", "sbatch", "echo 1")
    (slurm / "deep" / ("c" * 200)).mkdir(parents=True)
    for text in (slurm / "deep" / "a.txt", slurm / "deep" / ("c" * 200) / "b.txt"):
        text.write_text("text", encoding="utf-8")
    paths = f"{slurm}/deep/a.txt,{slurm}/deep/{'c' * 200}/b.txt"
    words = ["-m", *WORDS, "data=text", f"data.path={paths}", "run.name='a/b [1]'"]
    assert run([*words, f"run.root={slurm}/runs"]) == 0
    found = list((slurm / "runs").glob("sweep-*/*/config.yaml"))
    assert len(found) == 2
    assert all(len(path.parent.name) < 100 for path in found)
