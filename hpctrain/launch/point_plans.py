"""Points to plans, for every verb: what is open in a point is chosen first, so that what is frozen has nothing left to choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpctrain.config.compose import Point
from hpctrain.launch.calibrations import NOTHING_SAID, CalibrationWords, with_calibrations
from hpctrain.plan.run_plan import RunPlan, build_run_plan

if TYPE_CHECKING:
    from hpctrain.plan.auto.alternatives import AutoChoice
    from hpctrain.plan.auto.choice import Found


def plan_points(
    points: Iterable[Point], calibration_words: CalibrationWords = NOTHING_SAID
) -> list[tuple[Point, RunPlan]]:
    """Each point with nothing open, and its plan; points that differ in nothing a choice depends on share one search.

    Args:
        points: as composed.
        calibration_words: what the command line says of the calibration of predicted steps.
    """
    known: dict[str, Found] = {}
    planned = []
    for point in with_calibrations(points, calibration_words):
        closed, choice = _closed(point, known)
        plan = build_run_plan(closed.config, closed.assumptions)
        planned.append((closed, dataclasses.replace(plan, choice=choice) if choice else plan))
    return planned


def plan_point(point: Point) -> tuple[Point, RunPlan]:
    """The same for one, without a calibration: a rehearsal holds what it measures against the constants."""
    (planned,) = plan_points([point], CalibrationWords(is_left_out=True))
    return planned


def closed_points(points: Iterable[Point]) -> list[Point]:
    """Each point with nothing open; what was chosen is among its assumptions, and the keys in ``run.chosen``."""
    known: dict[str, Found] = {}
    return [_closed(point, known)[0] for point in points]


def _closed(point: Point, known: dict[str, Found]) -> tuple[Point, AutoChoice | None]:
    if not point.is_open:
        return point, None
    from hpctrain.plan.auto.choice import closed_config, find_values, search_subject

    subject = search_subject(point.config)
    key = repr((subject, point.open_keys))
    if key not in known:
        known[key] = find_values(subject, point.open_keys)
    found = known[key]
    config = closed_config(point.config, found)
    assumptions = (*point.assumptions, *found.notes)
    return dataclasses.replace(point, config=config, assumptions=assumptions, open_keys=()), found.choice
