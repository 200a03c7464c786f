"""What is looked at on this machine, and what is said to do about it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from hpctrain.launch.machine import Finding, TorchProbe, file_system, machine_findings, missing_for_submission
from tests.launch.site_fakes import program

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /scratch rw shared:2 - lustre 10.0.0.1@o2ib:/lfs rw
31 30 0:41 / /scratch/a\\040b rw - nfs4 server:/export rw
32 22 0:42 / /dev/shm rw - tmpfs tmpfs rw
"""


def finding(findings: list[Finding], name: str) -> Finding:
    return next(found for found in findings if found.name.startswith(name))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/scratch", "lustre"),
        ("/scratch/me/runs", "lustre"),
        ("/scratch/a b/runs", "nfs4"),
        ("/scratch2", "ext4"),
        ("/dev/shm/x", "tmpfs"),
    ],
)
def test_the_longest_mount_point_tells_the_file_system(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS, encoding="utf-8")
    assert file_system(Path(path), mounts) == kind


def test_without_proc_the_file_system_is_unknown(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "nothing") == "unknown"


def test_this_machine_is_looked_at_without_writing(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "deep"
    findings = machine_findings(root, needs_slurm=False)
    assert finding(findings, f"run.root {root}").state in ("ok", "trouble")  # by the room that there is
    assert "GiB free" in finding(findings, "run.root").told
    assert "torch " in finding(findings, "packages").told
    assert not (tmp_path / "runs").exists()
    assert not [found for found in findings if found.name == "commands of Slurm"]


def test_a_root_that_cannot_be_written_is_missing_for_a_submission(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = machine_findings(tmp_path / "file" / "runs", needs_slurm=False)
    assert [found.told for found in missing_for_submission(findings)] == [f"{tmp_path}/file cannot be written"]


def test_without_slurm_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = finding(machine_findings(tmp_path, needs_slurm=True), "commands of Slurm")
    assert (found.state, found.is_needed) == ("trouble", True)
    assert "not on PATH: sbatch, srun" in found.told
    assert "cluster=local" in found.fix


def test_a_client_that_is_missing_beside_sbatch_is_trouble_but_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sbatch", "srun", "scontrol", "squeue", "scancel"):
        program(tmp_path / "bin", name, "#!/bin/sh\necho '--container-image=IMAGE'\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    findings = machine_findings(tmp_path, needs_slurm=True)
    found = finding(findings, "commands of Slurm")
    assert (found.state, found.is_needed, found.told) == ("trouble", False, "not on PATH: sacct")
    assert "pyxis" in finding(findings, "containers").told


def test_a_small_limit_of_locked_memory_is_told_with_its_number(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    try:
        found = finding(machine_findings(tmp_path, needs_slurm=False), "locked memory")
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    assert found.state in ("note", "trouble")  # trouble where there is InfiniBand
    assert "at most 0.1 MiB" in found.told
    assert "ulimit -l unlimited" in found.fix


@pytest.mark.parametrize(
    ("probe", "state", "told"),
    [
        ("print('noise'); print('12.8 8')", "ok", "built for 12.8, 8 GPUs seen here"),
        ("print('CPU build', 0)", "ok", "CPU build, 0 GPUs seen here"),
        ("import hpctrain_nosuch", "trouble", "ModuleNotFoundError: No module named 'hpctrain_nosuch'"),
        ("import os; os.abort()", "trouble", "exit code -6"),
        ("import time; time.sleep(60)", "trouble", "no end after 0 s"),
    ],
    ids=["gpus", "cpu", "missing", "killed", "hangs"],
)
def test_torch_is_imported_elsewhere(monkeypatch: pytest.MonkeyPatch, probe: str, state: str, told: str) -> None:
    monkeypatch.setattr("hpctrain.launch.machine._TORCH_PROBE", probe)
    monkeypatch.setattr("hpctrain.launch.machine._IMPORT_TIMEOUT_S", 0.5 if "sleep" in probe else 60.0)
    found = TorchProbe().finding()
    assert (found.state, found.is_needed) == (state, state == "trouble")
    assert told in found.told
