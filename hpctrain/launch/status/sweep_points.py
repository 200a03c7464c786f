"""Points of sweeps that have no job yet, from the manifests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpctrain.launch.status.rows import RunStatus
from hpctrain.record.files import read_json
from hpctrain.record.paths import SWEEP_MANIFEST


def points_without_job(rows: Sequence[RunStatus], folders: Iterable[Path]) -> dict[str, int]:
    """How many points of each sweep have no job, by the sweep's folder; also of sweeps of which none has.

    A manifest that cannot be read says nothing; submitting names it.
    """
    sweeps = {row.sweep for row in rows if row.sweep}
    for folder in folders:
        for parent in (folder.absolute(), *_folders_in(folder.absolute())):
            if (parent / SWEEP_MANIFEST).is_file():
                sweeps.add(str(parent))
    shown = {row.path for row in rows}
    counts = {sweep: _count(Path(sweep), shown) for sweep in sorted(sweeps)}
    return {sweep: count for sweep, count in counts.items() if count}


def _folders_in(folder: Path) -> list[Path]:
    """Not those that cannot be looked at; the search for runs has told of them."""
    return [folder / name for name in next(os.walk(folder), ("", [], []))[1]]


def _count(sweep: Path, shown: set[str]) -> int:
    """Points without a job that are no rows either: the folder of a point is there before its job."""
    try:
        points = read_json(sweep / SWEEP_MANIFEST)["points"]
        return sum(1 for point in points if not point["job_id"] and str(sweep / point["run"]) not in shown)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return 0
