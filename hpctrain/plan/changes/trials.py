"""Changed configurations and whether they fit, asked of the plan's own rules; counted, since each costs milliseconds."""

from __future__ import annotations

import dataclasses

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.changes.levers import CHECKPOINTING, MICRO, Values, with_values
from hpctrain.plan.layout import Batch, Layout, resolve_batch
from hpctrain.plan.memory.estimate import USED_AT_MOST, MemoryEstimate, estimate_memory
from hpctrain.plan.memory.settings import resolved_work, with_tiers
from hpctrain.plan.nvme.need import nvme_need
from hpctrain.plan.rules.compile import recomputation_modes
from hpctrain.plan.rules.parallelism import parallelism_problems, resolve_layout
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.plan.site.check import plan_on_site
from hpctrain.plan.site.limits import Site

MOST_LOOKS = 60
"""Estimates and plans that are made at most; one takes 1 to 10 ms."""
_LOOKS_OF_A_FIT, _LOOKS_OF_RANKS = 3, 2
HEADROOM = 1 - USED_AT_MOST
"""Share of each tier that stays free where the plan chooses."""


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
        self._tiers: dict[str, dict[str, tuple[int, int]]] = {}
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
        training = config.training
        if training.micro_batch_size is None and None not in (
            training.global_batch_size,
            training.gradient_accumulation_steps,
        ):
            return True  # the plan finds the micro batch
        return not self._batch(config, layout)[1]

    def short_bytes(self, values: Values, headroom: float = 0.0) -> int:
        """What lacks on all tiers together, see ``short_by_tier``."""
        return sum(self.short_by_tier(values, headroom).values())

    def short_by_tier(self, values: Values, headroom: float = 0.0) -> dict[str, int]:
        """Bytes that lack on each tier with the smallest batch and the most recomputation that the values leave open.

        Args:
            values: what is changed.
            headroom: share of each tier that has to stay free.
        """
        key = repr(sorted(values.items()))
        if key not in self._tiers:
            config = with_values(self._config, values)
            self._count(config)
            self._tiers[key] = self._needed(config)
        tiers = self._tiers[key].items()
        return {name: max(0, needed - int((1 - headroom) * capacity)) for name, (needed, capacity) in tiers}

    def _needed(self, config: Config) -> dict[str, tuple[int, int]]:
        """Need and capacity of each tier whose capacity is known, bytes."""
        layout, _ = resolve_layout(config)
        batch, _ = self._batch(config, layout)
        mode = recomputation_modes(config.training)[-1]
        stated = {MICRO: batch.micro_batch_size, CHECKPOINTING: mode}
        config, _ = with_tiers(with_values(config, stated), self._shape, layout)
        work = resolved_work(config, self._shape, layout, batch, config.precision, mode)
        memory = self._corrected(estimate_memory(work))
        need = nvme_need(config.parallelism, config.hardware, self._shape, layout, work.bytes_per_element)
        tiers = {
            "gpu": (memory.gpu_bytes, memory.gpu_capacity_bytes),
            "host": (memory.host_bytes_per_node, memory.host_capacity_bytes),
        }
        if need is not None:
            tiers["nvme"] = (need.bytes_per_node, need.capacity_bytes)
        return {name: (needed, capacity) for name, (needed, capacity) in tiers.items() if capacity is not None}

    def plan(self, values: Values) -> RunPlan | None:
        """The plan with these values; None: it has a problem."""
        return self.plan_of(with_values(self._config, values))

    def plan_of(self, config: Config) -> RunPlan | None:
        """The plan of a whole configuration; None: it has a problem."""
        self._count(config)
        plan = build_run_plan(config)
        if plan.problems or (self._site is not None and _is_beyond(self._site, plan, config)):
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
        micro = config.training.micro_batch_size or 1
        return resolve_batch(config.training, micro, layout.data_parallel_degree, self._seq_len)

    def _corrected(self, memory: MemoryEstimate) -> MemoryEstimate:
        """With what a rehearsal found beyond the rules taken off what there is."""
        gpu, host = memory.gpu_capacity_bytes, memory.host_capacity_bytes
        return dataclasses.replace(
            memory,
            gpu_capacity_bytes=None if gpu is None else gpu - self._excess["gpu"],
            host_capacity_bytes=None if host is None else host - self._excess["host"],
        )


def _is_beyond(site: Site, plan: RunPlan, config: Config) -> bool:
    """Whether no partition has so many nodes, or none with so much memory."""
    return any(problem.key in ("nodes", "memory.host") for problem in plan_on_site(plan, config, site).problems)
