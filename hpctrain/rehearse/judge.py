"""A plan whose memory is that of its rehearsal: the planner's rules give way to what the real engine did. Imports no torch."""

from __future__ import annotations

import dataclasses

from hpctrain.plan.memory.estimate import MemoryEstimate
from hpctrain.plan.memory.terms import CONTEXT_TERM, PROCESS_TERM, ROUNDING_TERM, SOURCES, MemoryTerm, PhasePeak
from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.result import PHASES, Rehearsal, Tier

_SOURCE = "rehearsal of rank {rank}"


def judged(plan: RunPlan, found: Rehearsal) -> RunPlan:
    """The plan with the rehearsed memory in the place of the estimate, and with what that is short of among its problems."""
    memory = rehearsed_memory(plan.memory, found)
    others = tuple(problem for problem in plan.problems if problem.kind != "memory")
    return dataclasses.replace(plan, memory=memory, problems=(*others, *memory.problems()))


def rehearsed_memory(estimate: MemoryEstimate, found: Rehearsal) -> MemoryEstimate:
    """Terms by owner at the height of each tier, beside those of the estimate that no storage of torch holds."""
    source = _SOURCE.format(rank=found.rank)
    terms = [
        MemoryTerm(owner.replace("_", " "), num_bytes, tier, source)
        for tier in ("gpu", "host")
        for owner, num_bytes in _height(found, "gpu" if tier == "gpu" else "host").items()
        if num_bytes
    ]
    if rounding := sum(_height(found, "pinned_rounded").values()) - sum(_height(found, "pinned").values()):
        terms.append(MemoryTerm(ROUNDING_TERM, rounding, "host", SOURCES[ROUNDING_TERM]))
    outside = (term for term in estimate.terms if term.name in (CONTEXT_TERM, PROCESS_TERM))
    return dataclasses.replace(estimate, terms=(*terms, *outside), phases=_phases(found), found_by="rehearsal")


def _height(found: Rehearsal, tier: Tier) -> dict[str, int]:
    peak = found.peak(tier, PHASES)
    return {} if peak is None else peak.peak_by_owner


def _phases(found: Rehearsal) -> tuple[PhasePeak, ...]:
    gpu, host = ({row.phase: row.peak_bytes for row in found.rows(tier)} for tier in ("gpu", "host"))
    return tuple(PhasePeak(phase, gpu.get(phase, 0), host.get(phase, 0)) for phase in PHASES)
