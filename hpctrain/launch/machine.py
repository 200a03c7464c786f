"""What this machine has that a submission, or a run here, needs; each finding with what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import locale
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpctrain.launch.interpreter import interpreter
from hpctrain.units import GIB, gib

_PACKAGES = ("torch", "deepspeed", "submitit", "hydra-core", "omegaconf", "pydantic", "psutil", "rich")
_OPTIONAL = {"pandas": "analysis", "matplotlib": "analysis"}
_IMPORT_TIMEOUT_S = 120.0
_LITTLE_ROOM_BYTES = 10 * GIB
_SMALL_MEMLOCK_BYTES = GIB
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_ONLY = frozenset({"tmpfs", "ramfs"})
_OF_ONE_MACHINE = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", *_MEMORY_ONLY})
"""File systems that other nodes do not see unless the machine exports them."""
_TORCH_PROBE = (
    "import torch, deepspeed; print(torch.version.cuda or torch.version.hip or 'CPU build', torch.cuda.device_count())"
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "note", "trouble"]
    told: str
    fix: str = ""
    """What to do; empty where nothing is to be done."""
    is_needed: bool = False
    """Without it nothing can be submitted."""


class TorchProbe:
    """Imports torch and deepspeed in a process of its own, while the caller looks at other things."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TORCH_PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )

    def finding(self) -> Finding:
        name = "import torch, deepspeed"
        try:
            output, _ = self._process.communicate(timeout=_IMPORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            told = f"no end after {_IMPORT_TIMEOUT_S:.0f} s"
            return Finding(name, "trouble", told, "is the file system slow? try again", is_needed=True)
        code = self._process.returncode
        last = next((line for line in reversed(output.splitlines()) if line.strip()), f"exit code {code}")
        if code != 0:
            fix = "pip install 'hpctrain[train]' in the environment of the interpreter above"
            return Finding(name, "trouble", last, fix, is_needed=True)
        build, _, num_gpus = last.rpartition(" ")
        cuda = build if build == "CPU build" else f"built for {build}"
        return Finding(name, "ok", f"{cuda}, {num_gpus} GPUs seen here")


def machine_findings(root: Path, needs_slurm: bool) -> list[Finding]:
    """All but the import of torch, in the order in which they are printed.

    Args:
        root: folder of the runs; it need not be there.
        needs_slurm: runs go to Slurm, whose nodes must see the same files.
    """
    return [
        _interpreter(needs_slurm),
        _packages(),
        *(_slurm_commands() if needs_slurm else []),
        _run_root(root, needs_slurm),
        _memlock(needs_slurm),
        _open_files(),
        _locale(),
        _gpu_devices(needs_slurm),
        _containers(),
    ]


def _interpreter(needs_slurm: bool) -> Finding:
    told = f"{interpreter()} (Python {platform.python_version()})"
    kind = file_system(Path(sys.prefix))
    if needs_slurm and kind in _OF_ONE_MACHINE:
        fix = "the nodes need the same path: a shared file system, or cluster.container"
        return Finding("interpreter", "note", f"{told}, on {kind}, which other machines may not see", fix)
    return Finding("interpreter", "ok", f"{told}, on {kind}")


def _packages() -> Finding:
    versions = {name: _version(name) for name in (*_PACKAGES, *_OPTIONAL)}
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing := [name for name in _PACKAGES if not versions[name]]:
        fix = "pip install 'hpctrain[train]'"
        return Finding("packages", "trouble", f"{told}; missing: {', '.join(missing)}", fix, is_needed=True)
    if missing := [name for name in _OPTIONAL if not versions[name]]:
        return Finding(
            "packages", "note", f"{told}; missing: {', '.join(missing)}", "pip install 'hpctrain[analysis]' for report"
        )
    return Finding("packages", "ok", told)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _slurm_commands() -> list[Finding]:
    found = {name: shutil.which(name) for name in ("sbatch", "srun", "scontrol", "squeue", "scancel", "sacct")}
    missing = [name for name, path in found.items() if path is None]
    if not missing:
        return [Finding("commands of Slurm", "ok", str(Path(found["sbatch"] or "").parent))]
    fix = "log in to a node of the cluster, or load its module; cluster=local trains on this machine"
    is_needed = bool({"sbatch", "srun"} & set(missing))
    return [
        Finding("commands of Slurm", "trouble", f"not on PATH: {', '.join(missing)}", fix, is_needed=is_needed),
    ]


def _run_root(root: Path, needs_slurm: bool) -> Finding:
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    name = f"run.root {root}"
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(name, "trouble", f"{there} cannot be written", "set run.root=FOLDER", is_needed=True)
    room, kind = os.statvfs(there), file_system(there)
    free = room.f_bavail * room.f_frsize
    told = f"{gib(free)} free on {kind}"
    if room.f_files and room.f_favail < 10_000:
        return Finding(
            name, "trouble", f"{told}, but only {room.f_favail:,} files more", "remove files, or set run.root=FOLDER"
        )
    if free < _LITTLE_ROOM_BYTES:
        return Finding(
            name, "trouble", told, f"checkpoints need more than {gib(_LITTLE_ROOM_BYTES)}: set run.root=FOLDER"
        )
    if kind in _MEMORY_ONLY:
        return Finding(name, "trouble", f"{told}, which a restart empties", "set run.root=FOLDER")
    if needs_slurm and kind in _OF_ONE_MACHINE:
        return Finding(
            name, "note", f"{told}, which other machines may not see", "run.root must be a folder that all nodes share"
        )
    return Finding(name, "ok", told)


def file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """Type of the file system that holds a path, such as ``nfs4`` or ``lustre``; ``unknown`` where the kernel does not say."""
    best, kind = "", "unknown"
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # no Linux, or /proc is hidden
        return kind
    resolved = str(path.resolve())
    for line in lines:
        # ID, parent, device, root, mount point, options ..., a dash, type. Source: proc(5).
        left, _, right = line.partition(" - ")
        mount_point = left.split()[4].encode().decode("unicode_escape")
        inside = resolved == mount_point or resolved.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best):
            best, kind = mount_point, right.split()[0]
    return kind


def _memlock(needs_slurm: bool) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("locked memory", "ok", "unlimited")
    has_rdma = Path("/sys/class/infiniband").is_dir()
    fix = "ulimit -l unlimited"
    if needs_slurm:
        fix += " before you submit: Slurm hands this limit to the job unless the site excepts it"
    told = f"at most {gib(soft)}; InfiniBand and pinned buffers of offload need more"
    return Finding("locked memory", "trouble" if has_rdma and soft < _SMALL_MEMLOCK_BYTES else "note", told, fix)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= 1024:
        return Finding("open files", "ok", f"at most {soft:,}")
    return Finding("open files", "trouble", f"at most {soft:,}", f"ulimit -n {min(hard, 65536)}")


def _locale() -> Finding:
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") == "utf8" and sys.getfilesystemencoding() == "utf-8":
        return Finding("locale", "ok", encoding)
    fix = "export LC_ALL=C.UTF-8; jobs get PYTHONUTF8=1 in any case"
    return Finding("locale", "note", f"{encoding}, file names {sys.getfilesystemencoding()}", fix)


def _gpu_devices(needs_slurm: bool) -> Finding:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if devices:
        return Finding("GPUs of this machine", "ok", f"{len(devices)} (/dev/nvidia*)")
    fix = "" if needs_slurm else "hardware=cpu trains on the processor"
    return Finding("GPUs of this machine", "note", "none (/dev/nvidia*); login nodes often have none", fix)


def _containers() -> Finding:
    found = [name for name in ("apptainer", "singularity", "enroot") if shutil.which(name)]
    if _srun_knows_containers():
        found.append("pyxis (srun --container-image)")
    return Finding("containers", "ok", ", ".join(found) or "no apptainer, no pyxis: cluster.container.runtime=none")


def _srun_knows_containers() -> bool:
    if shutil.which("srun") is None:
        return False
    try:
        answer = subprocess.run(
            ["srun", "--help"], capture_output=True, text=True, errors="replace", check=False, timeout=10
        )
    except subprocess.TimeoutExpired:
        return False
    return "--container-image" in answer.stdout


def missing_for_submission(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.state == "trouble" and finding.is_needed]
