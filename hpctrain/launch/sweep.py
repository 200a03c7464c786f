"""A sweep: all points planned first, then submitted one by one with a manifest that is written after each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.config.compose import Point
from hpctrain.errors import ConfigError, LaunchError, UnclearSubmissionError
from hpctrain.launch.run_folder import create_run_folder, remove_run_folder
from hpctrain.launch.submit import submit
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import write_record
from hpctrain.record.schema import SCHEMA_VERSION


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep as the manifest keeps it."""

    overrides: tuple[str, ...]
    run: str
    """Name of the run folder inside the sweep folder; empty: not submitted."""
    job_id: str
    state: str
    """``submitted``, ``refused`` (by Slurm), ``unclear`` (the answer had no job id) or ``not reached``."""
    reason: str = ""


@dataclass(frozen=True)
class SweepManifest:
    """``sweep.json`` in the sweep folder."""

    schema_version: int
    points: tuple[SweepPoint, ...]


def check_sweep(planned: Sequence[tuple[Point, RunPlan]], force: bool) -> None:
    """Refuses the whole sweep if a point is wrong: nothing is submitted, every bad point is named.

    Raises:
        ConfigError: with one line for each problem of each bad point.
    """
    if any(point.config.cluster.kind == "local" for point, _ in planned):
        raise ConfigError("cluster=local: a sweep needs Slurm; runs of this machine would share its cores")
    roots = sorted({point.config.run.root for point, _ in planned})
    if len(roots) > 1:
        raise ConfigError(f"run.root={','.join(roots)}: the runs of a sweep share one folder; leave one of them")
    bad = [(point, plan.blocking_problems(force)) for point, plan in planned if plan.blocking_problems(force)]
    if bad:
        lines = [f"{' '.join(point.overrides)}: {problem}" for point, problems in bad for problem in problems]
        summary = f"{len(bad)} of {len(planned)} points are wrong; nothing was submitted"
        raise ConfigError([problem for _, problems in bad for problem in problems], "\n".join([*lines, summary]))


def submit_sweep(planned: Sequence[tuple[Point, RunPlan]], root: Path, python: str) -> tuple[Path, SweepManifest]:
    """Submits every point; stops at the first refusal and says in the manifest what was not reached.

    Returns:
        The sweep folder and its manifest.
    """
    folder = root / f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir()
    points = [SweepPoint(point.overrides, "", "", "not reached") for point, _ in planned]
    for index, (point, plan) in enumerate(planned):
        run = create_run_folder(folder, point, plan, python)
        try:
            record = submit(run, plan, point.config.cluster)
        except LaunchError as error:
            unclear = isinstance(error, UnclearSubmissionError)
            if not unclear:
                remove_run_folder(run)
            name, state = (run.root.name, "unclear") if unclear else ("", "refused")
            points[index] = SweepPoint(point.overrides, name, "", state, str(error))
            break
        points[index] = SweepPoint(point.overrides, run.root.name, record.job_id, "submitted")
        write_record(folder / "sweep.json", SweepManifest(SCHEMA_VERSION, tuple(points)))
    manifest = SweepManifest(SCHEMA_VERSION, tuple(points))
    if any(point.run for point in points):
        write_record(folder / "sweep.json", manifest)
    else:
        folder.rmdir()  # the first point was refused: nothing is left behind
    return folder, manifest
