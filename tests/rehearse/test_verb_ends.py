"""``rehearse`` that is asked for too much, broken off, or killed: nothing is left behind, and the reason is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctrain.errors import EXIT_CONFIG, EXIT_OK
from hpctrain.rehearse.conduct import RehearsalError, conduct
from hpctrain.rehearse.result import read_rehearsal
from tests.rehearse.rehearsals import make_plan, make_request

SOURCE = Path(__file__).parents[2]
TINY = ("model=tiny", "parallelism=zero3", "nodes=2", "cluster=slurm", "hardware=ndm_a100_v4")
PIPELINE = ("parallelism=zero1", "parallelism.pipeline_parallel_size=4", "training.gradient_accumulation_steps=200")


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpctrain", "rehearse", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-m", *TINY), "-m: rehearse takes one run; nearest: python -m hpctrain plan -m --rehearse"),
        ((*TINY, "--steps", "0"), "--steps 0: the first step records the order"),
        ((*TINY, "--rank", "-1"), "--rank -1: the plan has ranks 0 to 15"),
        ((*TINY, "--rank", "first"), "first"),
        ((*TINY, "nodes=1,2"), "nodes"),
    ],
    ids=["sweep", "no step", "rank below zero", "rank in words", "values of a sweep"],
)
def test_mistakes(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    process = start(*words, folder=tmp_path)
    _, errors = process.communicate()
    assert process.returncode == EXIT_CONFIG
    assert expected in errors
    assert not list(tmp_path.iterdir())


def of_session(session: int) -> list[int]:
    """Processes that are alive in it."""
    return [pid for pid, fields in alive().items() if int(fields[3]) == session]


def alive() -> dict[int, list[str]]:
    """Process ids, and what the kernel says of each: state, parent, group, session."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                found[int(folder.name)] = fields
    return found


@pytest.mark.train
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["Ctrl-C", "SIGTERM", "SIGKILL"]
)
def test_broken_off(number: signal.Signals, tmp_path: Path) -> None:
    process = start(*TINY, *PIPELINE, "--out", "out", folder=tmp_path)
    deadline = time.monotonic() + 60
    while len(of_session(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(of_session(process.pid)) >= 3  # the first ranks run side by side
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    deadline = time.monotonic() + 10
    while of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert of_session(process.pid) == []
    assert number == signal.SIGKILL or list(tmp_path.iterdir()) == []


@pytest.mark.train
def test_a_folder_with_another_rehearsal_gets_the_new_one(tmp_path: Path) -> None:
    for rank in ("0", "15"):
        process = start(*TINY, "--rank", rank, "--out", "out", folder=tmp_path)
        _, errors = process.communicate()
        assert process.returncode == EXIT_OK, errors
        assert read_rehearsal(tmp_path / "out").rank == int(rank)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rehearsal.json", "rehearsal.png"]


@pytest.mark.train
def test_a_killed_process_is_told_with_what_kills_so() -> None:
    def kill(line: str) -> None:
        for child in (pid for pid, fields in alive().items() if int(fields[1]) == os.getpid()):
            # Not the fork server, which names the module among those that it imports.
            if "-m\0hpctrain.rehearse.child\0" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGKILL)

    plan = make_plan(3, gradient_accumulation_steps=7)
    with pytest.raises(RehearsalError, match="rank 0 was killed by signal 9, as the kernel does where memory is short"):
        conduct([make_request(plan)], "whole", kill)
