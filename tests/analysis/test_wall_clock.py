"""Times of one attempt, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpctrain.analysis.wall_clock import attempt_time, fits


def columns(*rows: tuple[int, float, float], undone: int = 0, dead: int = 0) -> dict[str, NDArray[Any]]:
    """Steps as (step, time_s, step_time_s); the last ``undone`` were undone, the first ``dead`` had no update."""
    step, time_s, step_time_s = np.array(rows, dtype=float).reshape(-1, 3).T
    places = np.arange(len(step))
    return {
        "step": step.astype(int),
        "time_s": time_s,
        "step_time_s": step_time_s,
        "superseded": places >= len(step) - undone,
        "dead": places < dead,
    }


def test_an_attempt_by_hand() -> None:
    steps = columns((1, 112.0, 2.0), (2, 115.0, 3.0), (3, 121.0, 4.0), (4, 126.0, 5.0), undone=1, dead=2)
    time = attempt_time(100.0, 130.0, steps)
    assert (time.wall_s, time.end_is_recorded, time.num_steps, time.num_undone_steps) == (30.0, True, 4, 1)
    assert (time.steps_begin_s, time.steps_end_s) == (110.0, 126.0)
    assert (time.curve_s, time.undone_s, time.dead_s) == (9.0, 5.0, 5.0)


@pytest.mark.parametrize("value", [-3.0, 0.0, math.nan, math.inf], ids=str)
def test_a_step_time_that_is_none_adds_nothing(value: float) -> None:
    time = attempt_time(100.0, None, columns((1, 112.0, value), (2, 115.0, 3.0)))
    assert (time.curve_s, time.steps_begin_s, time.end_s, time.end_is_recorded) == (3.0, 112.0, 115.0, False)


def test_a_step_written_twice_counts_as_it_was_written_last() -> None:
    time = attempt_time(100.0, 120.0, columns((1, 112.0, 2.0), (1, 112.0, 2.5)))
    assert (time.num_steps, time.num_undone_steps, time.curve_s) == (1, 0, 2.5)


def test_steps_without_time_stamps_have_no_place_in_time() -> None:
    time = attempt_time(100.0, None, columns((1, math.nan, 2.0)))
    assert (time.wall_s, time.curve_s) == (0.0, 2.0)
    assert math.isnan(time.steps_begin_s)
    assert math.isnan(time.steps_end_s)


def test_no_step_is_no_time_in_steps() -> None:
    time = attempt_time(100.0, 130.0, columns())
    assert (time.wall_s, time.num_steps, time.curve_s, time.undone_s, time.dead_s) == (30.0, 0, 0.0, 0.0, 0.0)
    assert math.isnan(time.steps_begin_s)


@pytest.mark.parametrize(
    ("part_s", "whole_s", "expected"),
    [(10.1, 10.0, True), (10.102, 10.0, False), (0.001, 0.0, True), (0.002, 0.0, False), (0.0, -1.0, False)],
)
def test_a_part_may_be_one_percent_and_a_millisecond_longer(part_s: float, whole_s: float, expected: bool) -> None:
    assert fits(part_s, whole_s) is expected
