"""What one rank of a configuration works on, for tests of the rules below the plan."""

from __future__ import annotations

from hpctrain.config.compose import compose_points
from hpctrain.plan.memory.settings import resolved_work, with_tiers
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.run_plan import build_run_plan


def work_of(*words: str) -> RankWork:
    """As the plan of these overrides resolves it."""
    (point,) = compose_points(list(words), multirun=False)
    plan = build_run_plan(point.config, point.assumptions)
    config, _ = with_tiers(point.config, plan.model, plan.layout)
    return resolved_work(config, plan.model, plan.layout, plan.batch, plan.precision, plan.activation_checkpointing)
