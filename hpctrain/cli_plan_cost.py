"""What ``plan`` prints: the plan and its cost, or the table of a sweep, as text or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.plan.cost_options import CostOptions
    from hpctrain.plan.sweep_table import PlannedPoint


def plan_text(points: Sequence[PlannedPoint], options: CostOptions, multirun: bool, force: bool, python: str) -> str:
    """The plan, and below it the cost where one was asked for; of a sweep the table.

    Args:
        points: one without ``multirun``.
        options: what was asked about cost.
        multirun: a sweep, even if it has one point.
        force: points that are short of memory by the estimate only count as points that run.
        python: interpreter for the batch script.
    """
    if multirun:
        from hpctrain.plan.render_sweep import render_sweep
        from hpctrain.plan.sweep_table import sweep_table

        return render_sweep(sweep_table(points, options, force))
    from hpctrain.plan.render import render_plan

    (point,) = points
    text = render_plan(point.plan, python)
    if not options.is_asked:
        return text
    from hpctrain.plan.cost import run_cost
    from hpctrain.plan.render_cost import render_cost

    return f"{text}\n{render_cost(*run_cost(point.plan, point.config.hardware, options, force))}"


def plan_json(points: Sequence[PlannedPoint], options: CostOptions, multirun: bool, force: bool) -> str:
    """The same for machines: the plan with ``cost`` and ``cost_gap`` where asked; of a sweep all plans, each with ``sweep_row``."""
    plans: list[dict[str, Any]] = [json.loads(point.plan.to_json()) for point in points]
    if multirun:
        from hpctrain.plan.sweep_table import sweep_table

        for plan, row in zip(plans, sweep_table(points, options, force).rows, strict=True):
            plan["sweep_row"] = dataclasses.asdict(row)
        return json.dumps(plans, indent=2) + "\n"
    if options.is_asked:
        from hpctrain.plan.cost import run_cost

        cost, gap = run_cost(points[0].plan, points[0].config.hardware, options, force)
        plans[0] |= {"cost": cost and dataclasses.asdict(cost), "cost_gap": gap}
    return json.dumps(plans[0], indent=2) + "\n"
