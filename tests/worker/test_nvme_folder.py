"""A rank's folder on NVMe: refused before anything is written where it is not fit, told with numbers."""

from __future__ import annotations

import os
import resource
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.plan.nvme.need import NvmeNeed
from hpctrain.worker import nvme_folder
from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.mounts import Mount, found_mount, mount_of
from hpctrain.worker.nvme_folder import folder_of, is_on_network, make_folder
from hpctrain.worker.rank_env import RankEnv
from tests.worker.test_rank_env import SLURM, slurm

MIB = 2**20
Usage = namedtuple("Usage", "total used free")


def need_of(folder: Path, **changes: int) -> NvmeNeed:
    need = NvmeNeed(
        folder=str(folder),
        ratio=1.0,
        state_bytes=12 * MIB,
        gradient_bytes=4 * MIB,
        parameter_bytes=2 * MIB,
        locked_bytes=0,
        ranks_per_node=4,
        capacity_bytes=None,
    )
    return replace(need, **changes)  # type: ignore[arg-type]


@pytest.fixture
def env() -> RankEnv:
    return replace(slurm(SLURM), rank=5, local_rank=0, node_name="n1")


def test_each_rank_of_each_start_has_its_own(tmp_path: Path, env: RankEnv, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(need_of(tmp_path), env)
    assert folder == folder_of(need_of(tmp_path), env)
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    others = (replace(env, rank=6), replace(env, attempt=env.attempt + 1), replace(env, job_id="another"))
    assert len({folder, *(folder_of(need_of(tmp_path), other) for other in others)}) == 4
    assert "free, 72.0 MiB needed at the height" in capsys.readouterr().out
    # What a killed start of the same number has left.
    (folder / "old").touch()
    assert list(make_folder(need_of(tmp_path), env).iterdir()) == []


def test_former_starts_of_the_job_are_removed(tmp_path: Path, env: RankEnv) -> None:
    env = replace(env, attempt=3)
    need = need_of(tmp_path)
    former = [folder_of(need, replace(env, attempt=2, rank=rank)) for rank in (5, 6)]
    others = [folder_of(need, replace(env, rank=6)), folder_of(need, replace(env, job_id=f"{env.job_id}0", attempt=1))]
    for folder in (*former, *others):
        folder.mkdir()
    make_folder(need, env)
    assert not any(folder.exists() for folder in former)
    assert all(folder.is_dir() for folder in others)


def test_user_without_a_name(tmp_path: Path, env: RankEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert f"-{os.getuid()}-" in folder_of(need_of(tmp_path), env).name


def test_missing(tmp_path: Path, env: RankEnv) -> None:
    wanted = r"parallelism\.nvme_path=.*/none: node n1: there is no such folder; nearest: make it on every node"
    with pytest.raises(RankEnvironmentError, match=wanted):
        make_folder(need_of(tmp_path / "none"), env)
    (tmp_path / "file").touch()
    with pytest.raises(RankEnvironmentError, match="/file: node n1: is no folder"):
        make_folder(need_of(tmp_path / "file"), env)


def test_not_writable(tmp_path: Path, env: RankEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13), str(self))

    # Root may write everywhere, so that the system's refusal is put in place.
    monkeypatch.setattr(Path, "mkdir", refusing)
    with pytest.raises(
        RankEnvironmentError, match="node n1: cannot be written: Permission denied; nearest: a folder that"
    ):
        make_folder(need_of(tmp_path), env)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "fuse.sshfs", "ceph", "cifs", "9p"])
def test_on_a_network_file_system(kind: str, tmp_path: Path, env: RankEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme_folder, "mount_of", lambda folder: Mount("/shared", kind))
    with pytest.raises(
        RankEnvironmentError, match=f"is on /shared, of type {kind}, a network file system that all nodes"
    ):
        make_folder(need_of(tmp_path), env)
    assert list(tmp_path.iterdir()) == []


def test_local_ones_are_taken(
    tmp_path: Path, env: RankEnv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any(is_on_network(kind) for kind in ("ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "tmpfs"))
    monkeypatch.setattr(nvme_folder, "mount_of", lambda folder: Mount("/tmp", "tmpfs"))
    make_folder(need_of(tmp_path), env)
    assert "/tmp is of type tmpfs: its files take host memory" in capsys.readouterr().out


def test_too_little_room(tmp_path: Path, env: RankEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 70 * MIB))
    (tmp_path / "hpctrain-me-7-1-rank0").mkdir()
    with pytest.raises(RankEnvironmentError) as caught:
        make_folder(need_of(tmp_path), env)
    text = str(caught.value)
    assert "memory.nvme=72.0 MiB: estimated need of 4 ranks (optimizer states 48.0 MiB, gradients 16.0 MiB" in text
    assert f"node n1: {tmp_path} has 70.0 MiB, short by 2.0 MiB" in text
    assert "there are 1 folders of other starts, such as hpctrain-me-7-1-rank0" in text
    # The node's first rank looks for all of them, before any writes.
    make_folder(need_of(tmp_path), replace(env, local_rank=1))


def test_locked_memory(tmp_path: Path, env: RankEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 * MIB, 8 * MIB))
    monkeypatch.setattr(nvme_folder, "may_lock", lambda status: False)
    make_folder(need_of(tmp_path, locked_bytes=8 * MIB), env)
    with pytest.raises(RankEnvironmentError, match=r"limited to 8\.0 MiB a process .* pass through 8\.0 MiB of locked"):
        make_folder(need_of(tmp_path, locked_bytes=8 * MIB + 1), env)
    monkeypatch.setattr(nvme_folder, "may_lock", lambda status: True)
    make_folder(need_of(tmp_path, locked_bytes=2**40), env)


def test_mounts(tmp_path: Path) -> None:
    text = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:5 / /mnt/a\\040b rw,noatime shared:3 - nfs4 server:/x rw\n"
        "3 1 8:2 / /mnt rw - xfs /dev/nvme0n1 rw\n"
        "4 1 0:6 / /mnt rw - lustre mgs:/x rw\n"
    )
    assert found_mount(text, Path("/mnt/a b/c")) == Mount("/mnt/a b", "nfs4")
    assert found_mount(text, Path("/mnt/ab")) == Mount("/mnt", "lustre")
    assert found_mount(text, Path("/mntx")) == Mount("/", "ext4")
    assert tmp_path.is_relative_to(mount_of(tmp_path).point)
