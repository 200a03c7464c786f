"""Copies of collectives that the allocator cannot use again, and a model that is made whole, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.stated.held_beyond import copied_bytes, first_bytes
from hpctrain.plan.stated.memory_choice import choose_memory
from hpctrain.plan.stated.memory_habits import CACHED_SHARE, HABITS
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.plan.stated.run import stated_run
from hpctrain.plan.stated.tier_memory import KEPT, STASHED, TierMemory, tier_memory
from hpctrain.units import GIB

GPT = plain_shape(24, 2048, 50304, num_heads=16, max_seq_len=2048)
SETUP = Setup(GPT, 2048, 1, 64, 8, zero_stage=1, recomputation="full")
V100 = HABITS["megatron_deepspeed_2022"]
WAITS = replace(V100, awaits_collectives=True)


def memory_of(habits: object = V100, **changes: object) -> TierMemory:
    return tier_memory(replace(SETUP, **changes), SOFTWARE["megatron_deepspeed_2022"], habits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        # 16-bit copies of all gradients, and of all updated parameters in lists of shares.
        pytest.param(0, (2e9, 0), id="whole-states"),
        pytest.param(1, (2e9, 2e9), id="stage-1"),
        pytest.param(2, (0, 2e9), id="stage-2-keeps-its-buckets"),
        pytest.param(3, None, id="stage-3"),
    ],
)
def test_copies_by_stage(stage: int, expected: tuple[float, float] | None) -> None:
    assert copied_bytes(replace(SETUP, zero_stage=stage), V100, 1e9) == expected
    assert copied_bytes(replace(SETUP, zero_stage=stage), WAITS, 1e9) is None
    assert copied_bytes(replace(SETUP, zero_stage=stage, num_gpus=1), V100, 1e9) is None


def test_what_they_add_to_a_reading_by_hand() -> None:
    """1.3B on eight GPUs: in turn a bucket of 5e8, the optimizer's vectors and a list lie there; held, 4 bytes a parameter."""
    free, waits = memory_of(), memory_of(WAITS)
    count = GPT.num_parameters
    # Two pieces of half of them: 1.3e9 over 5e8. Fp32 copies of an eighth in the optimizer's step are 6 bytes.
    in_turn = 2 * 5e8 + 2 * count / (count // 5e8) + 6 * count / 8
    added = (free.read_bytes("reserved", None) - waits.read_bytes("reserved", None)) / GIB
    assert added == pytest.approx((4 * count - in_turn) / GIB, abs=0.001)
    # What must be there, and what the allocator hands out at a time, is the same.
    assert free.needed_bytes == waits.needed_bytes
    assert free.allocated_bytes == waits.allocated_bytes


def test_copies_of_reductions_serve_the_optimizer() -> None:
    """With two data ranks its fp32 vectors are 6 bytes of half of the parameters, more than the 2 of all gradients."""
    memory = memory_of(num_gpus=2)
    count = GPT.num_parameters
    made_anew = memory.gpu_bytes(KEPT, STASHED) * CACHED_SHARE
    expected = memory.gpu_bytes("flat", "kept", "stashed", "working") + made_anew + (3 + 2) * count
    assert memory.read_bytes("reserved", None) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("micro_batch", "recomputation", "measured"), [(1, "full", 16), (2, "full", 17), (4, "full", 20), (1, "none", 27)]
)
def test_against_the_table_that_showed_it(micro_batch: int, recomputation: str, measured: float) -> None:
    """BigScience, experiments/tr3m-1B3.md: one pipeline rank on V100, memory by nvidia-smi in whole GB."""
    row: dict[str, str | float | None] = {"source": "BigScience (V100 experiments)", "layers": 24, "hidden": 2048}
    row |= {"heads": 16, "ffn_hidden": 8192, "vocab": 50257, "seq_len": 2048, "gpu": "V100-SXM2-32GB", "num_gpus": 8}
    row |= {"tp": 1, "pp": 1, "dp": 8, "zero_stage": 1, "offload_optimizer": "none", "offload_param": "none"}
    row |= {"micro_batch_per_gpu": micro_batch, "global_batch": 512, "activation_ckpt": recomputation}
    row |= {"precision": "fp16", "notes": "table Megatron; memory by nvidia-smi"}
    predicted = choose_memory(stated_run(row), row).peak_bytes / GIB
    assert predicted == pytest.approx(measured, rel=0.08)
    # BLOOM's tuning ran with CUDA_LAUNCH_BLOCKING=1, under which the host waits.
    blocking = row | {"source": "BigScience (BLOOM tuning)"}
    assert choose_memory(stated_run(blocking), blocking).peak_bytes / GIB < 0.93 * predicted


def test_a_model_made_whole_before_it_is_sharded() -> None:
    """Llama-3.1-8B on eight H200, stage 3, 8,192 tokens: 16.3 GiB printed (ml-engineering, insights/when-to-upgrade-gpus)."""
    whole = replace(HABITS["deepspeed"], whole_model_first=True)
    setup = replace(SETUP, zero_stage=3)
    # 16.06e9 bytes and an eighth of them are 18.07e9, or 16.8 GiB.
    assert first_bytes(setup, whole, 8.03e9, 8) / GIB == pytest.approx(16.83, abs=0.01)
    assert first_bytes(setup, HABITS["deepspeed"], 8.03e9, 8) == 0
    assert first_bytes(replace(setup, zero_stage=2), whole, 8.03e9, 8) == 0
    # It is gone before the first step, and is no ground to refuse a run.
    memory = memory_of(whole, zero_stage=3)
    assert memory.first_bytes == first_bytes(setup, whole, GPT.num_parameters, 8)
    assert memory.needed_bytes == memory_of(HABITS["deepspeed"], zero_stage=3).needed_bytes
    large = replace(memory, first_bytes=100 * GIB)
    assert large.read_bytes("reserved", None) == 100 * GIB
