"""Starts the processes that rehearse, follows them, and joins what they found. Imports no torch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import selectors
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
from hpctrain.rehearse.request import EXIT_REFUSED, PROGRESS_MARK, Refusal, Request
from hpctrain.rehearse.result import Rehearsal, Way, read_rehearsal

_NUM_LARGEST, _NUM_LARGEST_QUICK = 30, 300
_LAST_WORDS = 25
"""Lines of a process that ended badly."""
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


def conduct(request: Request, way: Way, say: Say) -> Rehearsal:
    """Rehearses in processes of their own.

    Args:
        request: of the whole plan; depth and files are filled in here.
        way: ``quick``: three depths side by side, where the plan is deeper than these; else all layers.
        say: gets a line now and then.

    Raises:
        ConfigError: the engine refuses the configuration.
        RehearsalError: a process ended without an answer.
    """
    plan = request.plan
    depths = quick_depths(plan) if way == "quick" else None
    with tempfile.TemporaryDirectory(prefix="hpctrain-rehearsal-") as folder:
        layers = (plan.model.num_layers,) if depths is None else depths.all
        count = _NUM_LARGEST if depths is None else _NUM_LARGEST_QUICK
        requests = [
            dataclasses.replace(request, num_layers=number, num_largest=count, answer=f"{folder}/{number}.json")
            for number in layers
        ]
        found = _run(requests, Path(folder), say)
    if depths is None:
        return found[0]
    shallow, deep, check = found
    planned_flops = plan.flops_per_step.hardware_flops / plan.layout.world_size
    joined = extrapolated(shallow, deep, check, plan.model.num_layers, plan.num_parameters, planned_flops)
    return dataclasses.replace(joined, largest=joined.largest[:_NUM_LARGEST])


class _Child:
    """A process and how far it is."""

    def __init__(self, request: Request, folder: Path) -> None:
        self.request, self.progress = request, "starting"
        request_file = folder / f"request-{request.num_layers}.json"
        write_json(request_file, request.raw())
        self.errors: IO[bytes] = (folder / f"errors-{request.num_layers}.txt").open("w+b")
        # Warnings of torch about names that DeepSpeed calls, one a collective, are nobody's matter here.
        command = [sys.executable, "-W", "ignore", "-m", "hpctrain.rehearse.child", str(request_file)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def answer(self) -> Rehearsal:
        code = self.process.wait()
        if code == 0:
            return read_rehearsal(Path(self.request.answer))
        if code == EXIT_REFUSED and Path(self.request.answer).exists():
            refused = read_record(Path(self.request.answer), Refusal)
            raise ConfigError([refused_problem(self.request.plan, refused)] if refused.place else refused.sentence)
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").splitlines()[-_LAST_WORDS:]
        end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise RehearsalError(
            f"the rehearsal of rank {self.request.rank} {end} ({self.progress}); its last words:\n" + "\n".join(lines)
        )


def _run(requests: Sequence[Request], folder: Path, say: Say) -> list[Rehearsal]:
    """The answers of all processes, which run side by side; the first that fails ends them all."""
    children: list[_Child] = []
    try:
        children = [_Child(request, folder) for request in requests]
        _follow(children, say)
        return [child.answer() for child in children]
    finally:
        for child in children:
            child.end()


def _follow(children: Sequence[_Child], say: Say) -> None:
    """Hands on what they tell, until all have ended or one has failed."""
    start_s = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for child in children:
            assert child.process.stdout is not None
            selector.register(child.process.stdout, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                child = key.data
                line = child.process.stdout.readline()
                if not line:
                    selector.unregister(key.fileobj)
                    if child.process.wait() != 0:
                        return
                elif line.startswith(PROGRESS_MARK):
                    child.progress = line.removeprefix(PROGRESS_MARK).strip()
                    say(f"{time.monotonic() - start_s:.0f} s  {'  |  '.join(each.progress for each in children)}")


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
