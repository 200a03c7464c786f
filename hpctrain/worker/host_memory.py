"""Host memory of a node as a job may use it: the node's own figures, narrowed by the memory limits of its control groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import psutil

_PROC_SELF = Path("/proc/self")


@dataclass(frozen=True)
class HostMemory:
    """Bytes; ``used_bytes`` is what a new process of the job cannot have, whoever uses it."""

    used_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that this process belongs to and that may limit memory."""

    folder: Path
    version: Literal[1, 2]


@dataclass(frozen=True)
class _Files:
    limit: str
    usage: str
    file_pages: tuple[str, str]
    """Keys of ``memory.stat`` for page cache that the kernel takes back before it kills, children included."""


# Source: Linux, Documentation/admin-guide/cgroup-v1/memory.rst sections 3 and 5.2, and cgroup-v2.rst "Memory Interface Files".
_FILES: dict[int, _Files] = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    2: _Files("memory.max", "memory.current", ("active_file", "inactive_file")),
}


def memory_groups(proc_self: Path = _PROC_SELF) -> tuple[MemoryGroup, ...]:
    """The control groups of this process for memory, from its own up to the top of what is mounted here.

    A limit of any of them holds: Slurm limits the groups of the job and the step, above that of the task.

    Args:
        proc_self: folder with the process's ``cgroup`` and ``mountinfo``. Source: cgroups(7), proc_pid_mountinfo(5).
    """
    paths: dict[str, str] = {}
    for line in (proc_self / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    # With both mounted (hybrid), the memory controller is in the first version.
    kind: Literal["cgroup", "cgroup2"] = "cgroup" if "cgroup" in paths else "cgroup2"
    if kind not in paths:
        return ()
    for line in (proc_self / "mountinfo").read_text(encoding="utf-8").splitlines():
        mount, _, source = line.partition(" - ")
        fstype, _, options = source.split(" ", 2)
        if fstype == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            root, mount_point = (unescaped(word) for word in mount.split(" ")[3:5])
            folders = _from_own_to_top(PurePosixPath(paths[kind]), PurePosixPath(root), Path(mount_point))
            return tuple(MemoryGroup(folder, 1 if kind == "cgroup" else 2) for folder in folders)
    return ()


def host_memory(groups: tuple[MemoryGroup, ...]) -> HostMemory:
    """Memory of this node, or of the control group that leaves less.

    Available is the smaller of the node's MemAvailable and what each limited group leaves: limit - usage + file pages.
    Reclaimable kernel memory of a group is left out, so its share counts as used.

    Raises:
        OSError, ValueError: a file of a group cannot be read, or holds no number.
    """
    node = psutil.virtual_memory()
    return narrowed(HostMemory(node.total - node.available, node.total), groups)


def narrowed(node: HostMemory, groups: tuple[MemoryGroup, ...]) -> HostMemory:
    """``node``'s memory with the limits of ``groups``; see ``host_memory``."""
    total, available = node.total_bytes, node.total_bytes - node.used_bytes
    for group in groups:
        files = _FILES[group.version]
        try:
            limit_text = (group.folder / files.limit).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            continue  # the top group of version 2 has no limit, nor has one without the memory controller
        # Version 1 spells no limit as a number near 2^63.
        if limit_text == "max" or int(limit_text) >= node.total_bytes:
            continue
        limit = int(limit_text)
        usage = int((group.folder / files.usage).read_text(encoding="ascii"))
        stat = dict(line.split() for line in (group.folder / "memory.stat").read_text(encoding="ascii").splitlines())
        reclaimable = sum(int(stat[key]) for key in files.file_pages)
        total = min(total, limit)
        available = min(available, max(0, limit - usage + reclaimable))
    return HostMemory(total - min(available, total), total)


def _from_own_to_top(path: PurePosixPath, mount_root: PurePosixPath, mount_point: Path) -> list[Path]:
    """The folders of a group and its parents, of which a container may see only the lower part."""
    if not path.is_relative_to(mount_root) or ".." in path.parts:
        return [mount_point]
    relative = path.relative_to(mount_root)
    return [mount_point / part for part in (relative, *relative.parents)] if relative.parts else [mount_point]


def unescaped(word: str) -> str:
    r"""A path of ``mountinfo``, which spells blanks and backslashes in octal.

    >>> unescaped(r"/a\040b")
    '/a b'
    """
    first, *others = word.split("\\")
    return first + "".join(chr(int(other[:3], 8)) + other[3:] for other in others)
