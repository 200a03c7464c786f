"""File systems of this node, as the kernel tells them. Source: proc_pid_mountinfo(5)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpctrain.worker.host_memory import unescaped

_MOUNTS = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """One file system."""

    point: str
    kind: str
    """Such as ext4, nfs4, lustre, fuse.sshfs."""


def mount_of(folder: Path) -> Mount:
    """The file system that holds a folder, links followed.

    Raises:
        OSError: the kernel's list cannot be read.
    """
    return found_mount(_MOUNTS.read_text(encoding="utf-8"), folder.resolve())


def found_mount(mountinfo: str, folder: Path) -> Mount:
    """The deepest mount above ``folder``; of two at one place the later one, which hides the other.

    >>> text = "1 0 8:1 / / rw - ext4 /dev/sda rw\\n2 1 0:5 / /home rw - nfs4 server:/home rw"
    >>> found_mount(text, Path("/home/me")), found_mount(text, Path("/homes"))
    (Mount(point='/home', kind='nfs4'), Mount(point='/', kind='ext4'))
    """
    best = Mount("/", "unknown")
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        point, kind = unescaped(mount.split(" ")[4]), source.split(" ", 1)[0]
        if folder.is_relative_to(point) and len(point) >= len(best.point):
            best = Mount(point, kind)
    return best
