"""The live table: on a terminal till the runs end or a key is pressed, elsewhere a line for each change."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import Attempt
from tests.launch.status_runs import FakeSlurm, start_attempt, submitted_run
from tests.launch.test_jobs import slurm as slurm  # the fixture

DONE: dict[str, Any] = {"state": "completed", "end_reason": "completed", "exit_code": 0, "ended_at_s": 1010.0}


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "hpctrain", "status", str(folder), "--watch", *words]


def end(run: RunPaths) -> None:
    start_attempt(run, 1, "7", **DONE)


def test_without_a_terminal_each_change_is_a_line(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "runs" / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "RUNNING"))
    watching = subprocess.Popen(command(tmp_path / "runs"), stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    first = watching.stdout.readline()
    end(run)
    rest, _ = watching.communicate(timeout=60)
    lines = [line.split("  ", 1)[1] for line in (first + rest).splitlines()]
    assert lines == ["run  RUNNING  attempt 1", "run  COMPLETED  attempt 1"]
    assert watching.returncode == 0
    assert [call.split()[0] for call in slurm.calls] == ["squeue"]


def test_runs_that_have_all_ended_are_told_and_that_is_all(slurm: FakeSlurm, tmp_path: Path) -> None:
    submitted_run(tmp_path / "runs" / "run", "7", [Attempt([1.0] * 10)])
    answer = subprocess.run(command(tmp_path / "runs"), capture_output=True, text=True, timeout=60, check=True)
    assert "run  COMPLETED  attempt 1  step 10/10" in answer.stdout


class Terminal:
    """A process on a terminal of 80 columns."""

    def __init__(self, words: list[str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm"}, start_new_session=True
        )
        self._slave = slave
        self.text = ""

    def wait_for(self, words: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self._read(0.2)

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            self.text += os.read(self._master, 65536).decode("utf-8", "replace")

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self._read(0.1)
        self._read(0.2)
        # The terminal is as it was: lines are edited, what is typed is seen.
        assert termios.tcgetattr(self._slave)[3] == self.before[3]
        return self.process.returncode


def test_on_a_terminal_a_key_leaves(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "runs" / "a-run-with-a-long-name-20261130-080000-ab12", "7")
    slurm.queue((run, "7", "PENDING", "Priority"))
    terminal = Terminal(command(tmp_path / "runs"))
    terminal.wait_for("Slurm is asked again in")
    terminal.wait_for("PENDING")
    terminal.type(b"q")
    assert terminal.end() == 0
    assert terminal.text.rstrip().endswith("Priority")  # the last table stays
    assert "Traceback" not in terminal.text


def test_ctrl_c_leaves_cleanly(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "runs" / "run", "7")
    slurm.queue((run, "7", "RUNNING"))
    terminal = Terminal(command(tmp_path / "runs"))
    terminal.wait_for("RUNNING")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_the_view_follows_files_and_ends_with_the_runs(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = submitted_run(tmp_path / "runs" / "run", "7")
    start_attempt(run, 1, "7")
    slurm.queue((run, "7", "RUNNING"))
    terminal = Terminal(command(tmp_path / "runs"))
    terminal.wait_for("RUNNING")
    end(run)
    terminal.wait_for("COMPLETED")
    assert terminal.end() == 0
    assert len(slurm.calls) == 1
