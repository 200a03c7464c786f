"""Changes of a plan whose form ``parallelism=auto`` chose: with each of them the form is chosen anew, as when it is typed.

The search has looked at every form on these nodes already, so a change is more nodes, or a value that it does not choose.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from hpctrain.config.schema import Config
from hpctrain.plan.changes.change import Change, change_of, overrides
from hpctrain.plan.changes.cheapest import NODES
from hpctrain.plan.changes.levers import ACCUMULATION, GLOBAL_BATCH, Values, with_values
from hpctrain.plan.changes.more_nodes import MOST_DOUBLINGS
from hpctrain.plan.changes.trials import Trials, has_room
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.search.candidate import OpenKeys
from hpctrain.plan.search.ranking import rank_choices

_MOST_SEARCHES = 4
"""For changes of what is stated: each takes a tenth of a second."""


def changes_chosen_anew(
    config: Config, refused: RunPlan, trials: Trials, found: Sequence[tuple[Change, Values]]
) -> list[Change]:
    """More nodes, at least the fewest, and those of the other changes that a search with them confirms.

    Args:
        config: of the refused plan, the keys that were chosen in ``run.chosen``.
        refused: by the rules alone.
        trials: of the same, which confirm whole plans.
        found: changes with which the form was kept, and their values.
    """
    anew = _Anew(config, trials)
    changes = []
    if config.cluster.kind != "local":
        known = [values["nodes"] for _, values in found if set(values) == {"nodes"}]
        changes += _more_nodes(config, refused, anew, min(known, default=None))
    of_what_is_stated = [
        (change, _with_the_same_batch(config, refused, values))
        for change, values in found
        if "nodes" not in values
        and not any(key in config.run.chosen and key.startswith("parallelism.") for key in values)
    ]
    for change, values in of_what_is_stated[:_MOST_SEARCHES]:
        plan = anew.plan(values)
        if plan is not None and has_room(plan.memory):
            unpriced = "" if change.gpu_hours_factor is not None else change.gap
            changes.append(change_of(overrides(config, values), change.kinds, refused, plan, unpriced))
    return changes


def _with_the_same_batch(config: Config, refused: RunPlan, values: Values) -> Values:
    """Held by the accumulation of the kept form; with another form it takes the global batch itself."""
    if ACCUMULATION not in values or ACCUMULATION not in config.run.chosen:
        return values
    others = {key: value for key, value in values.items() if key != ACCUMULATION}
    return others | {GLOBAL_BATCH: refused.batch.global_batch_size}


class _Anew:
    """Plans with other values, each form chosen for them."""

    def __init__(self, config: Config, trials: Trials) -> None:
        self._config, self._trials = config, trials
        self._known: dict[str, RunPlan | None] = {}
        self._refused = set[str]()

    def plan(self, values: Values) -> RunPlan | None:
        """None: no form fits."""
        key = repr(sorted(values.items()))
        if key not in self._known:
            self._known[key] = self._searched(values, key)
        return self._known[key]

    def is_beyond(self, values: Values) -> bool:
        """Whether a form fits there and the plan has a problem all the same: the site has no such nodes, or no more of them."""
        return self.plan(values) is None and repr(sorted(values.items())) in self._refused

    def _searched(self, values: Values, key: str) -> RunPlan | None:
        open_keys = frozenset(self._config.run.chosen) - values.keys()
        choices = rank_choices(with_values(self._config, values), OpenKeys(open_keys), limit=1).choices
        if not choices or not choices[0].fits:
            return None
        plan = self._trials.plan_of(choices[0].config)
        if plan is None:
            self._refused.add(key)
        return plan


def _more_nodes(config: Config, refused: RunPlan, anew: _Anew, known: int | None) -> list[Change]:
    """The fewest nodes with a tenth free, and twice as many, which may cost fewer GPU-hours.

    Args:
        config: of the refused plan.
        refused: by the rules alone.
        anew: plans of forms chosen anew.
        known: so many are enough with the form kept.
    """

    def has_headroom(nodes: int) -> bool:
        plan = anew.plan({"nodes": nodes})
        return plan is not None and plan.memory.fits_with_headroom

    low, high = config.nodes, known or 2 * config.nodes
    while not has_headroom(high):
        if anew.is_beyond({"nodes": high}):
            above = range(low + 1, high)
            high = low + bisect.bisect_left(above, True, key=lambda nodes: anew.is_beyond({"nodes": nodes}))
            if high == low or not has_headroom(high):
                return []
            break
        low, high = high, 2 * high
        if high > config.nodes << MOST_DOUBLINGS:
            return []
    counts = range(low + 1, high)
    fewest = bisect.bisect_left(counts, True, key=has_headroom) + low + 1
    changes = []
    for nodes in (fewest, 2 * fewest):
        plan = anew.plan({"nodes": nodes})
        if plan is not None and has_room(plan.memory):
            changes.append(change_of((f"nodes={nodes}",), (NODES,), refused, plan, ""))
    first, *others = changes
    return [first, *(each for each in others if _is_cheaper(each, first))]


def _is_cheaper(change: Change, other: Change) -> bool:
    """As far as both have a price."""
    price, of_other = change.gpu_hours_factor, other.gpu_hours_factor
    return price is not None and of_other is not None and price < of_other
