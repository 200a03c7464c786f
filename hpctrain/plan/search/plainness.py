"""Which of two configurations is the plainer, and from when on two predicted times differ: for all that chooses by time."""

from __future__ import annotations

from hpctrain.plan.search.candidate import Candidate

NOISE = 0.05
"""Times as near as this are equal: published rows are met to some 4 % in the median, and of two forms each has that error."""


def plainness(candidate: Candidate) -> tuple[float, ...]:
    """The smaller, the fewer mechanisms: offloads, kinds of model parallelism, stage, recomputation, accumulation.

    Behind the kinds of parallelism comes a pipeline that a step gives fewer micro batches than it has stages: some always wait.
    """
    states, degrees, passes = candidate.states, candidate.degrees, candidate.passes
    places = (states.offload_optimizer, states.offload_param)
    modes = ("none", "selective", "full")
    return (
        sum(place == "nvme" for place in places),
        sum(place != "none" for place in places) + passes.offload_activations,
        sum(degree > 1 for degree in degrees),
        degrees.pipeline > candidate.spread.accumulation,
        states.hpz_partition_size > 1,
        states.zero_stage,
        candidate.offload_ratio if states.offload_optimizer != "none" else 0.0,
        degrees.tensor * degrees.pipeline * degrees.sequence,
        modes.index(passes.checkpointing),
        candidate.spread.accumulation,
    )


def is_plainer(candidate: Candidate, best: Candidate) -> bool:
    """Data parallelism with or without ZeRO and nothing else, where the best has more, or a higher stage."""
    is_plain = max(candidate.degrees) == 1 and candidate.states[1:] == ("none", "none", 1)
    return is_plain and plainness(candidate)[:6] < plainness(best)[:6]
