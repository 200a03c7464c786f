"""Plain data parallelism: its memory by hand, and what it shares with the stages of ZeRO."""

from __future__ import annotations

import pytest

from hpctrain.plan.memory.stage0 import REDUCE_BUCKET
from hpctrain.plan.memory.terms import PhasePeak
from hpctrain.plan.run_plan import RunPlan
from tests.plan.test_run_plan import plan_of

ON_GPUS = ("model=125m", "parallelism=ddp", "hardware=ndm_a100_v4", "training.activation_checkpointing=full")


def terms(plan: RunPlan) -> dict[str, int]:
    return {term.name: term.num_bytes for term in plan.memory.terms if term.tier == "gpu"}


def peak(plan: RunPlan, phase: str) -> PhasePeak:
    return next(row for row in plan.memory.phases if row.phase == phase)


@pytest.mark.parametrize("nodes", [1, 4])
def test_every_rank_holds_all_states(nodes: int) -> None:
    plan = plan_of(*ON_GPUS, f"nodes={nodes}", "training.micro_batch_size=1")
    count, found = plan.num_parameters, terms(plan)
    assert (found["parameters"], found["fp32 master"], found["Adam moments"]) == (2 * count, 4 * count, 8 * count)
    assert plan.ds_config["zero_optimization"] == {"stage": 0}


@pytest.mark.parametrize(("precision", "width", "states"), [("bf16", 2, 12), ("fp16", 2, 12), ("fp32", 4, 8)])
def test_the_step_has_the_gradients_in_fp32(precision: str, width: int, states: int) -> None:
    plan = plan_of(*ON_GPUS, "training.micro_batch_size=1", f"training.precision={precision}")
    count = plan.num_parameters
    # Parameters, states, and 4 bytes of gradient an element; the fused step needs no more. The last gradient of 768 elements is
    # there in both types for a moment.
    both = 0 if width == 4 else 2 * 768
    assert peak(plan, "optimizer").gpu_bytes == pytest.approx((width + states + 4) * count + both, abs=2**24)
    # The model in fp32 and its first matrix in both types, then parameters with their fp32 copies.
    table = 50304 * 768
    built = 4 * count if width == 4 else max(4 * count + 2 * table, 6 * count)
    assert peak(plan, "engine").gpu_bytes == built


def test_gradients_are_copied_for_their_average_in_pieces() -> None:
    words = ("parallelism=ddp", "hardware=hgx_h200", "training.micro_batch_size=1", "training.seq_len=128")
    small, large = (plan_of(f"model={name}", *words) for name in ("350m", "2.7b"))
    for plan in (small, large):
        count = plan.num_parameters
        bucket = min(count, REDUCE_BUCKET)
        # 14 bytes of states, 2 of gradient, and the copy of one piece, which one parameter may lie across.
        height = peak(plan, "backward").gpu_bytes - 16 * count
        assert 2 * bucket <= height <= 2 * bucket + 2 * 50304 * 2560
