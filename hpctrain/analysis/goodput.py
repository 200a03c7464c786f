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

from hpctrain.analysis.wall_clock import CLOCK_TOLERANCE

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

    Args:
        runs: frame ``runs``; gives the number of GPUs that a run holds.
        steps: frame ``steps``, marked.
        attempts: frame ``attempts``; those without a start time are named in ``messages``.
    """
    messages = []
    by_attempt = _step_times(steps)
    gpus = dict(zip(runs["folder"], runs["gpus"], strict=True))
    rows: list[dict[str, Any]] = []
    before: tuple[str, float] | None = None
    for attempt in attempts.sort_values(["folder", "attempt"], kind="stable").to_dict("records"):
        name = f"{attempt['run']}, attempt {attempt['attempt']}"
        if pd.isna(attempt["started_at_s"]):
            messages.append(f"{name}: no start time recorded, so its time is not counted")
            continue
        row, end_s, message = _attempt_row(attempt, by_attempt.get((attempt["folder"], attempt["attempt"])))
        messages += [f"{name}: {message}"] if message else []
        same_run = before is not None and before[0] == attempt["folder"]
        row["wait_s"] = max(0.0, attempt["started_at_s"] - before[1]) if before is not None and same_run else 0.0
        before = (attempt["folder"], end_s)
        rows.append(row | _cost(row, gpus.get(attempt["folder"], pd.NA)))
    table = _typed(pd.DataFrame(rows, columns=ATTEMPT_COLUMNS))
    messages += _not_counted(runs[~runs["folder"].isin(table["folder"])]["run"].tolist())
    return Goodput(table, _by_run(table), tuple(messages))


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
    if not runs:
        return []
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return [f"no attempt with a start time, so nothing is counted: {', '.join(runs[:3])}{more}"]


def _step_times(steps: pd.DataFrame) -> dict[tuple[str, int], dict[str, float]]:
    """Sums over the steps of each (folder, attempt); a step written twice counts once, as it was written last."""
    once = steps.drop_duplicates(["folder", "attempt", "step"], keep="last")
    if once.empty:
        return {}
    time_s = once["step_time_s"].astype("float64").fillna(0.0)
    once = once.assign(
        begins_s=once["time_s"].astype("float64") - time_s,
        ends_s=once["time_s"].astype("float64"),
        curve_s=time_s.where(~once["superseded"], 0.0),
        undone_s=time_s.where(once["superseded"], 0.0),
        dead_s=time_s.where(once["dead"] & ~once["superseded"], 0.0),
    )
    sums = once.groupby(["folder", "attempt"]).agg(
        begins_s=("begins_s", "min"), ends_s=("ends_s", "max"), num_steps=("step", "size"),
        num_undone_steps=("superseded", "sum"), curve_s=("curve_s", "sum"), undone_s=("undone_s", "sum"),
        dead_s=("dead_s", "sum"),
    )  # fmt: skip
    found: dict[Any, Any] = sums.to_dict("index")
    return found


def _attempt_row(attempt: dict[Any, Any], steps: dict[str, float] | None) -> tuple[dict[str, Any], float, str]:
    """The times of one attempt, when it ended, and what is to be said about it."""
    start_s = float(attempt["started_at_s"])
    last_step_s = steps["ends_s"] if steps is not None and np.isfinite(steps["ends_s"]) else start_s
    message = ""
    if pd.notna(attempt["ended_at_s"]):
        end_s = float(attempt["ended_at_s"])
    else:
        end_s = max(start_s, last_step_s)
        message = "no end recorded, so it is counted up to its last step"
    known = [attempt[name] for name in ("end_reason", "state") if pd.notna(attempt[name])]
    reason = known[0] if known else "not recorded"
    row = {
        "folder": attempt["folder"], "run": attempt["run"], "attempt": attempt["attempt"], "end_reason": reason,
        "num_steps": 0, "num_undone_steps": 0, "dead_s": 0.0, "wall_s": end_s - start_s,
    }  # fmt: skip
    if steps is None:
        return row | dict.fromkeys(PARTS, 0.0) | {"setup_s": row["wall_s"]}, end_s, message
    row |= {name: steps[name] for name in ("num_steps", "num_undone_steps", "curve_s", "undone_s", "dead_s")}
    gaps = {
        "setup_s": steps["begins_s"] - start_s,
        "between_s": steps["ends_s"] - steps["begins_s"] - steps["curve_s"] - steps["undone_s"],
        "tail_s": end_s - steps["ends_s"],
    }
    problem = _contradiction(gaps, row["wall_s"])
    if problem:
        nothing = dict.fromkeys([*PARTS, "dead_s"], pd.NA)
        return row | nothing, end_s, "; ".join(text for text in (message, problem) if text)
    return row | {name: value if value > CLOCK_STEP_S else 0.0 for name, value in gaps.items()}, end_s, message


def _contradiction(gaps: dict[str, float], wall_s: float) -> str:
    """Why the time stamps of an attempt cannot all be true; empty if they can."""
    if not all(np.isfinite(value) for value in gaps.values()):
        return "its steps carry no time stamps, so its time is not split"
    worst = min(gaps, key=lambda name: gaps[name])
    if gaps[worst] >= -CLOCK_TOLERANCE * max(wall_s, 0.0) - 1e-3:
        return ""
    return (
        f"its time stamps contradict each other: {gaps[worst]:.3g} s {PARTS[worst]},"
        f" and the attempt took {wall_s:.3g} s; its time is not split"
    )


def _cost(row: dict[str, Any], gpus: Any) -> dict[str, Any]:
    """GPU-hours held, and those of them that left nothing on the curve."""
    if pd.isna(gpus):
        return {"gpus": pd.NA, "gpu_hours": pd.NA, "lost_gpu_hours": pd.NA}
    held = row["wall_s"] * gpus / 3600
    return {"gpus": gpus, "gpu_hours": held, "lost_gpu_hours": held - row["curve_s"] * gpus / 3600}


def _by_run(attempts: pd.DataFrame) -> pd.DataFrame:
    """Sums of the attempts of each run; one attempt that cannot be split leaves its run without a split."""
    sums = ["num_steps", "num_undone_steps", "wait_s", *PARTS, "dead_s", "wall_s", "gpu_hours", "lost_gpu_hours"]
    rows = []
    for folder, group in attempts.groupby("folder", sort=False):
        totals = {name: group[name].sum(skipna=False) for name in sums}
        wall_s = totals["wall_s"]
        rows.append(
            totals
            | {
                "folder": folder,
                "run": group["run"].iloc[0],
                "num_attempts": len(group),
                "end_reason": group["end_reason"].iloc[-1],
                "gpus": group["gpus"].iloc[0],
                "goodput_share": totals["curve_s"] / wall_s if wall_s > 0 else pd.NA,
            }
        )
    return _typed(pd.DataFrame(rows, columns=RUN_COLUMNS))


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    known = {name: dtype for name, dtype in (_TEXT | _COUNTS).items() if name in table}
    return table.astype(dict.fromkeys(table.columns, "Float64") | known)
