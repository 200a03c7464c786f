"""Which ranks are rehearsed when none is asked for."""

from __future__ import annotations

import pytest

from hpctrain.plan.layout import Layout
from hpctrain.plan.memory.estimate import MemoryEstimate
from hpctrain.plan.memory.fullest_ranks import candidates_of_stage
from hpctrain.plan.memory.terms import MemoryTerm
from hpctrain.rehearse.stages import ranks_to_rehearse, stages_of_each_kind, why_these
from tests.rehearse.rehearsals import GPT, make_plan


def estimate(num_bytes: int, tier: str = "gpu") -> MemoryEstimate:
    return MemoryEstimate((MemoryTerm("parameters", num_bytes, tier, ""),), 80, None, 8)


def test_the_second_stage_stands_for_all_between() -> None:
    layout = Layout(12, 8, pipeline_parallel_size=12)
    assert stages_of_each_kind(layout) == (0, 1, 11)


def test_one_rank_of_each_kind_of_stage_the_heaviest() -> None:
    model = GPT | {"num_layers": 12}
    plan = make_plan(
        1,
        model=model,
        parallelism={"pipeline_parallel_size": 4, "tensor_parallel_size": 2},
        gradient_accumulation_steps=8,
    )
    of_stages = [candidates_of_stage(plan.model, plan.layout, 1, stage) for stage in (0, 1, 3)]
    assert [{plan.layout.place(rank).pipeline for rank in ranks} for ranks in of_stages] == [{0}, {1}, {3}]
    highest, lowest = (tuple(pick(ranks) for ranks in of_stages) for pick in (max, min))
    assert ranks_to_rehearse(plan, lambda rank: estimate(rank)) == highest
    assert ranks_to_rehearse(plan, lambda rank: estimate(100 - rank)) == lowest
    assert ranks_to_rehearse(plan, lambda rank: estimate(rank, "host")) == highest
    told = ", ".join(map(str, highest))
    assert why_these(plan, highest).startswith(f"one rank of each kind of pipeline stage is rehearsed: {told};")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_of_data_parallelism_differ_below_stage_3(stage: int) -> None:
    plan = make_plan(stage)
    candidates = candidates_of_stage(plan.model, plan.layout, stage, 0)
    assert (len(candidates) > 1) == (stage < 3)
    expected = (max(candidates),)
    assert ranks_to_rehearse(plan, lambda rank: estimate(rank)) == expected
    assert (f"rank {expected[0]} is rehearsed" in why_these(plan, expected)) == (stage < 3)
