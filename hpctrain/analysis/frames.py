"""Run folders to tidy frames: ``runs`` (a row each, whatever its state), ``steps`` and ``attempts``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pandas as pd

from hpctrain.analysis.steady import mark_steps
from hpctrain.analysis.summary import RunData, RunSummary, summarise
from hpctrain.errors import RecordError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, find_runs, read_attempts, read_plan
from hpctrain.record.schema import AttemptRecord, StepRecord

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
}
STEP_DTYPES: dict[str, str] = {
    "folder": "string",
    "run": "string",
    **RECORDED_STEP_DTYPES,
    "superseded": "bool",
    "warm_up": "bool",
    "dead": "bool",
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


@dataclass(frozen=True)
class Frames:
    """Any number of runs; ``folder`` joins the three frames."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    attempts: pd.DataFrame
    problems: tuple[str, ...] = ()
    """Places in which no run was found."""

    def steps_of(self, folder: str) -> pd.DataFrame:
        """The marked steps of one run."""
        return self.steps[self.steps["folder"] == folder]


def load_frames(roots: Iterable[Path]) -> Frames:
    """All runs at or below the roots, each once; a root without runs is listed in ``problems``."""
    found: dict[Path, RunPaths] = {}
    problems = []
    for root in roots:
        try:
            runs = find_runs(root)
        except RecordError as error:
            problems.append(str(error))
            continue
        if not runs:
            problems.append(f"{root}: no run here; a run folder holds plan.json")
        found |= {run.root.resolve(): run for run in runs}
    return build_frames([read_run(run) for run in found.values()], problems)


def read_run(run: RunPaths) -> RunData:
    """One run folder; each file is read on its own, and what is wrong with one is told in ``problem``."""
    problems = []
    plan: RunPlan | None = None
    attempts: list[AttemptRecord] = []
    records: list[StepRecord] = []
    file = StepsFile(run.steps)
    try:
        plan = read_plan(run)
    except RecordError as error:
        problems.append(str(error))
    try:
        attempts = read_attempts(run)
    except RecordError as error:
        problems.append(str(error))
    try:
        records.extend(file.new_records())
    except OSError as error:
        problems.append(f"{run.steps}: {error.strerror}")
    rows = [vars(record) for record in records]
    return RunData(
        folder=str(run.root),
        plan=plan,
        attempts=tuple(attempts),
        steps=mark_steps(_frame(rows, RECORDED_STEP_DTYPES)),
        damaged_lines=file.damaged_lines,
        problem="; ".join(problems),
    )


def build_frames(runs: Sequence[RunData], problems: Sequence[str] = ()) -> Frames:
    """The frames of runs that were read."""
    summaries = [summarise(data) for data in runs]
    attempts = [
        {"run": summary.run, "folder": summary.folder, "num_nodes": len(attempt.nodes), **dataclasses.asdict(attempt)}
        for data, summary in zip(runs, summaries, strict=True)
        for attempt in data.attempts
    ]
    steps = [
        data.steps.assign(folder=summary.folder, run=summary.run)
        for data, summary in zip(runs, summaries, strict=True)
        if len(data.steps)
    ]
    return Frames(
        runs=_frame([dataclasses.asdict(summary) for summary in summaries], RUN_DTYPES),
        steps=pd.concat(steps, ignore_index=True)[list(STEP_DTYPES)].astype(STEP_DTYPES)
        if steps
        else _frame([], STEP_DTYPES),
        attempts=_frame(attempts, ATTEMPT_DTYPES),
        problems=tuple(problems),
    )


def run_summaries(runs: pd.DataFrame) -> list[RunSummary]:
    """The rows of a frame ``runs``, or of a part of it, as they were before they became a frame."""
    rows: list[dict[Any, Any]] = runs.astype(object).where(runs.notna(), None).to_dict("records")
    return [RunSummary(**row) for row in rows]


def _frame(rows: Sequence[Mapping[str, Any]], dtypes: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)
