"""Plans whose memory a rehearsal decides: ``plan --rehearse``, and submissions with ``launch.rehearse=true``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpctrain.rehearse.judge import judged

if TYPE_CHECKING:
    from hpctrain.config.compose import Point
    from hpctrain.plan.run_plan import RunPlan
    from hpctrain.rehearse.result import Rehearsal

    Rehearsed = tuple[Point, RunPlan, Rehearsal | None]


def with_rehearsals(planned: Sequence[tuple[Point, RunPlan]], all_points: bool) -> list[Rehearsed]:
    """Each point with the memory of its quick rehearsal in the plan, and the rehearsal; None where there is none.

    Points that differ in nothing that the engine allocates share one. A plan that is wrong in itself is not rehearsed, and a
    launch check builds no engine.

    Args:
        planned: points and plans.
        all_points: not only those that ask for it with launch.rehearse.

    Raises:
        ConfigError: the engine refuses a configuration.
    """
    from hpctrain.cli_rehearse import quick_rehearsal

    known: dict[str, Rehearsal] = {}
    found: list[Rehearsed] = []
    for point, plan in planned:
        is_asked = all_points or point.config.launch.rehearse
        if not is_asked or plan.payload != "train" or plan.blocking_problems(force=True):
            found.append((point, plan, None))
            continue
        key = _key(plan)
        if key not in known:
            known[key] = quick_rehearsal(point, plan)
        found.append((point, judged(plan, known[key]), known[key]))
    return found


def _key(plan: RunPlan) -> str:
    """What the memory of a run depends on."""
    parts = (plan.model, plan.layout, plan.batch, plan.precision, plan.activation_checkpointing, plan.device)
    optimizer = {key: value for key, value in plan.ds_config["optimizer"]["params"].items() if isinstance(value, bool)}
    engine = json.dumps(plan.ds_config | {"optimizer": optimizer}, sort_keys=True)
    return repr((*parts, plan.offload_activations, engine))
