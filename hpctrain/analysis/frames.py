"""Run folders, and logs of other systems, to tidy frames: ``runs`` (a row each, whatever its state), ``steps`` and others."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pandas as pd
from numpy.typing import NDArray

from hpctrain.analysis.logs.log_files import find_logs, load_logs
from hpctrain.analysis.node_files import SAMPLE_DTYPES, read_samples
from hpctrain.analysis.run_row import RunData, RunSummary
from hpctrain.analysis.steady import mark_columns
from hpctrain.analysis.step_files import NO_STEPS, read_steps
from hpctrain.analysis.summary import summarise
from hpctrain.analysis.validation_files import VALIDATION_DTYPES, read_validations
from hpctrain.analysis.validity import fastest_step_s, full_batch_step, plan_problem
from hpctrain.errors import RecordError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import path_text, plain_text, read_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_each_attempt, read_plan, search_runs
from hpctrain.record.schema import AttemptRecord, CancelRecord

_DTYPES = {str: "string", int: "Int64", float: "Float64", bool: "boolean"}

RUN_DTYPES: dict[str, str] = {
    name: _DTYPES[get_args(hint)[0] if get_args(hint) else hint] for name, hint in get_type_hints(RunSummary).items()
}
RECORDED_STEP_DTYPES: dict[str, str] = {
    "attempt": "int64",
    "step": "int64",
    "time_s": "float64",
    "loss": "float64",
    "learning_rate": "float64",
    "grad_norm": "float64",
    "skipped": "bool",
    "step_time_s": "float64",
    "data_time_s": "float64",
    "tokens": "int64",
    "peak_memory_bytes": "int64",
    "forward_time_s": "float64",
    "backward_time_s": "float64",
    "optimizer_time_s": "float64",
    "loss_scale": "float64",
}
STEP_DTYPES: dict[str, str] = {
    "folder": "string",
    "run": "string",
    **RECORDED_STEP_DTYPES,
    "superseded": "bool",
    "warm_up": "bool",
    "dead": "bool",
    "rejected": "bool",
    "outlier": "bool",
    "steady": "bool",
}
ATTEMPT_DTYPES: dict[str, str] = {
    "folder": "string",
    "run": "string",
    "attempt": "Int64",
    "job_id": "string",
    "state": "string",
    "end_reason": "string",
    "exit_code": "Int64",
    "message": "string",
    "failed_rank": "Int64",
    "failed_node": "string",
    "world_size": "Int64",
    "num_nodes": "Int64",
    "started_at_s": "Float64",
    "ended_at_s": "Float64",
    "setup_time_s": "Float64",
}


MIN_RUNS_FOR_PROCESSES = 200
"""Reading so many runs of 10,000 steps takes some seconds, the start of a process below one."""


@dataclass(frozen=True)
class Frames:
    """Any number of runs; ``folder`` joins the frames."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    attempts: pd.DataFrame
    samples: pd.DataFrame
    """Telemetry, a row a look at a node; the GPU columns are NA on a node without GPUs."""
    problems: tuple[str, ...] = ()
    """Places in which no run was found, folders that could not be opened, and damaged telemetry."""
    validations: pd.DataFrame = field(default_factory=lambda: _frame([], VALIDATION_DTYPES))
    """Losses on held-out data, a row each."""

    def steps_of(self, folder: str) -> pd.DataFrame:
        """The marked steps of one run."""
        return self.steps[self.steps["folder"] == folder]

    def validations_of(self, folder: str) -> pd.DataFrame:
        """Those of one run."""
        return self.validations[self.validations["folder"] == folder]


@dataclass(frozen=True)
class RunFrames:
    """One run, ready to be joined with others."""

    summary: RunSummary
    steps: pd.DataFrame | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    samples: pd.DataFrame | None = None
    problems: tuple[str, ...] = ()
    validations: pd.DataFrame | None = None


def load_frames(roots: Iterable[Path], *, steps: bool = True, samples: bool = True) -> Frames:
    """All runs at or below the roots, each once; a root without any is listed in ``problems``.

    Args:
        roots: run folders, logs of other systems, or folders above them.
        steps: False: the frame ``steps`` stays empty, so that memory does not grow with the length of runs.
        samples: False: telemetry is not read.
    """
    places = find_sources(roots)
    loaded = _load_runs(places.runs, steps, samples)
    logs = load_logs(places.logs)
    loaded += [RunFrames(run.summary, run.steps if steps and len(run.steps) else None) for run in logs.runs]
    return join_frames(loaded, [*places.problems, *logs.problems])


@dataclass(frozen=True)
class Sources:
    """Where runs are told of, each place once."""

    runs: tuple[RunPaths, ...]
    logs: tuple[Path, ...]
    problems: tuple[str, ...]
    """Roots without either, and folders that could not be opened."""


def find_sources(roots: Iterable[Path]) -> Sources:
    """Run folders and logs of other systems at or below the roots, in their order."""
    runs: dict[Path, RunPaths] = {}
    logs: dict[Path, Path] = {}
    problems = []
    for root in roots:
        found: list[RunPaths] = []
        if not os.path.isfile(root):  # unlike Path.is_file no error where it may not be looked at
            try:
                found, not_opened = search_runs(root)
            except RecordError as error:
                problems.append(str(error))
                continue
            problems += not_opened
        inside = {_real(run.root): run for run in found}
        found_logs = {_real(path): path for path in find_logs(root, inside)}
        if not inside and not found_logs:
            problems.append(
                f"{root}: no run here; a run folder holds plan.json, a log of another system ends in .log, .out, .err or .txt"
            )
        runs |= inside
        logs |= found_logs
    return Sources(tuple(runs.values()), tuple(logs.values()), tuple(map(plain_text, problems)))


def _real(path: Path) -> Path:
    """Links followed; unlike ``Path.resolve`` no error where they lead in a circle, so that reading tells it."""
    return Path(os.path.realpath(path))


def _load_runs(runs: Sequence[RunPaths], with_steps: bool, with_samples: bool) -> list[RunFrames]:
    """All runs in their order: many in processes, unless their steps would have to travel; threads wait for Python's lock."""
    load = partial(_load_run, with_steps=with_steps, with_samples=with_samples)
    workers = len(os.sched_getaffinity(0))
    if with_steps or workers == 1 or len(runs) < MIN_RUNS_FOR_PROCESSES:
        return [load(run) for run in runs]
    # Spawned, not forked: pyarrow and BLAS may hold threads here.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(load, runs, chunksize=8))


def _load_run(run: RunPaths, with_steps: bool, with_samples: bool) -> RunFrames:
    data = read_run(run)
    summary = summarise(data)
    table, problems = read_samples(run) if with_samples else (None, ())
    return RunFrames(
        summary=summary,
        steps=data.steps if with_steps and len(data.columns["step"]) else None,
        attempts=data.attempts,
        samples=table if table is not None and len(table) else None,
        problems=tuple(map(plain_text, (*problems, *data.validation_problems))),
        validations=data.validations if len(data.validations) else None,
    )


def read_run(run: RunPaths) -> RunData:
    """One run folder; each file is read on its own, and what is wrong with one is told in ``problem``."""
    problems = []
    plan: RunPlan | None = None
    try:
        plan = read_plan(run)
        unusable = plan_problem(plan)
        if unusable:
            problems.append(f"{run.plan}: {unusable}")
            plan = None
    except RecordError as error:
        problems.append(str(error))
    files = read_each_attempt(run)
    problems += files.problems
    try:
        lines = read_steps(run.steps)
    except OSError as error:
        problems.append(f"{run.steps}: {error.strerror}")
        lines = NO_STEPS
    was_cancelled = False
    if files.attempts and files.attempts[-1].state == "running":
        try:
            was_cancelled = _was_cancelled(run, files.attempts[-1])
        except RecordError as error:
            problems.append(str(error))
    columns = _marked(lines.columns, plan, files.attempts)
    validations, validation_problems = read_validations(run, columns)
    return RunData(
        folder=path_text(run.root),
        plan=plan,
        attempts=files.attempts,
        columns=columns,
        validations=validations,
        validation_problems=validation_problems,
        damaged_lines=lines.damaged_lines,
        problem=plain_text("; ".join(problems)),
        num_lines=lines.num_lines,
        first_damage=lines.first_damage,
        all_attempts_are_known=not files.problems,
        last_attempt_is_known=files.last_is_known,
        was_cancelled=was_cancelled,
    )


def _marked(
    columns: Mapping[str, NDArray[Any]], plan: RunPlan | None, attempts: Sequence[AttemptRecord]
) -> dict[str, NDArray[Any]]:
    if plan is None:
        return mark_columns(columns)
    return mark_columns(columns, fastest_step_s(plan, attempts), full_batch_step(plan))


def _was_cancelled(run: RunPaths, last: AttemptRecord) -> bool:
    """Whether a user ended the attempt's job; one that Slurm ends as it starts leaves no end."""
    if not os.path.lexists(run.cancelled):
        return False
    note = read_record(run.cancelled, CancelRecord)
    return last.job_id in note.job_ids and last.started_at_s <= note.cancelled_at_s


def join_frames(runs: Sequence[RunFrames], problems: Sequence[str] = ()) -> Frames:
    """The frames of runs that were read, in their order."""
    attempts = [
        {"run": run.summary.run, "folder": run.summary.folder, "num_nodes": len(attempt.nodes), **vars(attempt)}
        for run in runs
        for attempt in run.attempts
    ]
    return Frames(
        runs=runs_frame(run.summary for run in runs),
        steps=_joined([(run.summary, run.steps) for run in runs], STEP_DTYPES),
        attempts=_frame(attempts, ATTEMPT_DTYPES),
        samples=_joined([(run.summary, run.samples) for run in runs], SAMPLE_DTYPES),
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        validations=_joined([(run.summary, run.validations) for run in runs], VALIDATION_DTYPES),
    )


def runs_frame(summaries: Iterable[RunSummary]) -> pd.DataFrame:
    """The frame ``runs``, a row a summary; ``run_summaries`` gives them back."""
    return _frame([vars(summary) for summary in summaries], RUN_DTYPES)


def _joined(tables: Iterable[tuple[RunSummary, pd.DataFrame | None]], dtypes: dict[str, str]) -> pd.DataFrame:
    """The tables below each other, each row with its run."""
    parts = [table.assign(folder=row.folder, run=row.run) for row, table in tables if table is not None]
    if not parts:
        return _frame([], dtypes)
    return pd.concat(parts, ignore_index=True)[list(dtypes)].astype(dtypes)


def run_summaries(runs: pd.DataFrame) -> list[RunSummary]:
    """The rows of a frame ``runs``, or of a part of it, as they were before they became a frame."""
    rows: list[dict[Any, Any]] = runs.astype(object).where(runs.notna(), None).to_dict("records")
    return [RunSummary(**row) for row in rows]


def _frame(rows: Sequence[Mapping[str, Any]], dtypes: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)
