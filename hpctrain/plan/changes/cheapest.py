"""The cheapest changes with which a plan that is short of memory fits: single ones, more nodes, and two or more at once.

Each is found by the planner's own memory rules and confirmed by a whole plan without a problem. Its price is the predicted step:
GPU-hours for the same tokens against those of the refused plan. Without a prediction the least invasive comes first.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpctrain.config.schema import Config
from hpctrain.plan.auto.form_name import form_words
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
from hpctrain.plan.changes.trials import HEADROOM, Trials
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.site.limits import Site

NUM_CHANGES = 3
_MOST_DOUBLINGS = 6
"""Of the number of nodes: 64 times as many."""
_NEAR = 64
"""The number of nodes is found to one part in so many."""
_MORE_PAIRS = 2
"""Pairs beyond those that are wanted: some of them are cheaper."""
_PAIRS_IN_VAIN = 10
"""So many pairs that do not fit, one after the other, are the last: the strongest come first."""
_DEAR = 2.0
"""Times the GPU-hours of the refused plan."""
NODES = "more nodes"
_BESIDE_THE_FORM = ("parallelism.pin_memory", "parallelism.sub_group_size")
"""Keys of ``parallelism`` that no shipped form states."""


@dataclass(frozen=True)
class Change:
    """Values with which the plan has no problem any more."""

    overrides: tuple[str, ...]
    """As they are typed."""
    kinds: tuple[str, ...]
    """What is changed, in words."""
    gpu_free_bytes: int | None
    """Of a GPU; None: not stated by the hardware, or there is none."""
    host_free_bytes_per_node: int | None
    host_bytes_per_node: int
    """What the run takes of it."""
    has_headroom: bool
    """A tenth of each tier stays free."""
    step_time_s: float | None
    tokens_per_s: float | None
    gpu_hours_factor: float | None
    """GPU-hours for the same tokens over those of the refused plan, both predicted; None: one of them is not, see ``gap``."""
    speed_factor: float | None
    """Tokens/s over those of the refused plan."""
    gap: str
    """Why there is no price."""
    micro_batch_size: int
    global_batch_size: int
    holds_global_batch: bool


@dataclass(frozen=True)
class Changes:
    """The answer to a refusal."""

    changes: tuple[Change, ...]
    """The cheapest first; empty: none of those that were looked at makes it fit."""
    num_looks: int
    """Estimates and plans that were made."""
    after_rehearsal: bool = False
    """The refusal is a rehearsal's, the changes are the rules', with what the rehearsal found beyond them added."""
    is_form_open: bool = False
    """``parallelism=auto`` chose the form for this plan; what is told of a change is of the form that it chooses with it."""


def is_short_of_memory(plan: RunPlan) -> bool:
    """Whether a tier of the plan is what keeps it from running; what a site told may stand beside it."""
    kinds = {problem.kind for problem in plan.problems}
    is_of_plan = bool(plan.memory.problems()) or any(problem.key == "memory.nvme" for problem in plan.problems)
    return "memory" in kinds and "config" not in kinds and is_of_plan


def cheapest_changes(config: Config, plan: RunPlan, site: Site | None = None, limit: int = NUM_CHANGES) -> Changes:
    """The cheapest changes, each of another kind.

    Args:
        config: what the plan was built from.
        plan: refused; one that is not short of memory, or has other problems too, gets no changes.
        site: bounds the number of nodes; None: not asked.
        limit: changes at most.
    """
    if not is_short_of_memory(plan):
        return Changes((), 0)
    search = _Search(config, plan, site)
    found = search.all_changes(limit)
    # A choice that a run folder keeps is typed no more: it stays, whatever is changed.
    is_open = plan.choice is not None and any(key.startswith("parallelism.") for key in config.run.chosen)
    if is_open:
        found = search.chosen_anew(found)
    is_rehearsed = plan.memory.found_by == "rehearsal"
    return Changes(tuple(found[:limit]), search.trials.num_looks, is_rehearsed, is_form_open=is_open)


class _Search:
    """One refused plan."""

    def __init__(self, config: Config, plan: RunPlan, site: Site | None) -> None:
        chosen = {key: None for key in config.run.chosen if key in (MICRO, ACCUMULATION, CHECKPOINTING)}
        self._config = with_values(config, chosen)  # the plan may choose them anew
        self.trials = Trials(self._config, plan, site)
        self._refused = self.trials.refused
        self._levers = [lever for lever in map(self._legal, levers(self._config, self._refused)) if lever.settings]
        self._order = {lever.kind: place for place, lever in enumerate(self._levers)} | {NODES: len(self._levers)}
        self._found: list[Change] = []
        self._values: dict[tuple[str, ...], Values] = {}

    def all_changes(self, limit: int) -> list[Change]:
        """Single ones; only where there are fewer than wanted, two at once, then as many as it takes."""
        base = self.trials.short_bytes({})
        failing, of_higher_stage = self._singles()
        helping = self._helping(failing)
        fewest = self._nodes({}, (), base)
        for lever in of_higher_stage:
            if len(self._found) < limit:
                self._single(lever)
        if len(self._found) < limit:
            self._pairs(helping, limit)
        for lever in helping:
            if self._num_not_dear() < limit:
                strongest = lever.settings[-1]
                self._nodes(strongest, (lever,), self.trials.short_bytes(strongest), fewest)
        if len(self._found) < limit:
            self._stack(base, failing)
        return [change for change in sorted(self._found, key=self._rank) if not self._is_needless(change)]

    def _num_not_dear(self) -> int:
        """Those that are worth their price, as far as it is known; where there are few, more nodes may be."""
        return sum((change.gpu_hours_factor or 0.0) <= _DEAR for change in self._found)

    def chosen_anew(self, found: Sequence[Change]) -> list[Change]:
        """The same questions with the form left open, the cheapest first."""
        from hpctrain.plan.changes.chosen_anew import changes_chosen_anew  # takes numpy

        with_values_of = [(change, self._values[change.overrides]) for change in found]
        return sorted(changes_chosen_anew(self._config, self._refused, self.trials, with_values_of), key=self._rank)

    def _is_needless(self, change: Change) -> bool:
        """Whether a part of it is a change too, and costs no more."""
        overrides, price = set(change.overrides), change.gpu_hours_factor
        return any(
            set(other.overrides) < overrides
            and (price is None or round(other.gpu_hours_factor or 0, 2) <= round(price, 2))
            for other in self._found
        )

    def _rank(self, change: Change) -> tuple[bool, float, int]:
        """By price in whole per cent, a tenth dearer where less than a tenth stays free; then what touches least."""
        price = change.gpu_hours_factor
        places = sum(self._order[kind] for kind in change.kinds)
        return price is None, round((price or 1.0) * (1.0 if change.has_headroom else 1.0 + HEADROOM), 2), places

    def _legal(self, lever: Lever) -> Lever:
        """The same with the settings that break no rule."""
        return replace(lever, settings=tuple(filter(self.trials.keeps_rules, lever.settings)))

    def _singles(self) -> tuple[list[Lever], list[Lever]]:
        """Adds those that fit; the levers that are not enough, and those of a higher stage where that alone is enough."""
        failing, of_higher_stage = list[Lever](), list[Lever]()
        stage_fits = False
        for lever in self._levers:
            settings = tuple(values for values in lever.settings if not (stage_fits and STAGE in values))
            if not settings:
                of_higher_stage.append(lever)
            elif not self._single(replace(lever, settings=settings)):
                failing.append(lever)
            elif lever.kind == STAGE_KIND:
                stage_fits = True
        return failing, of_higher_stage

    def _single(self, lever: Lever) -> bool:
        place = None if self.trials.is_spent else self._mildest(lever.settings)
        return place is not None and self._add((lever,), lever.settings[place])

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
        if not settings or self.trials.short_bytes(settings[-1]):
            return None
        headroom = 0.0 if self.trials.short_bytes(settings[-1], HEADROOM) else HEADROOM

        def fits(place: int) -> bool:
            return not self.trials.short_bytes(settings[place], headroom)

        return bisect.bisect_left(range(len(settings) - 1), True, key=fits)

    def _add(self, of: Sequence[Lever], values: Values) -> bool:
        """Whether the whole plan has no problem with them; then they are a change."""
        plan = self.trials.plan(values)
        if plan is None:
            return False
        unpriced = "; ".join(lever.unpriced for lever in of if lever.unpriced)
        kinds = tuple(lever.kind for lever in of)
        words = overrides(self._config, values)
        self._values[words] = values
        self._found.append(change_of(words, kinds, self._refused, plan, unpriced))
        return True

    def _nodes(self, others: Values, of: Sequence[Lever], short: int, below: int | None = None) -> int | None:
        """Adds the fewest nodes that are enough, beside other values, and returns their number.

        Twice as many till it fits with a tenth free, then the fewest between. None: so many are not found, or they would not
        be fewer than ``below``. Only counts over which ranks and batch can be spread.
        """
        if self._config.cluster.kind == "local":
            return None
        fitting, low = list[Values](), self._config.nodes
        for _ in range(_MOST_DOUBLINGS):
            most = 2 * low if below is None else min(2 * low, below - 1)
            step = max(1, low // _NEAR)
            counts = [others | {"nodes": count} for count in range(low + step, most + 1, step)]
            counts = [values for values in counts if self.trials.keeps_rules(values)]
            if not counts or self.trials.is_spent:
                break
            before, short = short, self.trials.short_bytes(counts[-1])
            fitting += [] if short and not fitting else counts
            if not self.trials.short_bytes(counts[-1], HEADROOM):
                break
            if 2 * short > before:
                break  # what ranks share is halved each time: even without it something lacks
            low = most
        place = self._mildest(fitting)
        if place is None or not self._add((*of, Lever(NODES, (fitting[place],))), fitting[place]):
            return None
        return int(fitting[place]["nodes"])

    def _pairs(self, helping: Sequence[Lever], limit: int) -> None:
        """Levers that help and are not enough, the strongest first, while some pair fits now and then."""
        in_vain = 0
        for first, second in itertools.combinations(helping, 2):
            if len(self._found) >= limit + _MORE_PAIRS or self.trials.is_spent or in_vain == _PAIRS_IN_VAIN:
                return
            in_vain = 0 if self._pair(first, second) else in_vain + 1

    def _pair(self, first: Lever, second: Lever) -> bool:
        """Both at their strongest, then each as mild as the other allows; whether that is a change."""
        of_first = self._merged_settings(first.settings, second.settings[-1])
        place = self._mildest([merged for _, merged in of_first])
        if place is None:
            return False
        of_second = self._merged_settings(second.settings, of_first[place][0])
        other = self._mildest([merged for _, merged in of_second])
        return self._add((first, second), of_first[place][1] if other is None else of_second[other][1])

    def _merged_settings(self, settings: Sequence[Values], other: Values) -> list[tuple[Values, Values]]:
        """Each setting that goes with the other values, and both together."""
        pairs = [(values, self._merged(values, other)) for values in settings]
        return [(values, both) for values, both in pairs if both is not None and self.trials.keeps_rules(both)]

    def _stack(self, base: int, failing: Sequence[Lever]) -> None:
        """As many levers as it takes, those too that help only after others; where all are not enough, on more nodes.

        A pipeline goes with stage 1 alone, and so stands in the way of other levers: first without it.
        """
        alone = [lever for lever in failing if lever.kind != PIPELINE_KIND]
        for pool in (alone, failing) if len(alone) < len(failing) else (alone,):
            stacked, values, short = self._grown(base, pool)
            if stacked and short and self._nodes(values, stacked, short) is not None:
                return
            if stacked and not short and self._add(*self._pruned(stacked, values)):
                return

    def _grown(self, base: int, pool: Sequence[Lever]) -> tuple[list[Lever], Values, int]:
        """The lever after which least lacks, and again upon it; which ones, their values, and what still lacks."""
        stacked, values, short = list[Lever](), Values(), base
        while short and not self.trials.is_spent:
            rest = [lever for lever in pool if lever not in stacked]
            merged = {lever.kind: self._merged_settings(lever.settings[-1:], values) for lever in rest}
            left = {kind: self.trials.short_bytes(pairs[0][1]) for kind, pairs in merged.items() if pairs}
            best = min(left, key=lambda kind: left[kind], default=None)
            if best is None or left[best] >= short:
                break
            stacked += [lever for lever in rest if lever.kind == best]
            values, short = merged[best][0][1], left[best]
        return stacked, values, short

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
            values = merged[0][1]
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


def overrides(config: Config, values: Values) -> tuple[str, ...]:
    """The values as they are typed behind what states the configuration; a shipped form of parallelism by its name."""
    words = tuple(f"{key}={_text(value)}" for key, value in values.items())
    per_node, before = config.hardware.gpus_per_node, config.parallelism
    after = form_words(with_values(config, values).parallelism, per_node)
    if (len(after) > 1 and STAGE not in values) or form_words(before, per_node) != (f"parallelism={before.name}",):
        return words
    of_form = [word for word in words if word.startswith("parallelism.") and not word.startswith(_BESIDE_THE_FORM)]
    if not of_form:
        return words
    return (*after, *(word for word in words if word not in of_form))


def change_of(words: tuple[str, ...], kinds: tuple[str, ...], refused: RunPlan, plan: RunPlan, unpriced: str) -> Change:
    before, after = refused.prediction, plan.prediction
    hours = speed = None
    gap = unpriced
    if before is None or after is None:
        why = (plan if after is None else refused).prediction_gap
        gap = "; ".join(filter(None, (gap, f"no predicted speed, {why}")))
    elif not unpriced:
        speed = after.tokens_per_s / before.tokens_per_s
        hours = plan.layout.world_size / refused.layout.world_size / speed
    memory = plan.memory
    gpu, host = memory.gpu_capacity_bytes, memory.host_capacity_bytes
    return Change(
        overrides=words,
        kinds=kinds,
        gpu_free_bytes=None if gpu is None else gpu - memory.gpu_bytes,
        host_free_bytes_per_node=None if host is None else host - memory.host_bytes_per_node,
        host_bytes_per_node=memory.host_bytes_per_node,
        has_headroom=memory.fits_with_headroom,
        step_time_s=None if after is None else after.step_time_s,
        tokens_per_s=None if after is None else after.tokens_per_s,
        gpu_hours_factor=hours,
        speed_factor=speed,
        gap=gap,
        micro_batch_size=plan.batch.micro_batch_size,
        global_batch_size=plan.batch.global_batch_size,
        holds_global_batch=plan.batch.global_batch_size == refused.batch.global_batch_size,
    )


def _text(value: object) -> str:
    """As Hydra reads it.

    >>> _text(True), _text(None), _text(1.0), _text("cpu")
    ('true', 'null', '1.0', 'cpu')
    """
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)
