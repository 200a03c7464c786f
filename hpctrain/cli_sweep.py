"""``submit -m``: the sweep on the command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from hpctrain.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from hpctrain.launch.point_labels import point_labels
from hpctrain.launch.slurm.held_signals import HeldSignals
from hpctrain.launch.sweep import Planned, SweepResult, submit_sweep
from hpctrain.launch.sweep_manifest import LeftOut
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.secret_text import redact_override
from hpctrain.text_table import aligned, printable

_MAX_WARNINGS = 12


def tell_warnings(of_points: Sequence[Sequence[str]]) -> None:
    """The warnings of all points on stderr, each once; of very many the first."""
    found = list(dict.fromkeys(text for warnings in of_points for text in warnings))
    for text in found[:_MAX_WARNINGS]:
        print(printable(f"warning: {text}"), file=sys.stderr)
    if len(found) > _MAX_WARNINGS:
        print(f"warning: and {len(found) - _MAX_WARNINGS} more; plan -m shows each point", file=sys.stderr)


def notes_of_points(of_points: Sequence[Sequence[str]]) -> list[str]:
    """The notes of all points, each once; those that some points lack with the number of points they hold for.

    >>> notes_of_points([("a", "b"), ("a", "c"), ("a", "c")])
    ['note: a', 'note (1 of 3 points): b', 'note (2 of 3 points): c']
    """
    counts = Counter(text for notes in of_points for text in dict.fromkeys(notes))
    total = len(of_points)
    return [
        f"note: {text}" if count == total else f"note ({count} of {total} points): {text}"
        for text, count in counts.items()
    ]


def submit_planned_sweep(
    planned: Planned,
    left_out: tuple[LeftOut, ...],
    root: Path,
    words: Sequence[str],
    as_json: bool,
    largest: Callable[[SlurmRequest], int],
) -> int:
    """Submits what is missing of a sweep, prints what became of its points, and returns the exit code.

    Args:
        planned: the points that fit.
        left_out: those that do not.
        root: of the runs.
        words: the overrides as typed, to say how it goes on.
        as_json: print it for machines.
        largest: tasks that an array of such a request may have.
    """
    if not as_json:
        for text in notes_of_points([plan.assumptions for _, plan in planned]):
            print(printable(text))
    with HeldSignals() as held:
        result = submit_sweep(planned, left_out, root, largest, held)
        print(_json(result) if as_json else printable(_table(result)), flush=True)
        if result.trouble:
            print(printable(f"hpctrain: {result.trouble}\n{_how_to_go_on(result, words)}"), file=sys.stderr)
    return result.exit_code or (EXIT_DOES_NOT_FIT if left_out else EXIT_OK)


def _table(result: SweepResult) -> str:
    points, left_out = result.manifest.points, result.manifest.left_out
    labels = point_labels([point.overrides for point in points] + [point.overrides for point in left_out])
    rows: list[tuple[str, str, str, str]] = [
        (
            label,
            point.state,
            point.job_id or "-",
            str(result.folder / point.run) if point.state == "submitted" else point.reason or "-",
        )
        for label, point in zip(labels, points, strict=False)
    ]
    rows += [
        (label, "does not fit", "-", point.reason) for label, point in zip(labels[len(points) :], left_out, strict=True)
    ]
    table = aligned([("POINT", "STATE", "JOB", "RUN, OR WHY NOT"), *rows])
    return f"{table}\n{_summary(result, len(labels))}\nsweep {result.folder}"


def _summary(result: SweepResult, num_points: int) -> str:
    num_jobs = sum(group.state == "submitted" for group in result.manifest.groups)
    num_submitted = sum(point.state == "submitted" for point in result.manifest.points)
    if num_submitted and not result.num_new:
        return f"{num_submitted} of {num_points} points have jobs already; nothing new was submitted"
    new = f"; {result.num_new} newly submitted" if result.num_new < num_submitted else ""
    return f"{num_submitted} of {num_points} points submitted, as {num_jobs} job{'s' * (num_jobs != 1)}{new}"


def _json(result: SweepResult) -> str:
    folder, manifest = result.folder, result.manifest
    points = [vars(point) | {"path": str(folder / point.run)} for point in manifest.points]
    groups = [vars(group) for group in manifest.groups]
    told = {"sweep": str(folder), "trouble": result.trouble, "newly_submitted": result.num_new}
    lists = {"groups": groups, "points": points, "left_out": list(map(vars, manifest.left_out))}
    return json.dumps(told | lists, indent=2)


def _how_to_go_on(result: SweepResult, words: Sequence[str]) -> str:
    if not result.folder.exists():
        return "nothing was submitted"
    overrides = [redact_override(word) for word in words if not word.startswith("launch.sweep_name=")]
    command = ["python", "-m", "hpctrain", "-m", *overrides, f"launch.sweep_name={result.folder.name}"]
    return f"what was submitted stays; to submit the rest: {shlex.join(command)}"
