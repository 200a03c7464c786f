"""A rank's own folder on its node's NVMe: where it is, whether it is fit for it, and DeepSpeed's configuration with it. No torch.

DeepSpeed makes its files below ``nvme_path`` and removes none; so each rank of each start of a job has a folder of its own, which
is removed whole when the rank ends, by its guard where it is killed.
"""

from __future__ import annotations

import dataclasses
import getpass
import glob
import os
import re
import resource
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.plan.nvme.need import NvmeNeed, room_problem
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import gib
from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.mounts import Mount, mount_of
from hpctrain.worker.rank_env import RankEnv

NAME = "hpctrain"
"""First word of these folders' names."""
NETWORK_TYPES = frozenset(
    "9p afs beegfs ceph cifs coda fhgfs glusterfs gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 quobyte smb3 smbfs vastnfs"
    " virtiofs wekafs".split()
)
"""Types of file systems whose files are on other machines, by their names in /proc/self/mountinfo."""
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.mergerfs"})
"""Other file systems in user space (fuse.sshfs, fuse.s3fs, fuse.juicefs, fuse.gcsfuse, ...) are taken to be on other machines."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_CAP_IPC_LOCK = 14


def folder_of(need: NvmeNeed, env: RankEnv) -> Path:
    """This rank's own folder in this start of the job; another user's jobs, and other ranks of the node, have others."""
    return Path(need.folder) / f"{_starts_of_job(env)}-{env.attempt}-rank{env.rank}"


def _starts_of_job(env: RankEnv) -> str:
    """First words of the folders' names; in a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{NAME}-{user}-{env.job_id}"


def make_folder(need: NvmeNeed, env: RankEnv) -> Path:
    """The folder, made; looked at beforehand, before any rank writes.

    Raises:
        RankEnvironmentError: ``parallelism.nvme_path`` is missing on this node, not writable, on a network file system, or has
            less room than the node's ranks need; or the rank may not lock the buffers that reads and writes pass through.
    """
    base = Path(need.folder)
    if not base.is_dir():
        if base.exists():
            _refuse(need, env, "is no folder", "set parallelism.nvme_path=/FOLDER")
        _refuse(need, env, "there is no such folder", "make it on every node, or set parallelism.nvme_path=/FOLDER")
    mount = mount_of(base)
    if is_on_network(mount.kind):
        _refuse(
            need,
            env,
            f"is on {mount.point}, of type {mount.kind}, a network file system that all nodes would read and write at every step",
            "a folder on the node's own NVMe",
        )
    if mount.kind in _IN_MEMORY:
        print(
            f"hpctrain: warning: node {env.node_name}: parallelism.nvme_path={need.folder}: {mount.point} is of type"
            f" {mount.kind}: its files take host memory",
            flush=True,
        )
    _check_writable(need, env)
    _check_locked_memory(need, env)
    if env.local_rank == 0:
        _remove_former(env, base)
        _check_room(need, env, base, mount)
    folder = folder_of(need, env)
    # A rank of the same start is no two; what is there is of a killed one whose guard was killed as well.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def is_on_network(kind: str) -> bool:
    """Whether a type of file system, as the kernel names it, keeps its files on other machines.

    >>> is_on_network("nfs4"), is_on_network("fuse.sshfs"), is_on_network("ext4"), is_on_network("xfs")
    (True, True, False, False)
    """
    return kind in NETWORK_TYPES or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def _check_writable(need: NvmeNeed, env: RankEnv) -> None:
    probe = Path(need.folder) / f".{NAME}-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        _refuse(need, env, f"cannot be written: {error.strerror}", "a folder that you may write on every node")


def _remove_former(env: RankEnv, base: Path) -> None:
    """Folders of former starts of this very job, which have ended; their guards were killed with all of the job's processes."""
    first = _starts_of_job(env)
    for path in base.glob(f"{glob.escape(first)}-*"):
        found = re.fullmatch(r"-(\d+)-rank\d+", path.name[len(first) :])
        if found and int(found[1]) < env.attempt:
            shutil.rmtree(path, ignore_errors=True)


def _check_room(need: NvmeNeed, env: RankEnv, base: Path, mount: Mount) -> None:
    free = shutil.disk_usage(base).free
    print(
        f"hpctrain: node {env.node_name}: NVMe {need.folder} on {mount.point} ({mount.kind}): {gib(free)} free,"
        f" {gib(need.bytes_per_node)} needed at the height",
        flush=True,
    )
    problem = room_problem(need, free, f"node {env.node_name}: {need.folder}")
    if problem is None:
        return
    left = sorted(path.name for path in base.glob(f"{NAME}-*"))
    more = f"; there are {len(left)} folders of other starts, such as {left[0]}" if left else ""
    raise RankEnvironmentError(f"{problem}{more}")


def _check_locked_memory(need: NvmeNeed, env: RankEnv) -> None:
    """DeepSpeed's library does without a word what it cannot lock: it would write to address 0."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    if limit == resource.RLIM_INFINITY or need.locked_bytes <= limit or may_lock(status):
        return
    raise RankEnvironmentError(
        f"node {env.node_name}: locked memory is limited to {gib(limit)} a process (ulimit -l), and reads and writes of NVMe pass"
        f" through {gib(need.locked_bytes)} of locked buffers; have LimitMEMLOCK=infinity set for slurmd, submit from a shell"
        " with ulimit -l unlimited, or set a smaller parallelism.sub_group_size or parallelism.pipeline_swaps=false"
    )


def may_lock(status: str) -> bool:
    """Whether the process may lock any amount (CAP_IPC_LOCK), by its ``/proc/self/status``.

    >>> may_lock("CapEff:\\t0000000000004000"), may_lock("CapEff:\\t0000000000000000")
    (True, False)
    """
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)


def _refuse(need: NvmeNeed, env: RankEnv, rule: str, fix: str) -> None:
    raise RankEnvironmentError(f"parallelism.nvme_path={need.folder}: node {env.node_name}: {rule}; nearest: {fix}")


def with_folder(plan: RunPlan, folder: Path | str | None) -> RunPlan:
    """The plan with a rank's own folder in DeepSpeed's configuration; None: it has none, and the plan stays as it is."""
    if folder is None or plan.nvme is None:
        return plan
    zero: dict[str, Any] = {name: _moved(value, folder) for name, value in plan.ds_config["zero_optimization"].items()}
    return dataclasses.replace(plan, ds_config=plan.ds_config | {"zero_optimization": zero})


def _moved(section: Any, folder: Path | str) -> Any:
    is_there = isinstance(section, Mapping) and section.get("device") == "nvme"
    return {**section, "nvme_path": str(folder)} if is_there else section
