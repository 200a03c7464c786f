"""Starts the processes that rehearse, follows them, and joins what they found. Imports no torch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from hpctrain.errors import ConfigError, HpctrainError, Problem
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import read_record, write_json
from hpctrain.rehearse.depths import quick_depths
from hpctrain.rehearse.extrapolate import extrapolated
from hpctrain.rehearse.request import EXIT_REFUSED, OUT_OF_MEMORY, PROGRESS_MARK, Refusal, Request
from hpctrain.rehearse.result import PHASES, Rehearsal, Way, read_rehearsal

_NUM_LARGEST, _NUM_LARGEST_QUICK = 30, 300
_ROOM_BYTES = 4 * 2**20
"""Request, answer and last words of a process are smaller."""
_LAST_WORDS = 25
"""Lines of a process that ended badly."""
_FEWEST_AT_A_TIME = 3
"""The depths of a quick rehearsal."""
_PHASES_IN_WORDS = {
    "model": "while the model is built",
    "engine": "while the engine is built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
}

Say = Callable[[str], None]


class RehearsalError(HpctrainError):
    """A rehearsal that ended without an answer: a fault of ours, or a kill."""

    exit_code = 1


def conduct(requests: Sequence[Request], way: Way, say: Say) -> Rehearsal:
    """Rehearses each rank in processes of its own, about as many at a time as there are processors.

    Args:
        requests: of ranks of one plan, with all layers; depth and files are filled in here.
        way: ``quick``: three depths, where the plan is deeper than these; else all layers.
        say: gets a line now and then.

    Returns:
        That of the rank whose device is fullest in its step, with the others in it.

    Raises:
        ConfigError: the engine refuses the configuration.
        RehearsalError: a process ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="hpctrain-rehearsal-") as folder:
        children = [_children_of(request, way, Path(folder)) for request in requests]
        _run([child for of_rank in children for child in of_rank], say)
        found = [_joined(of_rank) for of_rank in children]
    fullest = max(found, key=_fullness)
    return dataclasses.replace(fullest, others=tuple(other for other in found if other is not fullest))


def _children_of(request: Request, way: Way, folder: Path) -> list[_Child]:
    """One process, or one of each depth; none is started yet."""
    depths = quick_depths(request.plan) if way == "quick" else None
    layers = (request.num_layers,) if depths is None else depths.all
    count = _NUM_LARGEST if depths is None else _NUM_LARGEST_QUICK
    return [_Child(dataclasses.replace(request, num_layers=number, num_largest=count), folder) for number in layers]


def _joined(children: Sequence[_Child]) -> Rehearsal:
    """What was found of one rank."""
    found = [child.answer() for child in children]
    if len(found) == 1:
        return found[0]
    shallow, deep, check = found
    plan = children[0].request.plan
    planned_flops = plan.flops_per_step.hardware_flops / plan.layout.world_size
    joined = extrapolated(shallow, deep, check, plan.model.num_layers, plan.num_parameters, planned_flops)
    return dataclasses.replace(joined, largest=joined.largest[:_NUM_LARGEST])


def _fullness(found: Rehearsal) -> int:
    peak = found.peak(found.main_tier, PHASES)
    return 0 if peak is None else peak.peak_bytes


class _Child:
    """A process, how far it is, and what it found."""

    def __init__(self, request: Request, folder: Path) -> None:
        name = f"{request.rank}-{request.num_layers}"
        self.request = dataclasses.replace(request, answer=f"{folder}/answer-{name}.json")
        self.progress = ""
        self.process: subprocess.Popen[str] | None = None
        self._request_file, self._errors_file = folder / f"request-{name}.json", folder / f"errors-{name}.txt"

    def start(self) -> IO[str]:
        """Starts it; returns where it tells how far it is."""
        write_json(self._request_file, self.request.raw())
        self.progress = "starting"
        # Warnings of torch about names that DeepSpeed calls, one a collective, are nobody's matter here.
        command = [sys.executable, "-W", "ignore", "-m", "hpctrain.rehearse.child", str(self._request_file)]
        command.append(str(os.getpid()))
        with self._errors_file.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        return self.process.stdout

    def end(self) -> None:
        """Whatever it does: one that was never started, too."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def answer(self) -> Rehearsal:
        """Of a process that has ended.

        Raises:
            ConfigError: the engine refuses the configuration, or the real device is too small.
            RehearsalError: it ended without an answer.
        """
        assert self.process is not None
        code = self.process.wait()
        if code == 0:
            return read_rehearsal(Path(self.request.answer))
        if code == EXIT_REFUSED and Path(self.request.answer).exists():
            refused = read_record(Path(self.request.answer), Refusal)
            if refused.kind == OUT_OF_MEMORY:
                raise ConfigError([shortage_problem(self.request, refused)])
            raise ConfigError([refused_problem(self.request.plan, refused)] if refused.place else refused.sentence)
        folder = self._errors_file.parent
        if shutil.disk_usage(folder).free < _ROOM_BYTES:
            raise RehearsalError(
                f"{folder}: its disk is full; nearest: TMPDIR=FOLDER with {_ROOM_BYTES // 2**20} MiB of room"
            )
        lines = self._errors_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_WORDS:]
        raise RehearsalError(
            f"the rehearsal of rank {self.request.rank} {_end(code)} ({self.progress})" + _quoted(lines)
        )


def _end(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed by signal 9, as the kernel does where memory is short; --quick needs less"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _quoted(lines: Sequence[str]) -> str:
    return "; its last words:\n" + "\n".join(lines) if lines else ""


def _run(children: Sequence[_Child], say: Say) -> None:
    """Runs the processes, some at a time, and hands on what they tell; the first that fails ends them all.

    Raises:
        ConfigError, RehearsalError: of the one that failed.
    """
    waiting, start_s = list(reversed(children)), time.monotonic()
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < _at_a_time():
                    child = waiting.pop()
                    selector.register(child.start(), selectors.EVENT_READ, child)
                for key, _ in selector.select():
                    line = key.fileobj.readline()  # type: ignore[union-attr]  # a pipe in text mode
                    if line.startswith(PROGRESS_MARK):
                        key.data.progress = line.removeprefix(PROGRESS_MARK).strip()
                        running = [of.data for of in selector.get_map().values()]
                        say(f"{time.monotonic() - start_s:.0f} s  {_told(running, len(waiting))}")
                    elif not line:
                        selector.unregister(key.fileobj)
                        if key.data.process.wait() != 0:
                            key.data.answer()
    finally:
        for child in children:
            child.end()


def _at_a_time() -> int:
    """Processes that run side by side: a depth or a rank each, of one thread."""
    return max(_FEWEST_AT_A_TIME, len(os.sched_getaffinity(0)))


def _told(running: Sequence[_Child], num_waiting: int) -> str:
    ranks = {child.request.rank for child in running}
    told = [f"rank {child.request.rank}: {child.progress}" if len(ranks) > 1 else child.progress for child in running]
    return "  |  ".join(told) + (f"  |  {num_waiting} more to come" if num_waiting else "")


def refused_problem(plan: RunPlan, refused: Refusal) -> Problem:
    """The engine's sentence and ours beside it."""
    version = importlib.metadata.version("deepspeed")
    sentence = " ".join(refused.sentence.split()) or "(no word)"
    return Problem(
        "parallelism",
        plan.parallelism_name,
        f"DeepSpeed {version} refuses this configuration {_PHASES_IN_WORDS[refused.phase]}, as every rank of the job would:"
        f" «{sentence}» ({refused.kind} in {refused.place})",
        "change what it names; python -m hpctrain plan prints the DeepSpeed configuration that it was given",
    )


def shortage_problem(request: Request, refused: Refusal) -> Problem:
    """A real device had no more memory."""
    return Problem(
        "--device",
        request.plan.device,
        f"rank {request.rank} of {request.plan.layout.world_size:,} ran out of memory {_PHASES_IN_WORDS[refused.phase]}"
        f" {refused.sentence}",
        "leave --device out to rehearse on simulated tensors, or make the rank smaller (training.micro_batch_size,"
        " training.activation_checkpointing=full, model.num_layers)",
        kind="memory",
    )
