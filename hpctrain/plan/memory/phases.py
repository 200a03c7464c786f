"""What one GPU holds at the height of each phase, term by term; the estimate itself keeps only what each phase adds up to."""

from __future__ import annotations

from hpctrain.config.schema import Config
from hpctrain.plan.memory.estimate import DEVICE_CONTEXT_BYTES, rank_memory
from hpctrain.plan.memory.fullest_ranks import gpu_candidates
from hpctrain.plan.memory.terms import CONTEXT_TERM, Amounts, MemoryPhase, highest, total
from hpctrain.plan.run_plan import RunPlan, planned_work


def gpu_phases(config: Config, plan: RunPlan) -> dict[MemoryPhase, Amounts]:
    """Bytes of the fullest GPU by phase and term, with its context; empty where ranks run on processors.

    By the planner's rules, also where a rehearsal found the memory of the plan.

    Args:
        config: what the plan was built from.
        plan: of the configuration.
    """
    if plan.device == "cpu":
        return {}
    work = planned_work(config, plan)
    of_ranks = (rank_memory(work, rank).gpu for rank in gpu_candidates(work))
    fullest = max(of_ranks, key=lambda phases: total(highest(phases)))
    return {phase: {**amounts, CONTEXT_TERM: DEVICE_CONTEXT_BYTES} for phase, amounts in fullest.items()}
