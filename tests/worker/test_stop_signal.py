"""What a signal does to a rank, in processes of their own (case 77)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

START = """
import os, sys, time
from hpctrain.worker.stop_signal import StopSignal
stop = StopSignal()
stop.install()
def leave(error):
    print(f"{error.reason}: {error}", flush=True)
    os._exit(7)
"""
READY = """
print("ready", flush=True)
"""


@contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the program and waits for its first line, ``ready``."""
    command = [sys.executable, "-c", START + program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.kill()


def rest(running: subprocess.Popen[str]) -> str:
    output, _ = running.communicate(timeout=30)
    return output


def test_twenty_signals_are_one_and_the_first_has_the_name() -> None:
    program = READY + "while not stop.received: time.sleep(0.01)\ntime.sleep(0.5)\nprint(stop.name)\n"
    with process(program) as running:
        running.send_signal(signal.SIGUSR2)
        time.sleep(0.2)
        for _ in range(20):
            running.send_signal(signal.SIGTERM)
        assert rest(running) == "SIGUSR2\n"
        assert running.returncode == 0


@pytest.mark.parametrize(("name", "reason"), [("SIGUSR1", "time_limit"), ("SIGTERM", "signal")])
def test_who_is_still_there_at_the_deadline_leaves(name: str, reason: str) -> None:
    program = "stop.leave_after(0.5, leave)" + READY + "while True: time.sleep(1)\n"
    with process(program) as running:
        started_s = time.monotonic()
        running.send_signal(getattr(signal, name))
        output = rest(running)
        assert 0.4 < time.monotonic() - started_s < 10
    assert running.returncode == 7
    assert output.startswith(
        f"{reason}: stopped by {name}: the step or the save under way did not end within 0.5 s of it"
    )


def test_a_main_thread_that_runs_no_python_leaves_too() -> None:
    # Locking a mutex twice waits in C for ever, without Python's lock, like a collective that some rank does not join.
    program = (
        "import ctypes\nlibc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\nstop.leave_after(0.5, leave)"
        + READY
        + "libc.pthread_mutex_lock(mutex)\nlibc.pthread_mutex_lock(mutex)\n"
    )
    with process(program) as running:
        for _ in range(3):
            running.send_signal(signal.SIGUSR1)
        assert "stopped by SIGUSR1" in rest(running)
    assert running.returncode == 7


def test_a_signal_that_came_before_the_deadline_was_known_counts() -> None:
    program = (
        READY + "while not stop.received: time.sleep(0.01)\nstop.leave_after(0.2, leave)\nwhile True: time.sleep(1)\n"
    )
    with process(program) as running:
        running.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM" in rest(running)
    assert running.returncode == 7


def test_signals_to_a_forked_child_are_not_the_ranks() -> None:
    program = """
stop.leave_after(0.2, leave)
child = os.fork()
if child == 0:
    time.sleep(1)
    print("child", stop.received, flush=True)
    os._exit(0)
time.sleep(0.3)
print("ready", flush=True)
for number in (10, 12, 15):
    os.kill(child, number)
print("child ended with", os.waitpid(child, 0)[1], flush=True)
print("rank", stop.received, flush=True)
"""
    with process(program) as running:
        assert rest(running).splitlines() == ["child False", "child ended with 0", "rank False"]


def test_other_signals_start_no_deadline() -> None:
    program = """
import signal
signal.signal(signal.SIGALRM, lambda number, frame: None)
stop.leave_after(0.1, leave)
print("ready", flush=True)
signal.raise_signal(signal.SIGALRM)
time.sleep(0.5)
print("still here")
"""
    with process(program) as running:
        assert rest(running) == "still here\n"
