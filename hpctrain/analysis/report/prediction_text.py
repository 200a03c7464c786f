"""What the plans of runs predicted beside what was measured, for a terminal."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from hpctrain.analysis.frames import run_summaries
from hpctrain.analysis.name_lists import short_name
from hpctrain.analysis.run_row import RunSummary
from hpctrain.text_table import MISSING, aligned, printable, wrapped
from hpctrain.units import GIB, gib

_NAME_WIDTH = 34
_HEADER = ["RUN", "PLAN S", "BETWEEN", "STEP S", "OFF %", "IN", "PLAN GIB", "GIB", "GIB OFF %"]
_OF_TIME = slice(1, 6)
"""Columns that are of the step time."""
_PLACES = {True: ", the measured one is in the range", False: ", the measured one is outside the range"}


def predicted_step_text(summary: RunSummary) -> str:
    """The predicted step time of one run with its range, how far off it was, and what calibrated it; or why there is none."""
    if summary.predicted_step_time_s is None:
        return f"none: {summary.prediction_gap or 'not in the plan'}"
    low, high = summary.predicted_step_time_low_s, summary.predicted_step_time_high_s
    between = "" if low is None or high is None else f", between {low:.4g} and {high:.4g} s"
    texts = [f"{summary.predicted_step_time_s:.4g} s{between}"]
    if summary.prediction_error is not None:
        place = "" if summary.in_predicted_range is None else _PLACES[summary.in_predicted_range]
        texts.append(f"{100 * summary.prediction_error:+.1f} % off{place}")
    if summary.calibration is not None:
        texts.append(f"calibrated, {summary.calibration}")
    return "; ".join(texts)


def predicted_memory_text(summary: RunSummary) -> str:
    """What the plan predicted of the memory that is measured, and how far off it was; empty: nothing."""
    if summary.predicted_memory_bytes is None:
        return ""
    off = "" if summary.memory_error is None else f", {100 * summary.memory_error:+.1f} % off"
    return f"the plan predicted {gib(summary.predicted_memory_bytes)}{off}"


def predictions_table(runs: pd.DataFrame) -> str:
    """Runs with a predicted and a measured value of step time or memory, then how many have no predicted step time and why.

    Args:
        runs: frame ``runs``, under names that differ.

    Returns:
        Aligned text; empty where no run has both.
    """
    rows = [row for row in run_summaries(runs) if row.prediction_error is not None or row.memory_error is not None]
    if not rows:
        return ""
    with_time = any(row.prediction_error is not None for row in rows)
    cells = [_HEADER, *map(_cells, rows)]
    if not with_time:
        cells = [[*line[: _OF_TIME.start], *line[_OF_TIME.stop :]] for line in cells]
    parts = ["Plan against measurement:", aligned(cells), *_notes(rows, with_time)]
    return "\n".join(parts)


def _cells(row: RunSummary) -> list[str]:
    name = f"{short_name(printable(row.run, kept=''), _NAME_WIDTH)}{'' if row.valid else ' !'}"
    low, high = row.predicted_step_time_low_s, row.predicted_step_time_high_s
    return [
        name,
        _number(row.predicted_step_time_s),
        MISSING if low is None or high is None else f"{low:.3g}..{high:.3g}",
        _number(row.step_time_s),
        _off(row.prediction_error),
        {True: "yes", False: "no", None: MISSING}[row.in_predicted_range],
        _size(row.predicted_memory_bytes),
        _size(row.peak_memory_bytes),
        _off(row.memory_error),
    ]


def _notes(rows: list[RunSummary], with_time: bool) -> list[str]:
    devices = {row.device for row in rows}
    counted = {"cuda": "the GPU allocator's peak", "cpu": "the resident size"}
    of_memory = " or ".join(words for device, words in counted.items() if device in devices)
    notes = [
        "OFF: predicted over measured, less 1" + ("; IN: measured inside the predicted range" if with_time else "")
    ]
    if of_memory:
        notes.append(f"PLAN GIB: of the rank that needs most; GIB: of rank 0, {of_memory}")
    gaps = Counter(row.prediction_gap or "not in the plan" for row in rows if row.predicted_step_time_s is None)
    notes += [f"no predicted step time in {count} of {len(rows)}: {gap}" for gap, count in gaps.items()]
    calibrations = Counter(row.calibration for row in rows if row.calibration is not None)
    notes += [f"calibrated in {count} of {len(rows)}: {text}" for text, count in calibrations.items()]
    return list(map(wrapped, notes))


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def _off(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+.1f}"


def _size(num_bytes: int | None) -> str:
    return MISSING if num_bytes is None else f"{num_bytes / GIB:.2f}"
