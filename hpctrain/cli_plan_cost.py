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
    from hpctrain.plan.changes.change import Changes
    from hpctrain.plan.cost.cost import RunCost
    from hpctrain.plan.cost.options import CostOptions
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.plan.site.limits import Site
    from hpctrain.plan.sweep.table import SweepTable

    Planned = Sequence[tuple[Point, RunPlan]]


def take_cost_words(words: Sequence[str]) -> tuple[CostOptions | None, Sequence[str]]:
    """The cost options among the words of ``plan``, None where there are none, and the other words.

    Raises:
        ConfigError: as ``take_cost_options``.
    """
    if not any(word.startswith("--") for word in words):
        return None, words
    from hpctrain.plan.cost.options import CostOptions, take_cost_options

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
        site: bounds a sweep's arrays, and the nodes of changes; None: not asked.
    """
    if multirun:
        from hpctrain.cli_runs import terminal_width
        from hpctrain.plan.render.scripts import planned_sweep_scripts
        from hpctrain.plan.render.sweep import render_sweep

        scripts = planned_sweep_scripts([(point.config, plan) for point, plan in planned], python, site)
        texts = [f"\nbatch script {number}\n{text}" for number, text in enumerate(scripts)]
        return "".join([render_sweep(_table(planned, options, force), terminal_width()), *texts])
    from hpctrain.plan.render.plan import render_plan

    plan, changes = _with_changes(*planned[0], site)
    width = None
    if plan.choice is not None:  # alone it has a wide table
        from hpctrain.cli_runs import terminal_width

        width = terminal_width()
    text = render_plan(plan, python, width)
    if changes is not None:
        from hpctrain.plan.changes.render import render_changes

        text += f"\n{render_changes(changes)}\n"
    if options is None:
        return text
    from hpctrain.plan.render.cost import render_cost

    return f"{text}\n{render_cost(*_cost(planned, options, force))}"


def plan_json(
    planned: Planned, options: CostOptions | None, multirun: bool, force: bool, site: Site | None = None
) -> str:
    """The same for machines: the plan with ``cost`` and ``cost_gap``; of a sweep all plans, each with its ``sweep_row``.

    A plan that stands alone and is short of memory has its ``changes``.
    """
    changes: Changes | None = None
    if not multirun:
        plan, changes = _with_changes(*planned[0], site)
        planned = [(planned[0][0], plan)]
        if options is None and changes is None:
            return plan.to_json()
    plans: list[dict[str, Any]] = [json.loads(plan.to_json()) for _, plan in planned]
    if changes is not None:
        plans[0] |= {"changes": [dataclasses.asdict(change) for change in changes.changes]}
    if multirun:
        for found, row in zip(plans, _table(planned, options, force).rows, strict=True):
            found["sweep_row"] = dataclasses.asdict(row)
        return json.dumps(plans, indent=2) + "\n"
    if options is not None:
        cost, gap = _cost(planned, options, force)
        plans[0] |= {"cost": cost and dataclasses.asdict(cost), "cost_gap": gap}
    return json.dumps(plans[0], indent=2) + "\n"


def cost_is_told(planned: Planned, options: CostOptions | None, force: bool) -> bool:
    """Whether what was asked of the cost is answered, of a sweep for a point at least; what lacks for it was printed."""
    if options is None or not options.is_asked:
        return True
    return any(_cost([one], options, force)[0] is not None for one in planned)


def _with_changes(point: Point, plan: RunPlan, site: Site | None) -> tuple[RunPlan, Changes | None]:
    """See ``changes.render.with_changes``, which is loaded only for a plan that is short of memory."""
    if not any(problem.kind == "memory" for problem in plan.problems):
        return plan, None
    from hpctrain.plan.changes.render import with_changes

    return with_changes(point.config, plan, site, point.overrides)


def _table(planned: Planned, options: CostOptions | None, force: bool) -> SweepTable:
    from hpctrain.plan.cost.options import CostOptions
    from hpctrain.plan.sweep.table import PlannedPoint, sweep_table

    points = [PlannedPoint(point.overrides, point.config, plan) for point, plan in planned]
    return sweep_table(points, options or CostOptions(), force)


def _cost(planned: Planned, options: CostOptions, force: bool) -> tuple[RunCost | None, str]:
    from hpctrain.plan.cost.cost import run_cost

    ((point, plan),) = planned
    return run_cost(plan, point.config.hardware, options, force)
