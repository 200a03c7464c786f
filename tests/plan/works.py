"""What one rank of a configuration works on, for tests of the rules below the plan."""

from __future__ import annotations

from hpctrain.config.compose import compose_points
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.run_plan import build_run_plan, planned_work


def work_of(*words: str) -> RankWork:
    """As the plan of these overrides resolves it."""
    (point,) = compose_points(list(words), multirun=False)
    plan = build_run_plan(point.config, point.assumptions)
    return planned_work(point.config, plan)
