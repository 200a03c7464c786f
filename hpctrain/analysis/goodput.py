"""Where the wall-clock time of runs went, attempt by attempt: set-up, steps that count, steps that were undone, the rest.

Goodput is the share of the wall-clock time of all attempts that was spent in steps of the curve. Queueing before and between
attempts is told apart and enters no share: no GPU is held meanwhile. A step without an update stays on the curve; ``dead_s``
says how long those took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpctrain.analysis.name_lists import joined_names
from hpctrain.analysis.wall_clock import AttemptTime, attempt_time, duration_problem, fits, ranks_of

PARTS = {
    "setup_s": "set-up, until the first step starts",
    "curve_s": "steps on the curve",
    "between_s": "between steps (saving, evaluation)",
    "undone_s": "steps that a restart undid",
    "tail_s": "after the last recorded step",
}
"""Parts of an attempt in the order in which they begin; their sum is ``wall_s``."""

CLOCK_STEP_S = 1e-6
"""Differences of Unix times below this are rounding: a double holds them to 2e-7 s."""

ATTEMPT_COLUMNS = [
    "folder", "run", "attempt", "end_reason", "num_steps", "num_undone_steps", "wait_s", *PARTS, "dead_s", "wall_s",
    "gpus", "gpu_hours", "lost_gpu_hours",
]  # fmt: skip
RUN_COLUMNS = [
    "folder", "run", "num_attempts", "end_reason", "num_steps", "num_undone_steps", "wait_s", *PARTS, "dead_s", "wall_s",
    "goodput_share", "gpus", "gpu_hours", "lost_gpu_hours",
]  # fmt: skip
_TEXT = {"folder": "string", "run": "string", "end_reason": "string"}
_COUNTS = dict.fromkeys(("attempt", "num_attempts", "num_steps", "num_undone_steps", "gpus"), "Int64")


@dataclass(frozen=True)
class Goodput:
    """Wall-clock time and cost of runs."""

    attempts: pd.DataFrame
    """A row an attempt, ``ATTEMPT_COLUMNS``; its parts are NA where its time stamps contradict each other."""
    runs: pd.DataFrame
    """A row a run that was started, ``RUN_COLUMNS``: sums of its attempts."""
    messages: tuple[str, ...]
    """Runs and attempts that could not be counted, and how an attempt without an end was."""


def goodput(runs: pd.DataFrame, steps: pd.DataFrame, attempts: pd.DataFrame) -> Goodput:
    """Wall-clock time by part for each attempt and run, in seconds, and its cost in GPU-hours.

    A run of whose attempts one is not known keeps the rows of the others, but has neither times nor a cost itself.

    Args:
        runs: frame ``runs``; gives the number of GPUs that a run holds, and whether its cost is known.
        steps: frame ``steps``, marked.
        attempts: frame ``attempts``; those without a start time are named in ``messages``.
    """
    messages = []
    steps_of = _steps_of_attempts(steps)
    gpus = dict(zip(runs["folder"], runs["gpus"], strict=True))
    incomplete = _with_missing_lines(runs)
    rows: list[dict[str, Any]] = []
    before: tuple[str, float] | None = None
    for attempt in attempts.sort_values(["folder", "attempt"], kind="stable").to_dict("records"):
        name = f"{attempt['run']}, attempt {attempt['attempt']}"
        if pd.isna(attempt["started_at_s"]):
            messages.append(f"{name}: no start time recorded, so its time is not counted")
            continue
        end_s = None if pd.isna(attempt["ended_at_s"]) else float(attempt["ended_at_s"])
        columns = steps_of.get((attempt["folder"], attempt["attempt"]), _NO_STEPS)
        time = attempt_time(float(attempt["started_at_s"]), end_s, columns)
        row, problem = _attempt_row(attempt, time, attempt["folder"] in incomplete)
        if not time.end_is_recorded:
            messages.append(f"{name}: no end recorded, so it is counted up to its last step")
        messages += [f"{name}: {problem}; its time is not split"] if problem else []
        same_run = before is not None and before[0] == attempt["folder"]
        row["wait_s"] = max(0.0, time.start_s - before[1]) if before is not None and same_run else 0.0
        before = (attempt["folder"], time.end_s)
        measured, planned = attempt["world_size"], gpus.get(attempt["folder"], pd.NA)
        rows.append(row | _cost(row, planned if pd.isna(planned) or pd.isna(measured) else ranks_of(measured, planned)))
    table = _typed(pd.DataFrame(rows, columns=ATTEMPT_COLUMNS))
    unknown = _unknown_runs(runs, attempts, table, set(steps_of))
    messages += unknown.values()
    messages += _not_counted(runs[~runs["folder"].isin(table["folder"])]["run"].tolist())
    return Goodput(table, _by_run(table, set(unknown)), tuple(messages))


def end_reasons(attempts: pd.DataFrame) -> pd.DataFrame:
    """How attempts ended, most frequent first: their number, wall-clock time and cost, a row an end reason.

    Args:
        attempts: of a ``Goodput``.
    """
    columns = {"attempts": ("attempt", "size"), "runs": ("folder", "nunique")}
    columns |= {name: (name, "sum") for name in ("wall_s", "gpu_hours", "lost_gpu_hours")}
    table = attempts.groupby("end_reason").agg(**columns)
    return table.sort_values("attempts", ascending=False, kind="stable").reset_index()


def _not_counted(runs: Sequence[str]) -> list[str]:
    """One text for all runs without a start: whole folders of logs have none.

    >>> _not_counted(["a", "b", "c", "d", "e"])
    ['no attempt with a start time, so nothing is counted: a, b, c and 2 more']
    """
    return [f"no attempt with a start time, so nothing is counted: {joined_names(runs, 3)}"] if runs else []


def _unknown_runs(
    runs: pd.DataFrame, attempts: pd.DataFrame, table: pd.DataFrame, with_steps: set[tuple[str, int]]
) -> dict[str, str]:
    """The started runs of which an attempt is not known, by folder, each with the text that says so."""
    recorded = set(zip(attempts["folder"], attempts["attempt"], strict=True))
    without_record: dict[str, list[int]] = {}
    for folder, number in sorted(with_steps - recorded):
        without_record.setdefault(folder, []).append(number)
    unsplit = set(table.loc[table["curve_s"].isna(), "folder"])
    unknown = {}
    for run in runs[runs["folder"].isin(table["folder"])].to_dict("records"):
        numbers = ", ".join(map(str, without_record.get(run["folder"], [])))
        if numbers:
            text = f"no record of attempt {numbers} that can be read, but steps of it"
        elif pd.isna(run["gpu_hours"]) and pd.notna(run["gpus"]) and run["folder"] not in unsplit:
            text = str(run["reason"])  # the record of an attempt without a step leaves no other trace
        else:
            continue
        unknown[run["folder"]] = f"{run['run']}: {text}; the time of the whole run is not known"
    return unknown


def _steps_of_attempts(steps: pd.DataFrame) -> dict[tuple[str, int], dict[str, NDArray[Any]]]:
    """The columns that ``attempt_time`` reads, by (folder, attempt)."""
    columns = {name: steps[name].to_numpy() for name in _NO_STEPS}
    places: dict[Any, Any] = steps.groupby(["folder", "attempt"], sort=False).indices
    return {key: {name: column[place] for name, column in columns.items()} for key, place in places.items()}


_NO_STEPS: dict[str, NDArray[Any]] = {
    "step": np.zeros(0, np.int64),
    "time_s": np.zeros(0),
    "step_time_s": np.zeros(0),
    "superseded": np.zeros(0, bool),
    "dead": np.zeros(0, bool),
}


def _with_missing_lines(runs: pd.DataFrame) -> set[str]:
    """Folders of runs with steps and a known cost, but without a share of lost time: lines of steps are missing."""
    is_incomplete = (runs["num_recorded_steps"] > 0) & (runs["gpu_hours"] > 0) & runs["lost_time_share"].isna()
    return set(runs.loc[is_incomplete.fillna(False).astype(bool), "folder"])


def _attempt_row(attempt: dict[Any, Any], time: AttemptTime, is_incomplete: bool) -> tuple[dict[str, Any], str]:
    """The row of one attempt, and why its time cannot be split, if it cannot."""
    known = [attempt[name] for name in ("end_reason", "state") if pd.notna(attempt[name])]
    row = {
        "folder": attempt["folder"],
        "run": attempt["run"],
        "attempt": attempt["attempt"],
        "end_reason": known[0] if known else "not recorded",
        "num_steps": time.num_steps,
        "num_undone_steps": time.num_undone_steps,
        "wall_s": time.wall_s,
    }
    parts = {
        "setup_s": time.steps_begin_s - time.start_s,
        "curve_s": time.curve_s,
        "between_s": time.steps_end_s - time.steps_begin_s - time.curve_s - time.undone_s,
        "undone_s": time.undone_s,
        "tail_s": time.end_s - time.steps_end_s,
    }
    if not time.num_steps:
        parts = dict.fromkeys(PARTS, 0.0) | {"setup_s": time.wall_s}
    if problem := duration_problem(time.wall_s):
        return row | dict.fromkeys([*PARTS, "dead_s", "wall_s"], pd.NA), f"it {problem}"
    missing = "steps of its run have no line, which would count as lost time" if is_incomplete else ""
    problem = _contradiction(parts, time.wall_s) or missing
    if problem:
        return row | dict.fromkeys([*PARTS, "dead_s"], pd.NA), problem
    return row | {name: _without_rounding(value) for name, value in parts.items()} | {"dead_s": time.dead_s}, ""


def _without_rounding(seconds: float) -> float:
    return seconds if seconds > CLOCK_STEP_S else 0.0


def _contradiction(parts: dict[str, float], wall_s: float) -> str:
    """Why the time stamps of an attempt cannot all be true; empty if they can."""
    if not all(np.isfinite(value) for value in parts.values()):
        return "its steps carry no time stamps"
    worst = min(parts, key=lambda name: parts[name])
    if fits(wall_s - parts[worst], wall_s):
        return ""
    return f"its time stamps contradict each other: {parts[worst]:.3g} s {PARTS[worst]}, and the attempt took {wall_s:.3g} s"


def _cost(row: dict[str, Any], gpus: Any) -> dict[str, Any]:
    """GPU-hours held, and those of them that left nothing on the curve."""
    if pd.isna(gpus):
        return {"gpus": pd.NA, "gpu_hours": pd.NA, "lost_gpu_hours": pd.NA}
    held = row["wall_s"] * gpus / 3600  # NA where the time is not known
    on_curve = row["curve_s"] * gpus / 3600
    return {
        "gpus": gpus,
        "gpu_hours": held,
        "lost_gpu_hours": pd.NA if pd.isna(on_curve) else max(0.0, held - on_curve),
    }


def _by_run(attempts: pd.DataFrame, unknown: set[str]) -> pd.DataFrame:
    """Sums of the attempts of each run; one attempt that cannot be split leaves its run without a split.

    Args:
        attempts: ``ATTEMPT_COLUMNS``.
        unknown: folders of runs of which an attempt is not known.
    """
    sums = ["num_steps", "num_undone_steps", "wait_s", *PARTS, "dead_s", "wall_s", "gpu_hours", "lost_gpu_hours"]
    rows = []
    for folder, group in attempts.groupby("folder", sort=False):
        totals = {name: pd.NA if folder in unknown else group[name].sum(skipna=False) for name in sums}
        rows.append(
            totals
            | {
                "folder": folder,
                "run": group["run"].iloc[0],
                "num_attempts": len(group),
                "end_reason": group["end_reason"].iloc[-1],
                "gpus": group["gpus"].iloc[-1],
                "goodput_share": _share(totals["curve_s"], totals["wall_s"]),
            }
        )
    return _typed(pd.DataFrame(rows, columns=RUN_COLUMNS))


def _share(curve_s: Any, wall_s: Any) -> Any:
    """Of the wall-clock time on the curve; NA where that is not known or no time passed."""
    if pd.isna(curve_s) or pd.isna(wall_s) or wall_s <= 0:
        return pd.NA
    return min(1.0, curve_s / wall_s)


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    known = {name: dtype for name, dtype in (_TEXT | _COUNTS).items() if name in table}
    return table.astype(dict.fromkeys(table.columns, "Float64") | known)
