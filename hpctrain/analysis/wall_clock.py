"""Wall-clock time: of each attempt by its record and its steps, and of a run as the sum of its attempts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpctrain.analysis.steady import attempt_bounds
from hpctrain.record.schema import AttemptRecord

CLOCK_TOLERANCE = 0.01
"""Share by which the steps may take longer than the attempts they lie in: clocks are read at slightly different moments."""
MAX_ATTEMPT_S = 366 * 86400.0
"""A job of more than a year is a wrong clock. A choice."""
CLOCK_OFFSET_S = 1e-3
"""Time that clocks may be apart however short the attempt is. A choice: nodes that are kept in step over the network, as
clusters are, agree to about a millisecond."""


@dataclass(frozen=True)
class AttemptTime:
    """Where one attempt's seconds went; moments are Unix times. NaN: not known."""

    start_s: float
    end_s: float
    """Of an attempt without a recorded end that of its last step."""
    end_is_recorded: bool
    steps_begin_s: float
    """When the first step began; NaN without a step or a time stamp."""
    steps_end_s: float
    num_steps: int
    """A step written twice counts once, as it was written last."""
    num_undone_steps: int
    num_unstamped_steps: int
    """Without a finite time of their end."""
    curve_s: float
    """Steps that count."""
    undone_s: float
    """Steps that a later attempt took again."""
    dead_s: float
    """Part of ``curve_s`` in steps without an update."""

    @property
    def wall_s(self) -> float:
        return self.end_s - self.start_s


def attempt_time(start_s: float, end_s: float | None, steps: Mapping[str, NDArray[Any]]) -> AttemptTime:
    """The times of one attempt; a step time that is not above zero or not finite adds nothing.

    Args:
        start_s: Unix time at which its first rank started.
        end_s: Unix time of its end; None: none was recorded.
        steps: of this attempt only, in order: step, time_s (Unix time of the step's end), step_time_s, superseded, dead.

    Two of three steps count, each of 10 s, and one of them without an update:

    >>> columns = {"step": [1, 2, 3], "time_s": [115, 125, 135], "step_time_s": [10, 10, 10]}
    >>> columns |= {"superseded": [False, False, True], "dead": [False, True, False]}
    >>> time = attempt_time(100.0, None, {name: np.array(column) for name, column in columns.items()})
    >>> time.wall_s, time.steps_begin_s, time.curve_s, time.undone_s, time.dead_s
    (35.0, 105.0, 20.0, 10.0, 10.0)
    """
    step = steps["step"]
    last = np.ones(len(step), bool)
    last[:-1] = step[1:] != step[:-1]
    moments_s, times_s = steps["time_s"][last].astype(float), steps["step_time_s"][last].astype(float)
    times_s = np.where(np.isfinite(times_s) & (times_s > 0), times_s, 0.0)
    undone, dead = steps["superseded"][last], steps["dead"][last]
    stamped = np.isfinite(moments_s)
    begin_s = float((moments_s - times_s)[stamped].min()) if stamped.any() else math.nan
    last_s = float(moments_s[stamped].max()) if stamped.any() else math.nan
    up_to_last_s = max(start_s, last_s) if stamped.any() else start_s
    return AttemptTime(
        start_s=start_s,
        end_s=up_to_last_s if end_s is None else end_s,
        end_is_recorded=end_s is not None,
        steps_begin_s=begin_s,
        steps_end_s=last_s,
        num_steps=len(times_s),
        num_undone_steps=int(undone.sum()),
        num_unstamped_steps=int((~stamped).sum()),
        curve_s=float(times_s[~undone].sum()),
        undone_s=float(times_s[undone].sum()),
        dead_s=float(times_s[dead & ~undone].sum()),
    )


def fits(part_s: float, whole_s: float) -> bool:
    """A part is no longer than its whole, as far as clocks can tell.

    >>> fits(10.05, 10.0), fits(10.2, 10.0), fits(0.0, -1.0)
    (True, False, False)
    """
    return part_s <= whole_s + CLOCK_TOLERANCE * max(whole_s, 0.0) + CLOCK_OFFSET_S


def duration_problem(wall_s: float) -> str:
    """Text if an attempt cannot have taken so long; else empty.

    >>> duration_problem(60.0), duration_problem(1.7e9)
    ('', 'took 1.7e+09 s, more than a year: a clock was wrong')
    """
    return f"took {wall_s:,.4g} s, more than a year: a clock was wrong" if wall_s > MAX_ATTEMPT_S else ""


def _time_problem(time: AttemptTime) -> str:
    """Why start, end and time stamps of the steps of one attempt cannot all be true; empty if they can."""
    apart = "the time stamps contradict each other"
    if time.wall_s < 0:
        return f"ended {-time.wall_s:,.4g} s before it started: {apart}"
    if problem := duration_problem(time.wall_s):
        return problem
    if time.num_unstamped_steps:
        return f"has {time.num_unstamped_steps} of {time.num_steps} steps without a time stamp"
    early_s, late_s = time.start_s - time.steps_begin_s, time.steps_end_s - time.end_s
    if time.num_steps and not fits(time.wall_s + early_s, time.wall_s):
        return f"has a step that began {early_s:,.4g} s before it started: {apart}"
    if time.num_steps and not fits(time.wall_s + late_s, time.wall_s):
        return f"has a step that ended {late_s:,.4g} s after its end: {apart}"
    return ""


@dataclass(frozen=True)
class WallClock:
    """Of all attempts together; the time between attempts is not counted. None: not known."""

    wall_s: float | None = None
    rank_s: float | None = None
    """Of each attempt its seconds times its ranks."""
    tokens_per_s: float | None = None
    """Tokens of the curve over ``wall_s``."""
    lost_time_share: float | None = None
    """Share of ``wall_s`` outside steps of the curve: set-up, saving, evaluation, undone steps."""
    contradiction: str = ""
    """Why the times cannot all be true."""


def wall_clock(attempts: Sequence[AttemptRecord], steps: Mapping[str, NDArray[Any]], num_ranks: int) -> WallClock:
    """Wall-clock time and throughput of one run: the sum of ``attempt_time`` over its attempts.

    Steps of an attempt without a record leave all unknown.

    Args:
        attempts: every start of the run.
        steps: columns attempt, tokens and those of ``attempt_time``; by (attempt, step).
        num_ranks: of an attempt that measured none.

    30 s of two attempts, of which one step of 10 s and 50 tokens counts:

    >>> failed = AttemptRecord(1, 1, "7", "failed", started_at_s=100.0, ended_at_s=115.0, world_size=4)
    >>> again = AttemptRecord(1, 2, "7", "completed", started_at_s=200.0, ended_at_s=215.0)
    >>> columns = {"attempt": [1, 2], "step": [1, 1], "time_s": [112, 213], "step_time_s": [10, 10], "tokens": [50, 50]}
    >>> columns |= {"superseded": [True, False], "dead": [False, False]}
    >>> wall = wall_clock([failed, again], {name: np.array(column) for name, column in columns.items()}, 2)
    >>> wall.wall_s, wall.rank_s, wall.tokens_per_s, round(wall.lost_time_share, 3)
    (30.0, 90.0, 1.6666666666666667, 0.667)
    """
    bounds = attempt_bounds(steps["attempt"])
    places = {int(steps["attempt"][start]): slice(start, end) for start, end in pairwise(bounds.tolist())}
    if not attempts or set(places) - {attempt.attempt for attempt in attempts}:
        return WallClock()
    wall_s = rank_s = curve_s = 0.0
    for attempt in attempts:
        place = places.get(attempt.attempt, slice(0, 0))
        time = attempt_time(
            attempt.started_at_s, attempt.ended_at_s, {name: steps[name][place] for name in _STEP_COLUMNS}
        )
        if problem := _time_problem(time):
            return WallClock(contradiction=f"attempt {attempt.attempt} {problem}")
        wall_s += time.wall_s
        rank_s += time.wall_s * ranks_of(attempt.world_size, num_ranks)
        curve_s += time.curve_s
    if wall_s == 0:
        return WallClock(wall_s=0.0, rank_s=0.0)
    if not fits(curve_s, wall_s):
        text = f"its steps take {curve_s:,.4g} s and all attempts together {wall_s:,.4g} s"
        return WallClock(contradiction=f"{text}: the time stamps contradict each other")
    tokens = float(steps["tokens"][~steps["superseded"]].sum(dtype=float))
    return WallClock(wall_s, rank_s, tokens / wall_s, max(0.0, 1 - curve_s / wall_s))


def ranks_of(measured: int | None, planned: int) -> int:
    """Ranks of one attempt: as measured, where it came so far; a run may have gone on with other ones than it began with."""
    return measured if measured is not None and measured > 0 else planned


_STEP_COLUMNS = ("step", "time_s", "step_time_s", "superseded", "dead")
