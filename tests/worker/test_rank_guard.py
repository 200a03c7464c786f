"""What a rank leaves on its node when it ends, is killed, or loses its launcher (cases 69, 78)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.worker.linux import parent_of
from tests.processes import processes_with

SOURCE = Path(__file__).parents[2]
RANK = """
import os, subprocess, sys, time
from hpctrain.worker.rank_guard import start_guard
guard = start_guard(sys.argv[1], grace_s=1.0)
guard.remove_at_end(sys.argv[2])
# A grandchild that ignores SIGTERM, in a session of its own, whose parent has ended.
deaf = "trap '' TERM HUP INT; sleep 300 & echo $! >> pids; echo $$ >> pids; wait"
subprocess.run(["sh", "-c", f"setsid sh -c '{deaf.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' & sleep 0.1"])
child = os.fork()
if child == 0:
    time.sleep(300)
with open("pids", "a") as stream:
    stream.write(f"{child}\\n")
open("ready", "w").close()
"""


def start(folder: Path, then: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    caches = folder / "caches"
    (caches / "triton").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "MARK": str(folder)}
    command = [*before, sys.executable, "-c", RANK + then, str(folder / "run"), str(caches)]
    process = subprocess.Popen(command, env=env, cwd=folder)
    wait_until(lambda: (folder / "ready").exists() and len((folder / "pids").read_text().split()) == 3)
    return process


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(folder: Path) -> list[int]:
    """Processes of the folder's rank, by their environment; the rank included."""
    return processes_with(f"MARK={folder}")


def guard_of(rank: int) -> int:
    words = ["pgrep", "-f", f"rank_guard {rank} "]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_a_rank_that_ends_takes_all_with_it(tmp_path: Path) -> None:
    process = start(tmp_path, "guard.finish(); os._exit(7)")
    assert process.wait(timeout=20) == 7
    assert alive(tmp_path) == []
    assert not (tmp_path / "caches").exists()


def test_a_killed_rank_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(300)")
    assert len(alive(tmp_path)) == 4
    process.kill()
    process.wait()
    wait_until(lambda: alive(tmp_path) == [])
    wait_until(lambda: not (tmp_path / "caches").exists())


def test_signals_to_all_do_not_end_the_guard_first(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(300)")
    guard = guard_of(process.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(guard, number)
    time.sleep(0.3)
    assert parent_of(guard) == process.pid
    process.kill()
    process.wait()
    wait_until(lambda: alive(tmp_path) == [])


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds SIGTERM", "ignores it"])
def test_a_rank_whose_launcher_is_gone_ends(tmp_path: Path, heeds: bool) -> None:
    waits = "time.sleep(300)"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + waits
    launcher = start(tmp_path, waits if heeds else deaf, before=("sh", "-c", '"$@"; true', "sh"))
    launcher.kill()
    launcher.wait()
    wait_until(lambda: alive(tmp_path) == [])
