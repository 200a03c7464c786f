"""The parts of a step: each against numbers worked by hand, with software that loses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.plan.flops import step_flops
from hpctrain.plan.speed.software import (
    EAGER_SCORE_BYTES,
    FLASH_2_ROW_COST,
    HALF_RATE_DEPTH,
    HALF_RATE_OUTPUTS,
    LOSS_BYTES_PER_LOGIT,
    SOFTWARE,
    UNALIGNED_SHARE,
    UNFUSED_ADAM_BYTES,
    UNFUSED_LOSS_BYTES,
    WAVE_SHARE,
)
from hpctrain.plan.speed.step_parts import Machine, Setup, block_efficiency, product_efficiency, step_parts
from hpctrain.plan.stated.plain_shape import plain_shape

SHAPE = plain_shape(32, 4096, 32000, num_heads=32)
MACHINE = Machine(
    gpus_per_node=8,
    achievable_tflops=200,
    memory_gb_per_s=2000,
    link_gb_per_s=300,
    network_gb_per_s=200,
    host_link_gb_per_s=25,
    host_memory_gb_per_s=400,
)
LOSSLESS = replace(
    SOFTWARE["megatron_2021"],
    attention_share=1.0,
    element_traffic=1.0,
    launch_s_per_block_pass=0.0,
    link_share=1.0,
    network_share=1.0,
    hop_latency_s=0.0,
    zero_overlap=0.0,
)
FLASH_2 = replace(LOSSLESS, fused_attention=True, attention_share=0.725, attention_row_cost=FLASH_2_ROW_COST)


def parts_of(software: Any = LOSSLESS, machine: Machine = MACHINE, **changes: Any) -> dict[str, float]:
    values: dict[str, Any] = {"seq_len": 2048, "micro_batch_size": 4, "num_micro_steps": 1, "num_gpus": 1, **changes}
    return step_parts(Setup(SHAPE, **values), machine, software)


def test_matrix_work_is_flops_over_the_rate() -> None:
    # All products but attention's: 3 x (24·h² a token and block, 2·h·V a token), 8,192 tokens, at 200 TFLOP/s.
    # 1.58330 s and 0.03221 s, if no product were small. Sums of 4,096 terms lose 220 of 4,316; results of 33.55e6 and 262.1e6
    # elements lose 5e6 of 38.55e6 and 267.1e6: 0.82596 and 0.93126 of the rate are left.
    assert parts_of()["matrix work"] == pytest.approx(1.58330 / 0.82596 + 0.03221 / 0.93126, rel=1e-4)


def test_products_of_a_block_alone_run_in_a_narrower_type() -> None:
    # The first summand of the above at twice the rate; logits and attention as before.
    narrower = parts_of(machine=replace(MACHINE, block_tflops=400))
    assert narrower["matrix work"] == pytest.approx(1.58330 / 0.82596 / 2 + 0.03221 / 0.93126, rel=1e-4)
    assert narrower["attention"] == parts_of()["attention"]


def test_compute_hides_a_share_of_model_parallel_communication() -> None:
    half = replace(LOSSLESS, model_parallel_overlap=0.5)
    changes: dict[str, Any] = {"num_gpus": 64, "tensor_degree": 4, "pipeline_degree": 4, "sequence_degree": 2}
    plain, hidden = parts_of(**changes), parts_of(half, **changes)
    for name in ("tensor-parallel all-reduce", "sequence-parallel exchange", "pipeline sends"):
        assert hidden[name] == pytest.approx(plain[name] / 2)


def test_no_rate_is_above_the_achievable_one() -> None:
    for software in SOFTWARE.values():
        parts = parts_of(software)
        flops = step_flops(SHAPE, 2048, 4, "none", zero_stage=3).model_flops
        assert flops / sum(parts.values()) < 200e12, software.name


def test_attention_in_memory_and_fused() -> None:
    # Scores and values: 4·s²·h a sequence and block, 3 passes, 4 sequences, 32 blocks.
    flops = 3 * 4 * 2048**2 * 4096 * 4 * 32
    scores = 3 * 32 * 2048**2 * 4 * 32
    assert parts_of()["attention"] == pytest.approx(flops / 200e12 + 13 * scores / 2000e9)
    # Fused: half of the scores; forward once, backward 2.5 times.
    fused = replace(LOSSLESS, fused_attention=True)
    assert parts_of(fused)["attention"] == pytest.approx(flops / 3 / 2 * 3.5 / 200e12)
    assert parts_of(fused, recomputation="full")["attention"] == pytest.approx(flops / 3 / 2 * 4.5 / 200e12)


def test_rows_of_fused_attention_cost_whatever_their_length() -> None:
    # At 0.725 of 200 TFLOP/s a row costs as much as 2.75 x 145 = 399 scores more: of 2,048 a fifth on top, of 32,768 1.2 %.
    without, with_rows = replace(FLASH_2, attention_row_cost=0.0), FLASH_2
    for seq_len, expected in ((2048, 1 + 398.75 / 2048), (32768, 1 + 398.75 / 32768)):
        short, long = (parts_of(software, seq_len=seq_len)["attention"] for software in (without, with_rows))
        assert long / short == pytest.approx(expected)


def test_operators_that_are_kernels_of_their_own_pass_more_bytes() -> None:
    # 3 passes of 32 heads, 2,048 x 2,048 scores, 4 sequences and 32 blocks: 27 bytes of each instead of 13.
    scores = 3 * 32 * 2048**2 * 4 * 32
    eager = parts_of(replace(LOSSLESS, score_bytes=EAGER_SCORE_BYTES))
    assert eager["attention"] - parts_of()["attention"] == pytest.approx(14 * scores / 2000e9)
    # Logits: 8,192 x 32,000, 54 bytes of each instead of 20.
    eager = parts_of(replace(LOSSLESS, loss_bytes=UNFUSED_LOSS_BYTES))
    fused = parts_of(replace(LOSSLESS, loss_bytes=LOSS_BYTES_PER_LOGIT))
    assert eager["element-wise work"] - fused["element-wise work"] == pytest.approx(34 * 8192 * 32000 / 2000e9)


def test_where_the_last_wave_alone_costs_small_products_lose_less() -> None:
    # Half of 108 x 256 x 128 elements are 1.77e6: of a result of 33.55e6 they leave 0.950, where 5e6 leave 0.870.
    wave = parts_of(replace(LOSSLESS, half_rate_share=WAVE_SHARE))["matrix work"]
    expected = 1.58330 / (33.554 / 35.324 * 4096 / 4316) + 0.03221 / (262.14 / 263.91 * 4096 / 4316)
    assert wave == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("recomputation", "share", "expected"),
    [("none", 0.5, 3), ("selective", 0.0, 3), ("selective", 0.5, 3.5), ("full", 0.5, 4)],
)
def test_recomputation_runs_blocks_again_and_not_the_logits(recomputation: Any, share: float, expected: float) -> None:
    software = replace(LOSSLESS, selective_share=share)
    none, again = parts_of(software), parts_of(software, recomputation=recomputation)
    logits = 6 * 4096 * 32000 * 8192 / 200e12 / product_efficiency(8192 * 32000, 4096)
    blocks = none["matrix work"] - logits
    assert again["matrix work"] == pytest.approx(blocks * expected / 3 + logits)


def test_small_and_unaligned_products_are_slow() -> None:
    assert product_efficiency(HALF_RATE_OUTPUTS, 1e9) == pytest.approx(0.5, abs=1e-3)
    assert product_efficiency(1e15, HALF_RATE_DEPTH) == pytest.approx(0.5, abs=1e-3)
    # 14,400 over 8 tensor ranks is 1,800, which 64 does not divide; 13,824 gives 1,728 = 27 x 64.
    wide, aligned = (Setup(plain_shape(80, h, 51200), 2048, 1, 1, 8, tensor_degree=8) for h in (14400, 13824))
    assert block_efficiency(wide) / block_efficiency(aligned) == pytest.approx(UNALIGNED_SHARE, rel=0.05)


def test_tensor_parallel_all_reduces_by_hand() -> None:
    # 4 all-reduces a block of 8192 x 4096 x 2 bytes over 8 GPUs: 2·7/8 of that at 300 GB/s; 6 with full recomputation.
    one = 2 * 7 / 8 * 8192 * 4096 * 2 / 300e9
    parts = parts_of(num_gpus=8, tensor_degree=8)
    assert parts["tensor-parallel all-reduce"] == pytest.approx(32 * 4 * one)
    parts = parts_of(num_gpus=8, tensor_degree=8, recomputation="full", num_micro_steps=3)
    assert parts["tensor-parallel all-reduce"] == pytest.approx(3 * 32 * 6 * one)


def test_sequence_parallel_exchange_by_hand() -> None:
    # A share of 1,024 tokens a rank; queries, keys, values, result of 4,096 in 16 bits: 7/8 of that leaves over 300 GB/s.
    one = 7 / 8 * (8192 / 8) * 4 * 4096 * 2 / 300e9
    parts = parts_of(num_gpus=8, sequence_degree=8)
    assert parts["sequence-parallel exchange"] == pytest.approx(2 * 32 * one)
    assert parts["attention"] == pytest.approx(parts_of()["attention"] / 8)
    again = parts_of(num_gpus=8, sequence_degree=8, recomputation="full")
    assert again["sequence-parallel exchange"] == pytest.approx(3 * 32 * one)


def test_pipeline_bubble_by_hand() -> None:
    parts = parts_of(num_gpus=8, pipeline_degree=8, num_micro_steps=16)
    busy = sum(parts[name] for name in ("matrix work", "attention", "element-wise work"))
    assert parts["pipeline bubble"] == pytest.approx(busy * 7 / 16)
    interleaved = parts_of(num_gpus=8, pipeline_degree=8, num_micro_steps=16, virtual_stages=2)
    assert interleaved["pipeline bubble"] == pytest.approx(busy * 7 / 32)


def test_the_last_pipeline_rank_has_the_logits_on_top() -> None:
    # 4 blocks a rank of 8; cut by cost, the logits are spread.
    logits = 6 * 4096 * 32000 * 8192 / 200e12 / product_efficiency(8192 * 32000, 4096)
    even = parts_of(num_gpus=8, pipeline_degree=8)["matrix work"]
    by_cost = parts_of(replace(LOSSLESS, balanced_stages=True), num_gpus=8, pipeline_degree=8)["matrix work"]
    assert even - by_cost == pytest.approx(logits * 7 / 8)


def test_zero_3_gathers_twice_and_reduces_once_a_micro_step() -> None:
    # 32 GPUs on 4 nodes: 3/4 of all parameters in 16 bits through 200 GB/s, each time.
    once = 0.75 * SHAPE.num_parameters * 2 / 200e9
    parts = parts_of(num_gpus=32, zero_stage=3, num_micro_steps=2)
    assert parts["parameter gathers"] == pytest.approx(2 * 2 * once)
    assert parts["gradient reduce-scatter"] == pytest.approx(2 * once)
    hidden = parts_of(replace(LOSSLESS, zero_overlap=0.5), num_gpus=32, zero_stage=3)
    compute = sum(hidden[name] for name in ("matrix work", "attention", "element-wise work"))
    exposed = hidden["parameter gathers"] + hidden["gradient reduce-scatter"]
    assert exposed == pytest.approx(3 * once - 0.5 * min(compute, 3 * once))


def test_blocks_larger_than_what_may_stay_are_not_fetched_ahead() -> None:
    software = replace(LOSSLESS, zero_overlap=0.5)
    free, bound = (
        parts_of(software, num_gpus=32, zero_stage=3, live_parameters=live)["parameter gathers"] for live in (1e9, 1e8)
    )
    assert SHAPE.block_parameters > 1e8
    assert bound == pytest.approx(2 * 0.75 * SHAPE.num_parameters * 2 / 200e9)
    assert free < bound


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 4)])
def test_below_stage_3(stage: int, times: float) -> None:
    """Once reduced and once gathered a step; stage 2 reduces in each of three micro steps."""
    once = 0.75 * SHAPE.num_parameters * 2 / 200e9
    parts = parts_of(num_gpus=32, zero_stage=stage, num_micro_steps=3)
    assert parts["gradient reduction"] == pytest.approx(times * once)
    assert "parameter gathers" not in parts


def test_sharded_within_the_node_only_gradients_cross_it() -> None:
    # Inside: 7/8 of the parameters over 300 GB/s. Across 4 nodes: an eighth of the gradients, all-reduced by each rank through
    # its eighth of the adapters.
    parts = parts_of(num_gpus=32, zero_stage=3, shard_within_node=True)
    size = SHAPE.num_parameters * 2
    inside = 7 / 8 * size / 300e9
    across = 2 * 0.75 * (size / 8) / (200e9 / 8)
    assert parts["parameter gathers"] == pytest.approx(2 * inside)
    assert parts["gradient reduce-scatter"] == pytest.approx(inside + across)


def test_states_sharded_within_the_node_below_stage_3() -> None:
    # As above, but gradients alone cross the nodes, once a step, and updated parameters come from the node: 4 nodes of 8.
    parts = parts_of(num_gpus=32, zero_stage=1, shard_within_node=True)
    size = SHAPE.num_parameters * 2
    across = 2 * 0.75 * (size / 8) / (200e9 / 8)
    assert parts["gradient reduction"] == pytest.approx(2 * 7 / 8 * size / 300e9 + across)


def test_stage_2_hides_its_reduction_in_each_backward_pass() -> None:
    # 3 micro steps; half of each one's backward pass, two thirds of its compute, is beside a reduction.
    half, slow = replace(LOSSLESS, gradient_overlap=0.5), replace(MACHINE, network_gb_per_s=20)
    parts = parts_of(half, slow, num_gpus=32, zero_stage=2, num_micro_steps=3, micro_batch_size=1, seq_len=64)
    compute = sum(parts[name] for name in ("matrix work", "attention", "element-wise work"))
    once = 0.75 * SHAPE.num_parameters * 2 / 20e9
    assert parts["gradient reduction"] == pytest.approx(4 * once - 0.5 * compute * 2 / 3)


def test_a_second_partition_spares_the_network_all_gathers_but_the_first() -> None:
    size = SHAPE.num_parameters * 2
    inside, everywhere = 7 / 8 * size / 300e9, 0.75 * size / 200e9
    parts = parts_of(num_gpus=32, zero_stage=3, num_micro_steps=3, second_partition_ranks=8)
    assert parts["parameter gathers"] == pytest.approx(everywhere + 5 * inside)
    # Gradients go to their owners over all ranks.
    assert parts["gradient reduce-scatter"] == pytest.approx(3 * everywhere)


def test_quantized_collectives_of_stage_3() -> None:
    size = SHAPE.num_parameters * 2
    inside, everywhere = 7 / 8 * size / 300e9, 0.75 * size / 200e9
    parts = parts_of(num_gpus=32, zero_stage=3, quantized_weights=True, quantized_gradients=True)
    assert parts["parameter gathers"] == pytest.approx(2 * everywhere / 2)
    assert parts["gradient reduce-scatter"] == pytest.approx(everywhere / 4)
    # What comes from a second partition is in 16 bit.
    near = parts_of(num_gpus=32, zero_stage=3, quantized_weights=True, second_partition_ranks=8)
    assert near["parameter gathers"] == pytest.approx(everywhere / 2 + inside)


def test_optimizer_on_the_gpu_and_on_the_cpu() -> None:
    held = SHAPE.num_parameters / 8
    gpu = parts_of(num_gpus=8, zero_stage=3)
    assert gpu["optimizer"] == pytest.approx(held * 30 / (2000e9 * 0.8))
    unfused = parts_of(replace(LOSSLESS, adam_bytes=UNFUSED_ADAM_BYTES), num_gpus=8, zero_stage=3)
    assert unfused["optimizer"] == pytest.approx(held * 120 / (2000e9 * 0.8))
    cpu = parts_of(num_gpus=8, zero_stage=3, offload_optimizer=True)
    # All eight ranks of the node share its memory's 400 GB/s, of which 0.16 can be used; 44 bytes of each parameter pass.
    assert cpu["optimizer on the CPU"] == pytest.approx(SHAPE.num_parameters * 44 / (400e9 * 0.16))
    assert "optimizer" not in cpu
    # Hosts with wider vectors.
    wide = parts_of(machine=replace(MACHINE, host_adam=1.9), num_gpus=8, zero_stage=3, offload_optimizer=True)
    assert wide["optimizer on the CPU"] == pytest.approx(cpu["optimizer on the CPU"] / 1.9)
    # A quarter there, one after the other.
    partly = parts_of(num_gpus=8, zero_stage=3, offload_optimizer=True, offload_ratio=0.25)
    assert partly["optimizer"] == pytest.approx(0.75 * gpu["optimizer"])
    assert partly["optimizer on the CPU"] == pytest.approx(0.25 * cpu["optimizer on the CPU"])


def test_host_link_as_far_as_compute_does_not_hide_it() -> None:
    held = SHAPE.num_parameters / 8 * 2
    tight = replace(LOSSLESS, host_overlap=0.0)
    # In units of 16 bits: a gradient out and back, its sum out in fp32, the updated parameter in: 1 + 1 + 2 + 1. With parameters
    # there too, these come in twice more. A second micro step adds a gradient out and back.
    assert parts_of(tight, num_gpus=8, zero_stage=3, offload_optimizer=True)["host link"] == pytest.approx(
        5 * held / 25e9
    )
    partly = parts_of(tight, num_gpus=8, zero_stage=3, offload_optimizer=True, offload_ratio=0.25)
    assert partly["host link"] == pytest.approx(0.25 * 5 * held / 25e9)
    both = parts_of(tight, num_gpus=8, zero_stage=3, offload_optimizer=True, offload_param=True)
    assert both["host link"] == pytest.approx(7 * held / 25e9)
    twice = parts_of(tight, num_gpus=8, zero_stage=3, num_micro_steps=2, offload_optimizer=True)
    assert twice["host link"] == pytest.approx(7 * held / 25e9)
    # 32 block inputs of 8192 x 4096 x 2 bytes, out and in.
    activations = parts_of(tight, offload_activations=True)["host link"]
    assert activations == pytest.approx(2 * 32 * 8192 * 4096 * 2 / 25e9)
    assert parts_of(offload_activations=True).get("host link", 0.0) < activations


@pytest.mark.parametrize("stage", [2, 3])
def test_a_pipeline_gathers_and_reduces_once_a_step(stage: int) -> None:
    changes: dict[str, Any] = {"num_gpus": 64, "pipeline_degree": 4, "zero_stage": stage}
    few, many = (parts_of(**changes, num_micro_steps=steps) for steps in (8, 32))
    names = {"gradient reduction"} if stage == 2 else {"parameter gathers", "gradient reduce-scatter"}
    for name in names:
        assert many[name] == pytest.approx(few[name])
    if stage == 3:
        # Gathered for the forward pass, and kept.
        assert few["parameter gathers"] == pytest.approx(few["gradient reduce-scatter"])


def test_block_inputs_in_copies_that_block() -> None:
    # DeepSpeed of 2022: 34.4 GB at 2 GB/s, beside nothing; split over two tensor ranks half of it, gathered before its use.
    blocking = replace(LOSSLESS, input_copy_gb_per_s=2.0)
    assert parts_of(blocking, offload_activations=True)["host link"] == pytest.approx(2 * 32 * 8192 * 4096 * 2 / 2e9)
    whole, split = (
        parts_of(
            blocking,
            num_gpus=2,
            tensor_degree=2,
            recomputation="full",
            offload_activations=True,
            split_block_inputs=split,
        )
        for split in (False, True)
    )
    assert split["host link"] == pytest.approx(whole["host link"] / 2)
    assert split["tensor-parallel all-reduce"] == pytest.approx(6.5 / 6 * whole["tensor-parallel all-reduce"])


def test_deepspeeds_own_measurements_of_the_optimizer_on_the_cpu() -> None:
    """The rows that gave ``host_memory_share``, which is one number for all of them; the length of sequences is not stated.

    Source: DeepSpeed, blogs/zenflow-corebinding (stage 2 on two A100-40GB of a node with two EPYC 7742, four sequences a GPU: 3B
    2.887 s, 2.497 s with bound cores; 1.5B 1.365 s with bound cores) and blogs/deepspeed-zenflow (7B on four A100: over 4 s).
    """
    common: dict[str, Any] = {"num_heads": 16, "num_kv_heads": 2, "gated": True}
    shapes = {
        "3b": plain_shape(36, 2048, 151936, ffn_hidden_size=11008, **common),
        "1.5b": plain_shape(28, 1536, 151936, ffn_hidden_size=8960, **common | {"num_heads": 12}),
        "7b": plain_shape(32, 4096, 32000, num_heads=32, ffn_hidden_size=11008, gated=True, tie_embeddings=False),
    }
    software = SOFTWARE["deepspeed_leaf_blocks"]

    def parts(name: str, gpus: int) -> dict[str, float]:
        setup = Setup(shapes[name], 512, 4, 1, gpus, zero_stage=2, offload_optimizer=True)
        return step_parts(setup, Machine(gpus, 271.2, 1555, 300, None, 25, 409), software)

    assert sum(parts("3b", 2).values()) == pytest.approx((2.887 + 2.497) / 2, rel=0.1)
    assert sum(parts("1.5b", 2).values()) == pytest.approx(1.365, rel=0.1)
    assert 4.0 < parts("7b", 4)["optimizer on the CPU"] < 5.0


def test_zero_splits_states_over_sequence_ranks_as_well() -> None:
    # Eight ranks of one sequence hold the same layers, so an eighth of the 6.7e9 parameters each, as eight of data would.
    tight = replace(LOSSLESS, host_overlap=0.0)
    setup: dict[str, Any] = {"num_gpus": 8, "sequence_degree": 8, "zero_stage": 3}
    held = SHAPE.num_parameters / 8
    cpu = parts_of(tight, **setup, offload_optimizer=True, offload_param=True)
    assert cpu["optimizer on the CPU"] == pytest.approx(8 * held * 44 / (400e9 * 0.16))
    assert cpu["optimizer on the CPU"] == pytest.approx(4.53, abs=0.01)
    assert cpu["host link"] == pytest.approx(7 * held * 2 / 25e9)
    assert parts_of(**setup)["optimizer"] == pytest.approx(held * 30 / (2000e9 * 0.8))
    # Gathers go over all eight as well: 7/8 of the parameters in 16 bits at 300 GB/s, twice.
    assert parts_of(**setup)["parameter gathers"] == pytest.approx(2 * 7 / 8 * SHAPE.num_parameters * 2 / 300e9)


@pytest.mark.parametrize(
    ("missing", "offload", "message"),
    [
        ("host_link_gb_per_s", "offload_param", "callers check that an offload has a link to the host"),
        ("host_link_gb_per_s", "offload_activations", "callers check that an offload has a link to the host"),
        ("host_link_gb_per_s", "offload_optimizer", "callers check that an offload has a link to the host"),
        ("host_memory_gb_per_s", "offload_optimizer", "an optimizer on the CPU has its memory's rate"),
    ],
)
def test_what_is_offloaded_is_never_free(missing: str, offload: str, message: str) -> None:
    lacking: dict[str, Any] = {missing: None}
    machine = replace(MACHINE, **lacking)
    changes: dict[str, Any] = {"num_gpus": 8, "zero_stage": 3, offload: True}
    with pytest.raises(AssertionError, match=message):
        parts_of(machine=machine, **changes)
    assert parts_of(machine=machine, num_gpus=8, zero_stage=3)["optimizer"] > 0


def test_host_behind_the_gpu() -> None:
    slow = replace(LOSSLESS, host_s_per_block_pass=0.1)
    parts = parts_of(slow)
    gpu = sum(parts[name] for name in ("matrix work", "attention", "element-wise work"))
    assert parts["host behind the GPU"] == pytest.approx(32 * 3 * 0.1 - gpu)
    assert "host behind the GPU" not in parts_of(replace(LOSSLESS, host_s_per_block_pass=1e-6))


@pytest.mark.parametrize(
    "slower",
    [
        pytest.param(replace(MACHINE, achievable_tflops=100), id="matmul"),
        pytest.param(replace(MACHINE, memory_gb_per_s=1000), id="memory"),
        pytest.param(replace(MACHINE, network_gb_per_s=100), id="network"),
        pytest.param(replace(MACHINE, sustained_matrix=0.5), id="matrix-under-load"),
        pytest.param(replace(MACHINE, sustained_attention=0.5), id="attention-under-load"),
    ],
)
def test_slower_gpus_and_links_give_longer_steps(slower: Machine) -> None:
    base, longer = (
        sum(parts_of(machine=machine, num_gpus=64, zero_stage=3, recomputation="full").values())
        for machine in (MACHINE, slower)
    )
    assert longer > base


@pytest.mark.parametrize("stage", [0, 1])
def test_gradients_and_parameters_travel_in_buckets_below_stage_3(stage: int) -> None:
    # Of 64 ranks a message passes 63 hops of 10 us, each way. Of 6.57e9 parameters buckets of 5e8 are 14, of 2e9 are 4, of
    # blocks 32; what the bytes take is the same.
    slow = replace(LOSSLESS, hop_latency_s=1e-5)
    by_block = parts_of(slow, num_gpus=64, zero_stage=stage)["gradient reduction"]
    in_buckets = parts_of(slow, num_gpus=64, zero_stage=stage, reduce_bucket=5e8, gather_bucket=2e9)
    assert SHAPE.num_parameters == pytest.approx(6.57e9, rel=0.01)
    assert by_block - in_buckets["gradient reduction"] == pytest.approx(63 * 1e-5 * (32 - 14 + 32 - 4))


def test_in_stages_1_and_2_gradients_are_summed_on_all_ranks_and_all_buckets_but_the_last_beside_the_backward_pass() -> (
    None
):
    def reduction_s(stage: int, micro_steps: int = 1, **changes: Any) -> float:
        values = {"num_gpus": 64, "num_micro_steps": micro_steps, "reduce_bucket": 5e8, **changes}
        return parts_of(LOSSLESS, zero_stage=stage, **values)["gradient reduction"]

    # Scattered sums and gathered parameters are as many bytes: two ways. Sums on all ranks are one way more.
    two_ways = reduction_s(1)
    assert reduction_s(0, sums_on_all_ranks=True) == two_ways
    assert reduction_s(1, sums_on_all_ranks=True) == pytest.approx(1.5 * two_ways)
    # Stage 2 does it in each of 4 micro steps.
    assert reduction_s(2, 4, sums_on_all_ranks=True) == pytest.approx(4.5 * two_ways)
    # Of 14 buckets one is left; the backward pass of 4 sequences is longer than the 13 others take.
    beside: dict[str, Any] = {"sums_on_all_ranks": True, "overlaps_reduction": True}
    assert reduction_s(1, **beside) == pytest.approx(two_ways / 2 + two_ways / 14)
    assert reduction_s(2, 4, **beside) == pytest.approx(two_ways / 2 + 4 * two_ways / 14)
    # In one bucket, and in a pipeline, nothing is beside it.
    assert reduction_s(1, **beside | {"reduce_bucket": 7e9}) == pytest.approx(1.5 * two_ways)
    in_pipeline: dict[str, Any] = {"pipeline_degree": 4, "sums_on_all_ranks": True}
    assert reduction_s(1, 8, **in_pipeline, overlaps_reduction=True) == reduction_s(1, 8, **in_pipeline)
