"""A second, tiny process beside a rank, for what the rank cannot do itself when it is killed.

A rank that ends by itself ends its children. Where it is killed (SIGKILL, out of memory) its children would live on and hold
GPU memory; the guard ends them and removes the rank's caches. Where the rank's launcher is killed (slurmstepd, the controller
of a local run) the rank would train on for nobody; the guard asks it to stop, and ends it if it does not.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpctrain.plan.job.own_variables import GUARD_MODULE, RANK_PROCESS_VARIABLE, RUN_VARIABLE
from hpctrain.worker.linux import adopt_orphans, descendants, parent_of, signal_at_parents_death, start_of

if TYPE_CHECKING:
    import subprocess  # of the rank, which has it; the guard itself stays small

_DEATH_SIGNAL = signal.SIGRTMIN + 1
"""None that Slurm or a user sends to all processes of a step."""
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_POLL_S = 2.0
_GRACE_S = 30.0
"""Between SIGTERM and SIGKILL to a rank whose launcher is gone."""
_NO_PARENTS = (0, 1)
"""Parents that say nothing: outside the process's namespace, or init."""
_MAX_ROUNDS = 20
_ROUND_S = 0.05


class RankGuard:
    """The guard of this process, and the end of this process's children."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe
        self._folders: list[str] = []
        self._awaited: dict[subprocess.Popen[bytes], float] = {}

    def remove_at_end(self, folder: str) -> None:
        """Has ``folder`` removed when this process ends, also where it is killed."""
        self._folders.append(folder)
        os.write(self._pipe, os.fsencode(folder) + b"\0")

    def wait_at_end(self, process: subprocess.Popen[bytes], limit_s: float) -> None:
        """Has ``finish`` close the input of a child and wait for it, at most ``limit_s``, before it kills what is left."""
        self._awaited[process] = limit_s

    def finish(self) -> None:
        """Kills every process that this one left behind, removes its folders, and ends the guard."""
        for process, limit_s in self._awaited.items():
            _wait_for(process, limit_s)
        for _ in range(_MAX_ROUNDS):
            left = [pid for pid in descendants() if pid != self._pid and not _is_zombie(pid)]
            if not left:
                break
            _kill(left)
            time.sleep(_ROUND_S)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        _kill([self._pid])
        os.waitpid(self._pid, 0)


def _wait_for(process: subprocess.Popen[bytes], limit_s: float) -> None:
    if process.stdin is not None:
        with suppress(OSError):  # it has ended
            process.stdin.close()
    ends_at = time.monotonic() + limit_s
    while process.poll() is None:
        if time.monotonic() > ends_at:
            print(
                f"hpctrain: warning: process {process.pid} did not end within {limit_s:g} s, and is killed", flush=True
            )
            return
        time.sleep(_ROUND_S)


def start_guard(run_dir: str, grace_s: float = _GRACE_S) -> RankGuard:
    """Starts the guard and marks this process's future children; called before there is a second thread.

    Args:
        run_dir: the run, for the children's environment.
        grace_s: see ``_GRACE_S``.
    """
    pid = os.getpid()
    marker = f"{pid}-{start_of(pid)}"
    os.environ[RUN_VARIABLE] = run_dir
    os.environ[RANK_PROCESS_VARIABLE] = marker
    launcher = os.getppid()
    read_end, write_end = os.pipe()
    guard = os.fork()
    if guard == 0:
        _become_guard([str(pid), str(launcher), str(grace_s), marker, str(read_end)])
    os.close(read_end)
    adopt_orphans()
    _end_forks_with_us()
    return RankGuard(guard, write_end)


def _end_forks_with_us() -> None:
    """Forked children carry no marker, since the environment that the kernel shows of them is that of our own start."""
    main = threading.main_thread().ident
    forked_by_main = False

    def before() -> None:
        nonlocal forked_by_main
        forked_by_main = threading.get_ident() == main

    def in_child() -> None:
        # The signal comes when the thread that forked ends; only the main thread ends with the process.
        if forked_by_main:
            signal_at_parents_death(signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=in_child)


def _become_guard(words: list[str]) -> NoReturn:
    """In the forked child: another program, so that it shows as one, is small, and holds none of the rank's output.

    What is set here lives through the exec: a signal to all processes of a step does not end the guard before the rank.
    """
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {_DEATH_SIGNAL})
        signal_at_parents_death(_DEATH_SIGNAL)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.set_inheritable(int(words[-1]), True)
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
        source = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-S", "-m", GUARD_MODULE, *words]
        os.execve(sys.executable, command, kept | {"PYTHONPATH": source, "PYTHONSAFEPATH": "1"})
    finally:
        os._exit(1)


def main() -> None:
    rank, launcher, grace_s, marker, folders = sys.argv[1:]
    _wait_for_the_end(int(rank), int(launcher), float(grace_s))
    _end_marked(f"{RANK_PROCESS_VARIABLE}={marker}".encode())
    for folder in _named(int(folders)):
        shutil.rmtree(folder, ignore_errors=True)


def _named(folders: int) -> list[bytes]:
    os.set_blocking(folders, False)
    try:
        return os.read(folders, 1 << 16).split(b"\0")[:-1]
    except BlockingIOError:  # nothing was written, and a child of the rank that is not gone yet holds the other end
        return []


def _wait_for_the_end(rank: int, launcher: int, grace_s: float) -> None:
    """Returns when the rank has ended; ends it where its launcher has."""
    asked_at: float | None = None
    while os.getppid() == rank:
        signal.sigtimedwait({_DEATH_SIGNAL}, _POLL_S)
        if launcher in _NO_PARENTS or not _has_another_parent(rank, launcher):
            continue
        if asked_at is None:
            asked_at = time.monotonic()
            os.kill(rank, signal.SIGTERM)
        elif time.monotonic() - asked_at > grace_s:
            os.kill(rank, signal.SIGKILL)


def _has_another_parent(rank: int, launcher: int) -> bool:
    try:
        return parent_of(rank) != launcher
    except OSError:  # it has ended
        return False


def _end_marked(marker: bytes) -> None:
    """Kills the processes whose environment has the marker; again, for those that were being forked."""
    for _ in range(_MAX_ROUNDS):
        found = list(_marked(marker))
        if not found:
            return
        _kill(found)
        time.sleep(_ROUND_S)


def _marked(marker: bytes) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # another user's, or ended
            continue
        if marker in variables:
            yield int(path.parent.name)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
