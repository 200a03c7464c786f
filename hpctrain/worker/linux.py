"""What Linux knows about processes and Python does not: parents, children, and what happens to a child whose parent dies."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Source: linux/prctl.h, PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""


def signal_at_parents_death(number: int) -> None:
    """This process gets signal ``number`` when the thread that forked it ends."""
    _prctl(_SET_DEATH_SIGNAL, number)


def adopt_orphans() -> None:
    """Processes below this one whose parent ends become its own children, and do not leave its tree."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def parent_of(pid: int) -> int:
    """The parent's process id.

    Raises:
        OSError: there is no such process.
    """
    return int(_fields(pid)[1])


def start_of(pid: int) -> int:
    """When the process started, in ticks since the machine did: with the id it names one process, since ids come back.

    Raises:
        OSError: there is no such process.
    """
    return int(_fields(pid)[19])


def descendants() -> list[int]:
    """All processes below this one, by what the kernel keeps for each thread; none where it does not keep it."""
    found: list[int] = []
    unseen = [os.getpid()]
    while unseen:
        children = _children(unseen.pop())
        found += children
        unseen += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for path in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (path / "children").read_text().split())
    except OSError:  # it has ended meanwhile
        return children
    return children


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat behind the name, which may hold blanks and brackets; the first is the state."""
    return Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace").rpartition(")")[2].split()
