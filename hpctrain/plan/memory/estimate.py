"""The memory that a run takes, per GPU and per node, before it runs: closed rules and two small replays, no measurement.

The rules follow what DeepSpeed 0.19.8 allocates, phase by phase: ``stage3_memory``, ``stage12_memory``, ``stage0_memory``.
They are held against rehearsals of the real engine in tests/rehearse. What they leave out: fragmentation of the allocator, and
workspaces of libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from hpctrain.errors import Problem
from hpctrain.plan.memory.fullest_ranks import gpu_candidates, node_ranks
from hpctrain.plan.memory.stage0 import stage0_memory
from hpctrain.plan.memory.stage3 import stage3_memory
from hpctrain.plan.memory.stage12 import stage12_memory
from hpctrain.plan.memory.terms import (
    CONTEXT_TERM,
    MEMORY_PHASES,
    PROCESS_TERM,
    ROUNDING_TERM,
    SOURCES,
    Amounts,
    MemoryTerm,
    PhaseAmounts,
    PhasePeak,
    Pinned,
    RankMemory,
    added,
    highest,
    total,
)
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.rank_work import RankWork
from hpctrain.units import GIB, gib

CPU_PROCESS_BYTES = int(0.4 * GIB)
"""A rank's resident size, read with ps from ranks of model=tiny, whose own share is a few MiB: 0.37 to 0.39 GiB.

Read 2026-11-29 with torch 2.13.0 (CPU build), DeepSpeed 0.19.8, gloo; a CUDA build will differ.
"""
DEVICE_CONTEXT_BYTES = int(1.5 * GIB)
"""CUDA context and NCCL's buffers. An assumption (0.5 GiB and 1 GiB), not a measurement."""
ASK_THE_PLAN = "the plan of this run alone names the cheapest changes that make it fit; --force submits all the same"
"""The fix where a plan stands among others; alone it is told with its changes, see ``changes.render``."""
MOST_PINNED_SHARE = 0.5
"""Of a node's memory. A choice: page-locked memory is nobody else's, neither the file cache's nor a data loader's."""
USED_AT_MOST = 0.9
"""Of a tier by what is chosen for the user: the rest is headroom."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Predicted memory, by term of one rank, with what the hardware has."""

    terms: tuple[MemoryTerm, ...]
    """At the height of each tier; the two need not come in the same phase."""
    gpu_capacity_bytes: int | None
    """None: the device is the CPU and ranks share the host's memory, or nobody knows the GPU."""
    host_capacity_bytes: int | None
    """Of a node, as much as the job has of it; None: not stated."""
    ranks_per_node: int
    phases: tuple[PhasePeak, ...] = ()
    """The height of each phase; empty: of an older version."""
    found_by: Literal["rules", "rehearsal"] = "rules"
    """Closed rules, or the real engine on a simulated cluster."""
    asked_memory: str = ""
    """Key and value that give the job less than a node has; empty: it has all of it."""

    @property
    def gpu_bytes(self) -> int:
        """Per GPU."""
        return sum(term.num_bytes for term in self.terms if term.tier == "gpu")

    @property
    def allocator_bytes(self) -> int:
        """Of ``gpu_bytes`` what torch's allocator counts: CUDA's context and NCCL stand outside it."""
        return sum(term.num_bytes for term in self.terms if term.tier == "gpu" and term.name != CONTEXT_TERM)

    @property
    def host_bytes_per_node(self) -> int:
        return self.ranks_per_node * sum(term.num_bytes for term in self.terms if term.tier == "host")

    @property
    def tiers(self) -> dict[Literal["gpu", "host"], tuple[int, int | None]]:
        """Need and capacity of a GPU and of a node, bytes; None: not stated, or there is no GPU."""
        return {
            "gpu": (self.gpu_bytes, self.gpu_capacity_bytes),
            "host": (self.host_bytes_per_node, self.host_capacity_bytes),
        }

    @property
    def pinned_bytes_per_node(self) -> int:
        """Page-locked host memory, as torch's cache of it rounds its pieces up."""
        return self.ranks_per_node * sum(term.pinned_rounded_bytes for term in self.terms)

    def warnings(self) -> tuple[str, ...]:
        """What fits and often fails all the same."""
        pinned, available = self.pinned_bytes_per_node, self.host_capacity_bytes
        if available is None:
            return self._unchecked_warnings()
        if pinned <= MOST_PINNED_SHARE * available:
            return ()
        return (
            f"{gib(pinned)} of a node's {gib(available)} will be page-locked (pinned), more than half: ulimit -l and --mem"
            " must allow it, and the file cache has only the rest; a smaller training.micro_batch_size or more nodes need less",
        )

    def _unchecked_warnings(self) -> tuple[str, ...]:
        """Of ranks on GPUs that put more into a node's memory than Python and torch; CPU ranks have all there."""
        beside = self.host_bytes_per_node - self.ranks_per_node * CPU_PROCESS_BYTES
        if not self.gpu_bytes or beside <= 0:
            return ()
        return (
            f"hardware.host_memory_gib is not stated: nobody can check whether a node has the {gib(self.host_bytes_per_node)} of"
            " host memory that this plan takes",
        )

    @property
    def fits_with_headroom(self) -> bool:
        """A tenth of each tier stays free; asked of what is chosen for the user, since this is an estimate."""
        return all(capacity is None or needed <= USED_AT_MOST * capacity for needed, capacity in self.tiers.values())

    def problems(self) -> tuple[Problem, ...]:
        """What is short, on which tier, by how much."""
        places = {"gpu": "a GPU has", "host": "a node has"}
        if self.asked_memory:
            places["host"] = f"{self.asked_memory}, where 0 asks for all of a node, gives"
        word = "estimated" if self.found_by == "rules" else "rehearsed"
        return tuple(
            _short(f"memory.{tier}", needed, available, f"{word} need; {places[tier]}")
            for tier, (needed, available) in self.tiers.items()
            if available is not None and needed > available
        )


def _short(key: str, needed: int, available: int, place: str) -> Problem:
    return Problem(
        key,
        gib(needed),
        f"{place} {gib(available)}, short by {gib(needed - available)}",
        ASK_THE_PLAN,
        kind="memory",
    )


def estimate_memory(work: RankWork, rank: int | None = None) -> MemoryEstimate:
    """The terms of one rank, at the height of its GPU and of its host memory.

    Args:
        work: of the run.
        rank: which one; None: the one whose GPU needs most, and in host memory the mean of the fullest node's. Ranks differ in
            stages 1 and 2, and in a pipeline: see ``fullest_ranks``.
    """
    ranks, of_node = ((rank,), {rank: 1}) if rank is not None else (gpu_candidates(work), node_ranks(work))
    known = {each: rank_memory(work, each) for each in {*ranks, *of_node}}
    terms: list[MemoryTerm] = []
    on_gpu: PhaseAmounts = {}
    if work.hardware.device == "cuda":
        on_gpu = max((known[each].gpu for each in ranks), key=lambda phases: total(highest(phases)))
        terms = _terms(highest(on_gpu), "gpu", {})
    of_hosts = [(_on_host(work, known[each]), count) for each, count in of_node.items()]
    terms += _mean_terms([(_host_terms(memory), count) for memory, count in of_hosts])
    if work.hardware.device == "cuda":
        terms += _terms({CONTEXT_TERM: DEVICE_CONTEXT_BYTES}, "gpu", {})
    return MemoryEstimate(
        terms=tuple(terms),
        gpu_capacity_bytes=_bytes(work.hardware.gpu_memory_gib),
        host_capacity_bytes=_bytes(work.hardware.host_memory_gib),
        ranks_per_node=work.layout.gpus_per_node,
        phases=tuple(
            PhasePeak(
                phase,
                total(on_gpu.get(phase, {})),
                _mean([(total(memory.host[phase]), count) for memory, count in of_hosts]),
            )
            for phase in MEMORY_PHASES
        ),
    )


def _on_host(work: RankWork, memory: RankMemory) -> RankMemory:
    """What is in host memory; of a rank on a CPU all of it."""
    if work.hardware.device == "cuda":
        return memory
    # There is no page-locked memory: see ds_config's pin_memory.
    return RankMemory({}, {phase: added(memory.gpu[phase], memory.host[phase]) for phase in MEMORY_PHASES}, {})


def _host_terms(memory: RankMemory) -> list[MemoryTerm]:
    """Of the phase that takes most with what pinned pieces are rounded up by."""
    rounded_up = {name: pinned.rounded_bytes - pinned.num_bytes for name, pinned in memory.pinned.items()}

    def taken(amounts: Amounts) -> int:
        return total(amounts) + sum(rounded_up.get(name, 0) for name in amounts)

    terms = _terms(max(memory.host.values(), key=taken), "host", memory.pinned)
    rounding = sum(term.pinned_rounded_bytes - term.pinned_bytes for term in terms)
    return [*terms, *_terms({ROUNDING_TERM: rounding, PROCESS_TERM: CPU_PROCESS_BYTES}, "host", {})]


def _mean_terms(of_ranks: list[tuple[list[MemoryTerm], int]]) -> list[MemoryTerm]:
    """Term by term the mean over ranks, each kind of rank with how many there are."""
    if len(of_ranks) == 1:
        return of_ranks[0][0]
    found = {term.name: term for terms, _ in of_ranks for term in terms}

    def mean(name: str, amount: Callable[[MemoryTerm], int]) -> int:
        sums = [(sum(amount(term) for term in terms if term.name == name), count) for terms, count in of_ranks]
        return _mean(sums)

    return [
        replace(
            term,
            num_bytes=mean(name, lambda each: each.num_bytes),
            pinned_bytes=mean(name, lambda each: each.pinned_bytes),
            pinned_rounded_bytes=mean(name, lambda each: each.pinned_rounded_bytes),
        )
        for name, term in found.items()
    ]


def _mean(values: list[tuple[int, int]]) -> int:
    """Of values with their numbers, rounded up."""
    return -(-sum(value * count for value, count in values) // sum(count for _, count in values))


def rank_memory(work: RankWork, rank: int) -> RankMemory:
    """Bytes of one rank by phase and term; what its device holds is under ``gpu`` even where that is the CPU."""
    place = work.layout.place(rank)
    parameters = rank_parameters(work.shape, work.layout, place.pipeline)
    if work.parallelism.zero_stage == 0:
        return stage0_memory(work, parameters)
    if work.parallelism.zero_stage == 3:
        return stage3_memory(work, parameters)
    return stage12_memory(work, parameters, place)


def _terms(amounts: Amounts, tier: str, pinned: dict[str, Pinned]) -> list[MemoryTerm]:
    """One term for each name that takes anything."""
    nothing = Pinned()
    return [
        MemoryTerm(
            name,
            num_bytes,
            tier,
            SOURCES[name],
            pinned_bytes=pinned.get(name, nothing).num_bytes,
            pinned_rounded_bytes=pinned.get(name, nothing).rounded_bytes,
        )
        for name, num_bytes in amounts.items()
        if num_bytes
    ]


def _bytes(size_gib: float | None) -> int | None:
    return None if size_gib is None else int(size_gib * GIB)
