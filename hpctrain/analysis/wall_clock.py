"""Wall-clock time of a run: of all its attempts, and how much of it was spent in steps that count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpctrain.analysis.steady import attempt_bounds
from hpctrain.record.schema import AttemptRecord

CLOCK_TOLERANCE = 0.01
"""Share by which the steps may take longer than the attempts they lie in: clocks are read at slightly different moments."""


@dataclass(frozen=True)
class WallClock:
    """Of all attempts together; the time between attempts is not counted. None: not known."""

    wall_s: float | None = None
    tokens_per_s: float | None = None
    """Tokens of the curve over ``wall_s``."""
    lost_time_share: float | None = None
    """Share of ``wall_s`` outside steps of the curve: set-up, saving, evaluation, undone steps."""
    contradiction: str = ""
    """Why the time stamps cannot all be true."""


def wall_clock(attempts: Sequence[AttemptRecord], steps: Mapping[str, NDArray[Any]]) -> WallClock:
    """Wall-clock time and throughput of one run.

    An attempt without an end is counted up to its last step. Steps of an attempt without a record leave all unknown.

    Args:
        attempts: every start of the run.
        steps: columns attempt, time_s (Unix time of the step's end), step_time_s, tokens, superseded; by attempt.

    30 s of two attempts, of which one step of 10 s and 50 tokens counts:

    >>> failed = AttemptRecord(1, 1, "7", "failed", started_at_s=100.0, ended_at_s=115.0)
    >>> again = AttemptRecord(1, 2, "7", "completed", started_at_s=200.0, ended_at_s=215.0)
    >>> columns = {"attempt": [1, 2], "time_s": [112, 213], "step_time_s": [10, 10], "tokens": [50, 50]}
    >>> columns |= {"superseded": [True, False]}
    >>> wall = wall_clock([failed, again], {name: np.array(column) for name, column in columns.items()})
    >>> wall.wall_s, wall.tokens_per_s, round(wall.lost_time_share, 3)
    (30.0, 1.6666666666666667, 0.667)
    """
    with_steps = set(steps["attempt"][attempt_bounds(steps["attempt"])[:-1]].tolist())
    if not attempts or with_steps - {attempt.attempt for attempt in attempts}:
        return WallClock()
    wall_s = 0.0
    for attempt in attempts:
        seconds = _attempt_s(attempt, steps) if attempt.attempt in with_steps or attempt.ended_at_s is not None else 0.0
        if seconds < 0:
            return WallClock(contradiction=f"attempt {attempt.attempt} ended {-seconds:,.4g} s before it started")
        wall_s += seconds
    if wall_s == 0:
        return WallClock(wall_s=0.0)
    curve = ~steps["superseded"]
    times_s = steps["step_time_s"][curve]
    curve_s = float(times_s[np.isfinite(times_s) & (times_s > 0)].sum())
    if curve_s > (1 + CLOCK_TOLERANCE) * wall_s:
        text = f"its steps take {curve_s:,.4g} s and all attempts together {wall_s:,.4g} s"
        return WallClock(contradiction=text)
    tokens = float(steps["tokens"][curve].sum(dtype=float))
    return WallClock(wall_s, tokens / wall_s, max(0.0, 1 - curve_s / wall_s))


def _attempt_s(attempt: AttemptRecord, steps: Mapping[str, NDArray[Any]]) -> float:
    if attempt.ended_at_s is not None:
        return attempt.ended_at_s - attempt.started_at_s
    last_s = float(steps["time_s"][steps["attempt"] == attempt.attempt].max())
    return max(0.0, last_s - attempt.started_at_s) if math.isfinite(last_s) else 0.0
