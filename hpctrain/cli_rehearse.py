"""``rehearse``: one rank of a plan under the real engine, in processes of their own; this one imports no torch."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.cli_answers import answer_flag
from hpctrain.cli_records import require_analysis
from hpctrain.errors import EXIT_OK, ConfigError, LaunchError, Problem
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.rehearse.device_check import Device
    from hpctrain.rehearse.request import Request
    from hpctrain.rehearse.result import DeviceWay, Rehearsal

DEFAULT_PARENT = Path("rehearsals")
_SECONDS_BETWEEN_LINES = 20.0
"""Where standard error is no terminal."""


@dataclasses.dataclass(frozen=True)
class _Words:
    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    quick: bool
    out: Path | None
    as_json: bool
    steps: int
    rank: int | None
    """None: one of each kind of rank; on a real device the first."""
    device: Device | None
    """A real one; None: simulated."""


def rehearse(words: Sequence[str]) -> int:
    """Rehearses, writes ``rehearsal.json`` and prints it; the exit code.

    Raises:
        ConfigError: a word is wrong, the plan has problems, or the engine refuses it.
        RehearsalError: the rehearsing process ended without an answer.
    """
    if (code := answer_flag(words)) is not None:
        return code
    from hpctrain.launch.run_folder import dated_name

    parsed = _parse(words)
    point, plan = _planned(parsed)
    folder = parsed.out or DEFAULT_PARENT / dated_name(plan.name)
    _check_writable(folder)
    requests = _requests(point, plan, parsed)
    if not parsed.as_json:
        print("".join(f"note: {note}\n" for note in _notes(plan, requests, parsed)), end="", flush=True)
    found = _rehearsed(requests, parsed.quick)
    from hpctrain.rehearse.render import render_rehearsal
    from hpctrain.rehearse.result import write_rehearsal

    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = write_rehearsal(folder, found)
        picture = _picture(folder, found)
    except OSError as error:
        raise ConfigError(
            f"--out {folder}: the result cannot be written ({error.strerror}); nearest: --out in another place"
        ) from error
    if parsed.as_json:
        print(path.read_text(encoding="utf-8"), end="")
    else:
        print(f"{render_rehearsal(found)}\nwritten {path}\n{picture}")
    return EXIT_OK


def _picture(folder: Path, found: Rehearsal) -> str:
    """Draws ``rehearsal.png``; a line that tells of it, or of what is missing for it."""
    try:
        require_analysis("a picture")
    except LaunchError as error:
        return f"no picture: {error}"
    from hpctrain.analysis.report.rehearsal_picture import write_rehearsal_picture

    return f"picture {write_rehearsal_picture(folder, found)}"


def quick_rehearsal(point: Point, plan: RunPlan) -> Rehearsal:
    """The quick rehearsal of a plan whose only problems, if any, are of memory or the site.

    Raises:
        ConfigError: the engine refuses the configuration.
        RehearsalError: the rehearsing process ended without an answer.
    """
    return _rehearsed(_requests(point, plan, _parse(["--quick"])), quick=True)


def _parse(words: Sequence[str]) -> _Words:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--device", choices=["cuda", "cpu"])
    try:
        known, overrides = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    for word in overrides:
        if word in ("-m", "--multirun"):
            raise ConfigError(
                f"{word}: rehearse takes one run; nearest: python -m hpctrain plan {word} --rehearse, for every point of a sweep"
            )
        if word.startswith("-"):
            raise ConfigError(f"{word}: is no option of rehearse; see python -m hpctrain --help")
    dirs = tuple(Path(folder) for folder in known.config_dir)
    for folder in dirs:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    if known.out == "":
        raise ConfigError("--out: is empty; nearest: --out FOLDER, or leave it out for a new folder in rehearsals")
    if known.steps < 2:
        raise ConfigError(
            f"--steps {known.steps}: the first step records the order of the parameters, so two or more; nearest: 2"
        )
    out = None if known.out is None else Path(known.out)
    return _Words(tuple(overrides), dirs, known.quick, out, known.json, known.steps, known.rank, known.device)


def _planned(parsed: _Words) -> tuple[Point, RunPlan]:
    """The one point and its plan; a plan that is short of memory by the estimate is rehearsed: that is what it is for.

    Raises:
        ConfigError: the plan has other problems, or the rank is none of it.
    """
    from hpctrain.config.compose import compose_points
    from hpctrain.launch.point_plans import plan_point
    from hpctrain.launch.submitting_shell import as_submitted_here
    from hpctrain.plan.render.plan import render_notes

    (composed,) = compose_points(parsed.overrides, False, parsed.config_dirs)
    point, plan = plan_point(as_submitted_here(composed, os.environ))
    if problems := plan.blocking_problems(force=True):
        raise ConfigError(problems)
    if plan.payload != "train":
        rule = "builds no model, so there is nothing to rehearse"
        raise ConfigError([Problem("training.payload", plan.payload, rule, "leave training=launch_check out")])
    world_size = plan.layout.world_size
    if parsed.rank is not None and not 0 <= parsed.rank < world_size:
        raise ConfigError(f"--rank {parsed.rank}: the plan has ranks 0 to {world_size - 1}; nearest: {world_size - 1}")
    if parsed.device is not None:
        from hpctrain.rehearse.device_check import check_device

        check_device(parsed.device, plan, parsed.quick)
    notes = [*render_notes(plan), *(f"warning: {problem}" for problem in plan.problems)]
    if not parsed.as_json:
        print("\n".join(printable(note) for note in notes))
    return point, plan


def _requests(point: Point, plan: RunPlan, parsed: _Words) -> list[Request]:
    """One a rank, with the planner's estimate of that very rank in its plan."""
    from hpctrain.plan.run_plan import with_memory_of
    from hpctrain.rehearse.stages import ranks_to_rehearse

    def plan_of(rank: int) -> RunPlan:
        return with_memory_of(rank, plan, point.config)

    if parsed.rank is not None:
        ranks: tuple[int, ...] = (parsed.rank,)
    elif parsed.device is not None:
        ranks = (0,)
    else:
        ranks = ranks_to_rehearse(plan, lambda rank: plan_of(rank).memory)
    return [_request(point, plan_of(rank), rank, parsed) for rank in ranks]


def _notes(plan: RunPlan, requests: Sequence[Request], parsed: _Words) -> list[str]:
    """What is rehearsed where that is a choice of ours, and why."""
    from hpctrain.rehearse.depths import quick_depths, why_whole
    from hpctrain.rehearse.stages import why_these

    ranks = () if parsed.rank is not None or parsed.device is not None else [request.rank for request in requests]
    whole = why_whole(plan) if parsed.quick and quick_depths(plan) is None else ""
    return [note for note in (why_these(plan, ranks) if ranks else "", whole) if note]


def _request(point: Point, plan: RunPlan, rank: int, parsed: _Words) -> Request:
    from hpctrain.rehearse.device_check import WAY_OF
    from hpctrain.rehearse.request import Request

    simulated: DeviceWay = "simulated_gpu" if plan.device == "cuda" else "cpu"
    return Request(
        plan=plan,
        num_layers=plan.model.num_layers,
        weight_decay=point.config.training.weight_decay,
        seed=point.config.training.seed,
        rank=rank,
        steps=parsed.steps,
        device_way=simulated if parsed.device is None else WAY_OF[parsed.device],
        num_largest=0,
        answer="",
    )


def _rehearsed(requests: Sequence[Request], quick: bool) -> Rehearsal:
    from hpctrain.launch.preflight import require_packages
    from hpctrain.launch.termination import terminable
    from hpctrain.rehearse.conduct import conduct

    require_packages({"torch": "train", "deepspeed": "train"}, "whose Python rehearses")
    line = _ProgressLine()
    try:
        with terminable():
            return conduct(requests, "quick" if quick else "whole", line.show)
    finally:
        line.clear()


class _ProgressLine:
    """One line of standard error that is written over, or a line now and then where it is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last_s = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        if self._is_terminal:
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif time.monotonic() - self._last_s >= _SECONDS_BETWEEN_LINES:
            self._last_s = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal and self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)


def _check_writable(folder: Path) -> None:
    """Asks before the work whether its result could be written; leaves nothing behind.

    Raises:
        ConfigError: it could not.
    """
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"--out {folder}: {there} is no folder that you may write; nearest: --out FOLDER in another place"
        )
