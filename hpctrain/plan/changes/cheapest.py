"""The cheapest changes with which a plan that is short of memory fits: single ones, more nodes, and two or more at once.

Each is found by the planner's own memory rules and confirmed by a whole plan without a problem. Its price is the predicted step:
GPU-hours for the same tokens against those of the refused plan. Without a prediction the least invasive comes first.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from hpctrain.config.schema import Config
from hpctrain.plan.changes.change import Change, Changes, change_of, overrides
from hpctrain.plan.changes.levers import (
    ACCUMULATION,
    CHECKPOINTING,
    MICRO,
    PIPELINE_KIND,
    STAGE,
    STAGE_KIND,
    Lever,
    Values,
    levers,
    with_values,
)
from hpctrain.plan.changes.more_nodes import fewest_nodes, some_counts
from hpctrain.plan.changes.trials import BARELY, HEADROOM, Trials
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.search.plainness import NOISE
from hpctrain.plan.site.limits import Site

NUM_CHANGES = 3
NODES = "more nodes"
_MORE_NODES = Lever(NODES, ())
"""Its settings are found one by one."""
_ALIKE = 0.1
"""Prices as near as this are equal. A choice, twice ``NOISE``: what is some per cent cheaper is not worth more nodes or words."""
_DEAR = 5.0
"""Times the price of the cheapest; what costs more is told only where nothing else keeps the number of nodes."""


def is_short_of_memory(plan: RunPlan) -> bool:
    """Whether a tier of the plan is what keeps it from running; what a site told may stand beside it."""
    kinds = {problem.kind for problem in plan.problems}
    is_of_plan = bool(plan.memory.problems()) or any(problem.key == "memory.nvme" for problem in plan.problems)
    return "memory" in kinds and "config" not in kinds and is_of_plan


def cheapest_changes(
    config: Config, plan: RunPlan, site: Site | None = None, limit: int = NUM_CHANGES, typed: Collection[str] = ()
) -> Changes:
    """The cheapest changes, each of another kind, one of them on as many nodes as there are where there is such a one.

    Args:
        config: what the plan was built from.
        plan: refused; one that is not short of memory, or has other problems too, gets no changes.
        site: bounds the number of nodes; None: not asked.
        limit: changes at most.
        typed: keys that the command line states, see ``overrides``.
    """
    if not is_short_of_memory(plan):
        return Changes((), 0)
    search = _Search(config, plan, site, typed)
    found = search.all_changes(limit)
    # A choice that a run folder keeps is typed no more: it stays, whatever is changed.
    is_open = plan.choice is not None and any(key.startswith("parallelism.") for key in config.run.chosen)
    if is_open:
        found = search.chosen_anew(found)
    is_rehearsed = plan.memory.found_by == "rehearsal"
    return Changes(_offered(found, limit), search.trials.num_looks, is_rehearsed, is_form_open=is_open)


def _offered(found: Sequence[Change], limit: int) -> tuple[Change, ...]:
    """The first, but of those on as many nodes as there are at least one, since not everybody gets more; by price."""
    worth = [change for change in found if not _is_priced(change) or _price(change) <= _DEAR * _price(found[0])]
    offered = list(worth[:limit])
    if offered and all(NODES in change.kinds for change in offered):
        on_as_many = [change for change in found if NODES not in change.kinds]
        offered = [*offered[: limit - 1], *on_as_many[:1]] if on_as_many else offered
    return tuple(sorted(offered, key=lambda change: (change.gpu_hours_factor is None, _price(change))))


class _Search:
    """One refused plan."""

    def __init__(self, config: Config, plan: RunPlan, site: Site | None, typed: Collection[str]) -> None:
        self._typed = typed
        batch = (MICRO, ACCUMULATION) if MICRO in config.run.chosen else ()
        chosen = {key: None for key in config.run.chosen if key in (*batch, CHECKPOINTING)}
        self._config = with_values(config, chosen)  # the plan may choose them anew
        self.trials = Trials(self._config, plan, site)
        self._refused = self.trials.refused
        self._levers = [lever for lever in map(self._legal, levers(self._config, self._refused)) if lever.settings]
        self._order = {lever.kind: place for place, lever in enumerate(self._levers)} | {NODES: len(self._levers)}
        self._found: list[Change] = []
        self._values: dict[tuple[str, ...], Values] = {}

    def all_changes(self, limit: int) -> list[Change]:
        """Single ones, each with more nodes, two at once; only where there are fewer than wanted, as many as it takes."""
        weak = [self._not_enough(lever) for lever in self._levers]
        helping = self._helping([lever for lever in weak if lever.settings])
        fewest = fewest_nodes(self._config, self.trials, {})
        if fewest is not None:
            self._add((_MORE_NODES,), {"nodes": fewest})
        for lever in helping:
            self._with_nodes(lever, fewest)
        for lever, rest in zip(self._levers, weak, strict=True):
            if len(rest.settings) < len(lever.settings):
                self._on_some_more(lever, lever.settings[len(rest.settings)], fewest)
        for first, second in itertools.combinations(helping, 2):
            if not self.trials.is_spent:
                self._pair(first, second)
        if len(self._found) < limit:
            self._stack(
                [lever for lever, rest in zip(self._levers, weak, strict=True) if rest.settings == lever.settings]
            )
        return self._ranked(self._needed())

    def chosen_anew(self, found: Sequence[Change]) -> list[Change]:
        """The same questions with the form left open, the cheapest first."""
        from hpctrain.plan.changes.chosen_anew import changes_chosen_anew  # takes numpy

        with_values_of = [(change, self._values[change.overrides]) for change in found]
        return self._ranked(changes_chosen_anew(self._config, self._refused, self.trials, with_values_of))

    def _needed(self) -> list[Change]:
        """One of each kind, without those of which a part is enough and costs no more, as far as predictions tell."""
        needed, of_kinds = list[Change](), dict[tuple[str, ...], list[Change]]()
        for change in self._found:
            of_kinds.setdefault(change.kinds, []).append(change)
        found = map(_mildest_of_the_cheapest, of_kinds.values())
        for change in sorted(found, key=lambda each: (len(each.kinds), len(self._values[each.overrides]))):
            if not any(self._is_part(other, change) and _costs_no_more(other, change) for other in needed):
                needed.append(change)
        return needed

    def _is_part(self, change: Change, of: Change) -> bool:
        """Without prices only of the same values, since of another number nobody knows which is the better."""
        values, all_values = self._values[change.overrides], self._values[of.overrides]
        if NODES in change.kinds and NODES in of.kinds and change.num_nodes <= (1 + _ALIKE) * of.num_nodes:
            values = values | {"nodes": of.num_nodes}  # as many, as far as that matters
        is_within = values.items() < all_values.items()
        return is_within or (_is_priced(of) and set(change.kinds) < set(of.kinds))

    def _ranked(self, found: Sequence[Change]) -> list[Change]:
        """The cheapest first; of those that cost the same what takes fewest nodes, then fewest changes, and touches least.

        Last what takes twice the nodes of another and costs no less. Without a price nodes are no matter.
        """
        cheapest = min((_price(change) for change in found if _is_priced(change)), default=1.0)

        def key(change: Change) -> tuple[bool, bool, int, int, int, int]:
            step = int(math.log(_price(change) / cheapest) / math.log1p(_ALIKE))
            places = sum(self._order[kind] for kind in change.kinds)
            takes_twice = any(_takes_half(other, change) for other in found)
            nodes = change.num_nodes if _is_priced(change) else 0
            return not _is_priced(change), takes_twice, step, nodes, len(change.kinds), places

        return sorted(found, key=key)

    def _legal(self, lever: Lever) -> Lever:
        """The same with the settings that break no rule."""
        return replace(lever, settings=tuple(filter(self.trials.keeps_rules, lever.settings)))

    def _not_enough(self, lever: Lever) -> Lever:
        """Adds the mildest setting that fits; the lever with those that do not.

        A stronger one may be the faster: a higher stage, or one that lets the plan choose a larger micro batch or recompute less.
        """
        place = self._mildest(lever.settings)
        if place is None or not self._add((lever,), lever.settings[place]):
            return lever
        is_open = None in (self._config.training.micro_batch_size, self._config.training.activation_checkpointing)
        for values in lever.settings[place + 1 :] if is_open or lever.kind == STAGE_KIND else ():
            self._add((lever,), values)
        return replace(lever, settings=lever.settings[:place])

    def _helping(self, failing: Sequence[Lever]) -> list[Lever]:
        """Those after which less lacks where it lacks, the strongest first; that they may need another tier shows later."""
        base = {tier for tier, lacking in self.trials.short_by_tier({}).items() if lacking}

        def left(values: Values) -> int:
            return sum(lacking for tier, lacking in self.trials.short_by_tier(values).items() if tier in base)

        now = left({})
        return sorted(
            (lever for lever in failing if left(lever.settings[-1]) < now), key=lambda lever: left(lever.settings[-1])
        )

    def _mildest(self, settings: Sequence[Values]) -> int | None:
        """Place of the first that fits, with a tenth free where the strongest has that; later ones need less. None: none fits."""
        if not settings or self.trials.is_spent or self.trials.short_bytes(settings[-1]):
            return None
        headroom = BARELY if self.trials.short_bytes(settings[-1], HEADROOM) else HEADROOM

        def fits(place: int) -> bool:
            return not self.trials.short_bytes(settings[place], headroom)

        return bisect.bisect_left(range(len(settings) - 1), True, key=fits)

    def _add(self, of: Sequence[Lever], values: Values) -> bool:
        """Whether the whole plan has no problem with them; then they are a change."""
        words = overrides(self._config, values, self._typed)
        if words in self._values:
            return True
        plan = self.trials.plan(values)
        if plan is None:
            return False
        unpriced = "; ".join(lever.unpriced for lever in of if lever.unpriced)
        kinds = tuple(lever.kind for lever in of)
        self._values[words] = values
        self._found.append(change_of(words, kinds, self._refused, plan, unpriced))
        return True

    def _with_nodes(self, lever: Lever, below: int | None) -> None:
        """Adds the cheapest setting that needs fewer nodes than there are without it; a milder one needs more than a stronger."""
        found = list[Values]()
        for values in reversed(lever.settings):
            nodes = fewest_nodes(self._config, self.trials, values, below)
            if nodes is None:
                break
            found.append(values | {"nodes": nodes})
        self._add_cheapest((lever, _MORE_NODES), found)

    def _on_some_more(self, lever: Lever, values: Values, below: int | None) -> None:
        """Adds what is enough alone, and dear, on a few larger numbers of nodes, where it may be cheaper."""
        alone = [_price(change) for change in self._found if change.kinds == (lever.kind,)]
        if max(alone, default=0.0) <= 1 + _ALIKE:
            return
        for nodes in some_counts(self._config, below):
            both = values | {"nodes": nodes}
            if self.trials.keeps_rules(both):
                self._add((lever, _MORE_NODES), both)

    def _pair(self, first: Lever, second: Lever) -> None:
        """Adds the cheapest of all that are as mild as can be: with each setting of one the mildest of the other."""
        strongest = self._merged_settings(first.settings[-1:], second.settings[-1])
        if not strongest or self.trials.short_bytes(strongest[0]):
            return
        found = list[Values]()
        for values in first.settings:
            both = self._merged_settings(second.settings, values)
            place = self._mildest(both)
            if place is not None:
                found.append(both[place])
        self._add_cheapest((first, second), found)

    def _add_cheapest(self, of: Sequence[Lever], found: Sequence[Values]) -> None:
        """Adds the first that is a change, by the price of what the look saw."""
        for values in sorted(found, key=self.trials.token_gpu_s):
            if self._add(of, values):
                return

    def _merged_settings(self, settings: Sequence[Values], other: Values) -> list[Values]:
        """Each setting together with the other values, where they go together."""
        merged = (self._merged(other, values) for values in settings)
        return [both for both in merged if both is not None and self.trials.keeps_rules(both)]

    def _stack(self, failing: Sequence[Lever]) -> None:
        """As many levers as it takes, those too that help only after others; where all are not enough, on more nodes.

        A pipeline goes with stage 1 alone, and so stands in the way of other levers: first without it.
        """
        alone = [lever for lever in failing if lever.kind != PIPELINE_KIND]
        for pool in (alone, failing) if len(alone) < len(failing) else (alone,):
            stacked, values = self._grown(pool)
            if not stacked:
                continue
            if self.trials.short_bytes(values):
                nodes = fewest_nodes(self._config, self.trials, values)
                if nodes is not None and self._add((*stacked, _MORE_NODES), values | {"nodes": nodes}):
                    return
            elif self._add(*self._pruned(stacked, values)):
                return

    def _grown(self, pool: Sequence[Lever]) -> tuple[list[Lever], Values]:
        """The lever after which least lacks, and again upon it; which ones, and their values."""
        stacked, values, short = list[Lever](), Values(), self.trials.short_bytes({})
        while short and not self.trials.is_spent:
            rest = [lever for lever in pool if lever not in stacked]
            merged = {lever.kind: self._merged_settings(lever.settings[-1:], values) for lever in rest}
            left = {kind: self.trials.short_bytes(both[0]) for kind, both in merged.items() if both}
            best = min(left, key=lambda kind: left[kind], default=None)
            if best is None or left[best] >= short:
                break
            stacked += [lever for lever in rest if lever.kind == best]
            values, short = merged[best][0], left[best]
        return stacked, values

    def _pruned(self, stacked: list[Lever], values: Values) -> tuple[list[Lever], Values]:
        """Without the levers that turned out needless."""
        for lever in tuple(stacked):
            others = [other for other in stacked if other is not lever]
            fewer = self._all_merged(others)
            if fewer is not None and not self.trials.short_bytes(fewer):
                stacked, values = others, fewer
        return stacked, values

    def _all_merged(self, of: Sequence[Lever]) -> Values | None:
        """All at their strongest; None: some contradict each other."""
        values = Values()
        for lever in of:
            merged = self._merged_settings(lever.settings[-1:], values)
            if not merged:
                return None
            values = merged[0]
        return values

    def _merged(self, first: Values, second: Values) -> Values | None:
        """Both; None: they contradict each other."""
        merged = first | second
        for key in first.keys() & second.keys():
            if key == STAGE:
                merged[key] = max(first[key], second[key])
            elif key == ACCUMULATION:
                merged[key] = first[key] * second[key] // self._refused.batch.gradient_accumulation_steps
            elif first[key] != second[key]:
                return None
        return merged


def _is_priced(change: Change) -> bool:
    return change.gpu_hours_factor is not None


def _price(change: Change) -> float:
    """GPU-hours against those of the refused plan, a tenth dearer where less than a tenth stays free; 1: not known."""
    return (change.gpu_hours_factor or 1.0) * (1.0 if change.has_headroom else 1.0 + HEADROOM)


def _mildest_of_the_cheapest(changes: Sequence[Change]) -> Change:
    """The first of a kind with that speed, or nearly so."""
    cheapest = min(map(_price, changes))
    return next(change for change in changes if _price(change) <= (1 + NOISE) * cheapest)


def _takes_half(change: Change, other: Change) -> bool:
    """Whether it costs no more on half of the nodes or less, and changes no more beside them."""
    is_smaller = 2 * change.num_nodes <= other.num_nodes and len(change.kinds) <= len(other.kinds)
    return is_smaller and _is_priced(change) and _costs_no_more(change, other)


def _costs_no_more(change: Change, other: Change) -> bool:
    """As far as predictions tell; what has no price costs as much as what has none."""
    if not _is_priced(change) or not _is_priced(other):
        return _is_priced(change) or not _is_priced(other)
    return _price(change) <= (1 + _ALIKE) * _price(other)
