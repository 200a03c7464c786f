"""Which ranks are rehearsed when none is asked for."""

from __future__ import annotations

import pytest

from hpctrain.plan.layout import Layout
from hpctrain.plan.memory import MemoryEstimate
from hpctrain.plan.memory_terms import MemoryTerm
from hpctrain.rehearse.stages import ranks_to_rehearse, stages_of_each_kind, why_these
from tests.rehearse.rehearsals import GPT, make_plan


def estimate(num_bytes: int, tier: str = "gpu") -> MemoryEstimate:
    return MemoryEstimate((MemoryTerm("parameters", num_bytes, tier, ""),), 80, None, 8)


def test_the_second_stage_stands_for_all_between() -> None:
    layout = Layout(12, 8, pipeline_parallel_size=12)
    assert stages_of_each_kind(layout) == (0, 1, 11)


def test_one_rank_of_each_kind_of_stage_the_heavier_of_first_and_last() -> None:
    model = GPT | {"num_layers": 4}
    plan = make_plan(
        1,
        model=model,
        parallelism={"pipeline_parallel_size": 4, "tensor_parallel_size": 2},
        gradient_accumulation_steps=8,
    )
    assert ranks_to_rehearse(plan, lambda rank: estimate(rank)) == (3, 7, 15)
    assert ranks_to_rehearse(plan, lambda rank: estimate(100 - rank)) == (0, 4, 12)
    assert ranks_to_rehearse(plan, lambda rank: estimate(rank, "host")) == (3, 7, 15)
    assert why_these(plan, (3, 7, 15)).startswith("one rank of each kind of pipeline stage is rehearsed: 3, 7, 15;")


@pytest.mark.parametrize(("stage", "expected"), [(1, (15,)), (2, (15,)), (3, (0,))])
def test_ranks_of_data_parallelism_differ_below_stage_3(stage: int, expected: tuple[int, ...]) -> None:
    plan = make_plan(stage)
    assert ranks_to_rehearse(plan, lambda rank: estimate(rank)) == expected
    assert ("rank 15 is rehearsed" in why_these(plan, expected)) == (stage < 3)
