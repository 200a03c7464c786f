"""Changed configurations and whether they fit, asked of the plan's own rules; counted, since each costs milliseconds."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.changes.levers import Values, with_values
from hpctrain.plan.layout import Batch, Layout, resolve_batch
from hpctrain.plan.memory.estimate import USED_AT_MOST, MemoryEstimate, estimate_memory
from hpctrain.plan.memory.settings import settled, with_passes
from hpctrain.plan.nvme.need import nvme_need
from hpctrain.plan.open_settings import micro_batch_sizes
from hpctrain.plan.rules.compile import recomputation_modes
from hpctrain.plan.rules.parallelism import parallelism_problems, resolve_layout
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.plan.search.held_batch import LARGEST_MICRO_BATCH
from hpctrain.plan.site.check import plan_on_site
from hpctrain.plan.site.limits import Site
from hpctrain.plan.speed.step_time import prediction_gap, step_seconds

MOST_LOOKS = 400
"""Estimates and plans that are made at most; one takes half a millisecond to 10."""
_LOOKS_OF_A_FIT, _LOOKS_OF_RANKS = 3, 2
HEADROOM = 1 - USED_AT_MOST
"""Share of each tier that stays free where the plan chooses."""
BARELY = 0.02
"""The same of what is offered; less is no room, since the rules leave out fragments of the allocator."""
_ROUNDING = 0.02
"""By which what ranks share is not quite halved on twice as many."""


class _Look(NamedTuple):
    """At the smallest batch and the most recomputation that some values leave open."""

    tiers: dict[str, tuple[int, int]]
    """Need and capacity of each tier whose capacity is known, bytes."""
    token_gpu_s: float
    """Predicted seconds of a token times GPUs; infinite: not predicted."""


class Trials:
    """Memory and plans of one configuration with other values."""

    def __init__(self, config: Config, plan: RunPlan, site: Site | None = None) -> None:
        """Starts from a plan that is short of memory.

        Args:
            config: what the plan was built from, with null where the plan chose.
            plan: as refused. Where a rehearsal found more than the rules, that much is added to every change.
            site: whose partitions bound the number of nodes and their memory; None: not asked.
        """
        self._config = config
        self._site = site
        self._shape = plan.model
        self._seq_len = plan.batch.seq_len
        self.num_looks = 0
        self._looks: dict[str, _Look] = {}
        self.refused = build_run_plan(config)
        """By the rules alone, as all that is compared with it."""
        by_rules, found = self.refused.memory, plan.memory
        is_rehearsed = found.found_by == "rehearsal"
        self._excess = {
            "gpu": max(0, found.gpu_bytes - by_rules.gpu_bytes) if is_rehearsed else 0,
            "host": max(0, found.host_bytes_per_node - by_rules.host_bytes_per_node) if is_rehearsed else 0,
        }

    @property
    def is_spent(self) -> bool:
        return self.num_looks >= MOST_LOOKS

    def keeps_rules(self, values: Values) -> bool:
        """Whether the degrees divide what they must and the batch can be spread; takes no look."""
        config = with_values(self._config, values)
        layout, problems = resolve_layout(config)
        if problems or parallelism_problems(config, self._shape, layout, self._seq_len):
            return False
        return not self._batch(config, layout)[1]

    def short_bytes(self, values: Values, headroom: float = BARELY) -> int:
        """What lacks on all tiers together, see ``short_by_tier``."""
        return sum(self.short_by_tier(values, headroom).values())

    def short_by_tier(self, values: Values, headroom: float = BARELY) -> dict[str, int]:
        """Bytes that lack on each tier with the smallest batch and the most recomputation that the values leave open.

        Args:
            values: what is changed.
            headroom: share of each tier that has to stay free.
        """
        tiers = self._look(values).tiers.items()
        return {name: max(0, needed - int((1 - headroom) * capacity)) for name, (needed, capacity) in tiers}

    def token_gpu_s(self, values: Values) -> float:
        """Predicted seconds of a token times GPUs, of the same plan; infinite: not predicted."""
        return self._look(values).token_gpu_s

    def is_hopeless(self, values: Values, on_twice_as_many: Values) -> bool:
        """Whether on no number of nodes a tenth stays free: what ranks share halves as they double, all else stays."""
        before, after = self._look(values).tiers, self._look(on_twice_as_many).tiers
        return any(
            2 * after[tier][0] - needed > (1 + _ROUNDING) * USED_AT_MOST * capacity
            for tier, (needed, capacity) in before.items()
            if tier in after
        )

    def _look(self, values: Values) -> _Look:
        key = repr(sorted(values.items()))
        if key not in self._looks:
            config = with_values(self._config, values)
            self._count(config)
            self._looks[key] = self._looked_at(config)
        return self._looks[key]

    def _looked_at(self, config: Config) -> _Look:
        layout, _ = resolve_layout(config)
        batch, _ = self._batch(config, layout)
        mode = recomputation_modes(config.training)[-1]
        work = settled(with_passes(config, batch.micro_batch_size, mode), self._shape, layout).work
        memory = self._corrected(estimate_memory(work))
        need = nvme_need(work.parallelism, work.hardware, self._shape, layout, work.bytes_per_element)
        tiers: dict[str, tuple[int, int | None]] = dict(memory.tiers.items())
        if need is not None:
            tiers["nvme"] = (need.bytes_per_node, need.capacity_bytes)
        known = {name: (needed, capacity) for name, (needed, capacity) in tiers.items() if capacity is not None}
        if prediction_gap(work):
            return _Look(known, math.inf)
        return _Look(known, step_seconds(work, config.calibration) * layout.world_size / batch.tokens_per_step)

    def plan(self, values: Values) -> RunPlan | None:
        """The plan with these values; None: it has a problem, or barely fits."""
        plan = self.plan_of(with_values(self._config, values))
        return plan if plan is not None and has_room(plan.memory) else None

    def plan_of(self, config: Config) -> RunPlan | None:
        """The plan of a whole configuration; None: it has a problem."""
        self._count(config)
        plan = build_run_plan(config)
        # A bandwidth that the refused plan lacks too is told with it; one more would be a new refusal.
        known = {each.key for each in self.refused.problems if each.kind == "rate"}
        is_refused = any(each.key not in known for each in plan.problems)
        if is_refused or (self._site is not None and _is_beyond(self._site, plan, config)):
            return None
        plan = dataclasses.replace(plan, memory=self._corrected(plan.memory))
        return None if plan.memory.problems() else plan

    def _count(self, config: Config) -> None:
        """One, or what it takes beside one rank of stage 3: a fitted ratio several estimates, stages 1 and 2 several ranks."""
        parallelism = config.parallelism
        several_ranks = _LOOKS_OF_RANKS if parallelism.zero_stage in (1, 2) else 1
        self.num_looks += _LOOKS_OF_A_FIT if parallelism.fit_offload_ratio else several_ranks

    def _batch(self, config: Config, layout: Layout) -> tuple[Batch, tuple[Problem, ...]]:
        """The smallest that the configuration leaves open."""
        smallest = micro_batch_sizes(config.training, layout.data_parallel_degree, LARGEST_MICRO_BATCH)[0]
        return resolve_batch(config.training, smallest, layout, self._seq_len)

    def _corrected(self, memory: MemoryEstimate) -> MemoryEstimate:
        """With what a rehearsal found beyond the rules taken off what there is."""
        gpu, host = memory.gpu_capacity_bytes, memory.host_capacity_bytes
        return dataclasses.replace(
            memory,
            gpu_capacity_bytes=None if gpu is None else gpu - self._excess["gpu"],
            host_capacity_bytes=None if host is None else host - self._excess["host"],
        )


def has_room(memory: MemoryEstimate) -> bool:
    """Whether enough of each tier stays free that the plan can be offered."""
    tiers = memory.tiers.values()
    return all(capacity is None or needed <= (1 - BARELY) * capacity for needed, capacity in tiers)


def _is_beyond(site: Site, plan: RunPlan, config: Config) -> bool:
    """Whether no partition has so many nodes, or none with so much memory."""
    return any(problem.key in ("nodes", "memory.host") for problem in plan_on_site(plan, config, site).problems)
