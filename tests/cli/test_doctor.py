"""The verb doctor: the cluster, the machine, and an exit code that scripts can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain.cli import run
from hpctrain.errors import ConfigError
from tests.launch.site_fakes import fake_site, program


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the real torch takes seconds; tests/slurm does it."""
    monkeypatch.setattr("hpctrain.launch.machine._TORCH_PROBE", "print('CPU build', 0)")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake_site(tmp_path, "19.05", monkeypatch)
    for name in ("sbatch", "srun", "squeue", "scancel", "sacct"):
        program(folder, name, "#!/bin/sh\nexit 0\n")
    return tmp_path


def test_a_healthy_cluster(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", f"run.root={cluster}"]) == 0
    out = capsys.readouterr().out
    assert "cluster volta (Slurm 19.05.8)" in out
    assert "associations, limits, qos bind; your accounts: bio, physics (default)" in out
    assert (
        "account physics: QOS high, normal; MaxWall 12 h, MaxTRES cpu=400,node=3, MaxJobs 10, MaxSubmitJobs 20" in out
    )
    assert "submit plug-ins lua" in out
    assert "reservations: course" in out
    gpu = next(line for line in out.splitlines() if line.startswith("gpu*"))
    assert gpu.split()[1:8] == ["UP", "4", "3", "40", "368", "4", "x"]
    assert "accounts physics, chem only" in gpu
    assert "ok       Slurm answers: volta, 1 partitions UP" in out


def test_for_machines(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json", f"run.root={cluster}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "nodes" not in told["site"]
    assert told["site"]["partitions"]["gpu"]["groups"][0]["usable"] == 3
    assert told["site"]["enforce"] == ["associations", "limits", "qos"]
    assert {"name", "state", "told", "fix", "is_needed"} == set(told["machine"][0])


def test_a_cluster_that_does_not_answer(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(cluster / "bin", "scontrol", "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert run(["doctor", f"run.root={cluster}"]) == 4
    out = capsys.readouterr().out
    assert "this cluster" not in out
    assert "trouble  Slurm answers: " in out
    assert "Unable to contact slurm controller" in " ".join(out.split())


def test_no_partition_is_up(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = (cluster / "bin" / "scontrol").read_text(encoding="utf-8")
    program(
        cluster / "bin", "scontrol", fake.replace('partitions.txt"', 'partitions.txt" | sed s/State=UP/State=DOWN/')
    )
    assert run(["doctor", f"run.root={cluster}"]) == 4
    assert "no partition is UP" in capsys.readouterr().out


def test_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["doctor", "cluster=local", f"run.root={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "Slurm" not in out
    assert "this machine" in out
    assert run(["doctor", "cluster=local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["site"] is None
    assert run(["doctor", f"run.root={tmp_path}"]) == 4


def test_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hpctrain.launch.machine._TORCH_PROBE", "raise ImportError('libcudart.so.13: cannot open')")
    assert run(["doctor", "cluster=local", f"run.root={tmp_path}"]) == 4
    assert "libcudart.so.13: cannot open" in capsys.readouterr().out


def test_its_help_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--help"]) == 0
    assert "usage: python -m hpctrain doctor" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["nodes=2", "--verbose", "run.rot=x", "run.root=", "what"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="is nothing that doctor takes"):
        run(["doctor", word])
