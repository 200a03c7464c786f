"""What ``plan`` prints: the plan and its cost, or the table of a sweep, as text or JSON.

The rooms of cost and sweep are imported only where they are asked for: a plain ``plan`` starts as fast as without them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.plan.cost import RunCost
    from hpctrain.plan.cost_options import CostOptions
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.plan.site_limits import Site
    from hpctrain.plan.sweep_table import SweepTable

    Planned = Sequence[tuple[Point, RunPlan]]


def take_cost_words(words: Sequence[str]) -> tuple[CostOptions | None, Sequence[str]]:
    """The cost options among the words of ``plan``, None where there are none, and the other words.

    Raises:
        ConfigError: as ``take_cost_options``.
    """
    if not any(word.startswith("--") for word in words):
        return None, words
    from hpctrain.plan.cost_options import CostOptions, take_cost_options

    options, rest = take_cost_options(words)
    return (None if options == CostOptions() else options), rest


def plan_text(
    planned: Planned, options: CostOptions | None, multirun: bool, force: bool, python: str, site: Site | None = None
) -> str:
    """The plan, and below it the cost where one was asked for; of a sweep the table and the batch script of each array.

    Args:
        planned: one point without ``multirun``.
        options: of ``take_cost_words``.
        multirun: a sweep, even if it has one point.
        force: points that are short of memory by the estimate only count as points that run.
        python: interpreter for the batch script.
        site: bounds a sweep's arrays; None: not asked.
    """
    if multirun:
        from hpctrain.plan.render_scripts import planned_sweep_scripts
        from hpctrain.plan.render_sweep import render_sweep

        scripts = planned_sweep_scripts([(point.config, plan) for point, plan in planned], python, site)
        texts = [f"\nbatch script {number}\n{text}" for number, text in enumerate(scripts)]
        return "".join([render_sweep(_table(planned, options, force)), *texts])
    from hpctrain.plan.render import render_plan

    text = render_plan(planned[0][1], python)
    if options is None:
        return text
    from hpctrain.plan.render_cost import render_cost

    return f"{text}\n{render_cost(*_cost(planned, options, force))}"


def plan_json(planned: Planned, options: CostOptions | None, multirun: bool, force: bool) -> str:
    """The same for machines: the plan with ``cost`` and ``cost_gap``; of a sweep all plans, each with its ``sweep_row``."""
    if not multirun and options is None:
        return planned[0][1].to_json()
    plans: list[dict[str, Any]] = [json.loads(plan.to_json()) for _, plan in planned]
    if multirun:
        for found, row in zip(plans, _table(planned, options, force).rows, strict=True):
            found["sweep_row"] = dataclasses.asdict(row)
        return json.dumps(plans, indent=2) + "\n"
    if options is not None:
        cost, gap = _cost(planned, options, force)
        plans[0] |= {"cost": cost and dataclasses.asdict(cost), "cost_gap": gap}
    return json.dumps(plans[0], indent=2) + "\n"


def _table(planned: Planned, options: CostOptions | None, force: bool) -> SweepTable:
    from hpctrain.plan.cost_options import CostOptions
    from hpctrain.plan.sweep_table import PlannedPoint, sweep_table

    points = [PlannedPoint(point.overrides, point.config, plan) for point, plan in planned]
    return sweep_table(points, options or CostOptions(), force)


def _cost(planned: Planned, options: CostOptions, force: bool) -> tuple[RunCost | None, str]:
    from hpctrain.plan.cost import run_cost

    ((point, plan),) = planned
    return run_cost(plan, point.config.hardware, options, force)
