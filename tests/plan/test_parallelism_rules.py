"""Degrees of parallelism: where ranks stand, and which degrees go together."""

from __future__ import annotations

import pytest

from hpctrain.plan.layout import Layout, RankPlace
from tests.plan.test_run_plan import plan_of

ON_FOUR_NODES = ("model=13b", "nodes=4", "training.micro_batch_size=1")


def test_every_rank_has_a_place_of_its_own() -> None:
    layout = Layout(4, 4, tensor_parallel_size=2, pipeline_parallel_size=2, sequence_parallel_size=1)
    places = [layout.place(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == 16
    assert layout.data_parallel_degree == 4
    # Tensor ranks are neighbours, the second stage begins in the middle of the world.
    assert places[0:2] == [RankPlace(0, 0, 0, 0), RankPlace(0, 0, 0, 1)]
    assert places[8] == RankPlace(1, 0, 0, 0)


def test_sequence_ranks_share_the_states() -> None:
    layout = Layout(2, 4, sequence_parallel_size=4)
    assert (layout.data_parallel_degree, layout.zero_degree) == (2, 8)
    assert [layout.place(rank).sequence for rank in range(5)] == [0, 1, 2, 3, 0]


def test_to_deepspeed_a_part_of_a_sequence_is_a_sample() -> None:
    words = (*ON_FOUR_NODES, "training.gradient_accumulation_steps=3")
    whole = plan_of(*words, "parallelism.zero_stage=1", "parallelism.tensor_parallel_size=8")
    parts = plan_of(*words, "parallelism=ulysses")
    assert (whole.batch.global_batch_size, parts.batch.global_batch_size) == (12, 12)
    # Each must be micro batch x accumulation x the ranks of its ZeRO group.
    assert (whole.ds_config["train_batch_size"], whole.layout.zero_degree) == (1 * 3 * 4, 4)
    assert (parts.ds_config["train_batch_size"], parts.layout.zero_degree) == (1 * 3 * 32, 32)


@pytest.mark.parametrize(
    ("group", "degrees"),
    [
        ("zeropp", "data parallel 32"),
        ("ulysses", "data parallel 4, sequence parallel 8"),
        ("tensor", "data parallel 4, tensor parallel 8"),
    ],
)
def test_groups_fill_the_node(group: str, degrees: str) -> None:
    plan = plan_of(*ON_FOUR_NODES, f"parallelism={group}")
    assert plan.layout.degrees_text == degrees
    assert [problem for problem in plan.problems if problem.kind != "memory"] == []


def test_the_form_of_the_530b_run() -> None:
    # Smith et al. 2022, section 2.3: 8-way tensor, 35-way pipeline, 280 GPUs a replica; 420 nodes give data parallel 12.
    words = ("model=530b", "nodes=420", "parallelism=megatron_3d", "training.micro_batch_size=1")
    plan = plan_of(*words, "training.global_batch_size=1920")
    assert plan.layout.ranks_per_replica == 280
    assert plan.layout.data_parallel_degree == 12
    assert plan.batch.gradient_accumulation_steps == 160
    assert plan.problems == ()


CASES = [
    pytest.param(
        ["pipeline_parallel_size=5", "zero_stage=1"], ["must divide the 32 ranks", "nearest: nodes=5"], id="world"
    ),
    pytest.param(
        ["tensor_parallel_size=16", "zero_stage=1"], ["40 mod 16 = 8", "GPUs of a node 8", "nearest: 8"], id="heads"
    ),
    pytest.param(["sequence_parallel_size=16"], ["40 mod 16 = 8", "nearest: 8"], id="sequence-heads"),
    pytest.param(
        ["sequence_parallel_size=4", "tensor_parallel_size=4"],
        ["heads of a tensor-parallel rank 10 (10 mod 4 = 2)", "nearest: 2"],
        id="sequence-and-tensor",
    ),
    pytest.param(
        ["sequence_parallel_size=2", "pipeline_parallel_size=2", "zero_stage=1"],
        ["sequence_parallel_size=2", "set parallelism.pipeline_parallel_size=1"],
        id="sequence-and-pipeline",
    ),
    pytest.param(
        ["hpz_partition_size=8", "tensor_parallel_size=8"],
        ["hpz_partition_size=8", "tensor_parallel_size=8 hold different ones"],
        id="hpz-and-tensor",
    ),
    pytest.param(["pipeline_parallel_size=16", "zero_stage=1"], ["blocks 40", "nearest: 8"], id="stages"),
    pytest.param(["pipeline_parallel_size=2", "zero_stage=2"], ["ZeRO stage 1, here it is 2"], id="pipeline-zero2"),
    pytest.param(["offload_param=cpu", "zero_stage=2"], ["stage 3, here it is 2"], id="param-stage"),
    pytest.param(
        ["offload_ratio=0.5", "offload_optimizer=cpu", "zero_stage=2"], ["offload_ratio=0.5", "stage 3"], id="ratio"
    ),
    pytest.param(["offload_ratio=0.5"], ["offload_optimizer moves, and that is none"], id="ratio-of-nothing"),
    pytest.param(["hpz_partition_size=8", "zero_stage=2"], ["hpz_partition_size=8", "stage 3"], id="hpz-stage"),
    pytest.param(["hpz_partition_size=5"], ["32 mod 5 = 2", "nearest: 4 or 8"], id="hpz-size"),
    pytest.param(["quantized_weights=true", "zero_stage=1"], ["quantized_weights=true", "stage 3"], id="quantized"),
    pytest.param(
        ["quantized_gradients=true"],
        ["quantized_gradients=true: reads gradients as fp16 bits", "in bf16", "add training.precision=fp16"],
        id="quantized-gradients",
    ),
    pytest.param(
        ["offload_optimizer=cpu", "zero_stage=0"],
        ["offload_optimizer=cpu: needs a stage of ZeRO, here it is 0", "zero_stage=1, 2 or 3"],
        id="ddp-offload",
    ),
    pytest.param(["offload_param=cpu", "zero_stage=0"], ["stage 3, here it is 0"], id="ddp-offload-param"),
    pytest.param(
        ["pipeline_parallel_size=2", "zero_stage=0"],
        ["ZeRO stage 1, here it is 0: it sends as much as stage 0", "set parallelism.zero_stage=1"],
        id="ddp-pipeline",
    ),
]


@pytest.mark.parametrize(("keys", "expected"), CASES)
def test_problems_of_degrees(keys: list[str], expected: list[str]) -> None:
    words = (*ON_FOUR_NODES, "parallelism=zero3", *(f"parallelism.{key}" for key in keys))
    told = [str(problem) for problem in plan_of(*words).problems if problem.kind != "memory"]
    assert len(told) == 1, told
    assert all(text in told[0] for text in expected), told[0]


def test_quantized_gradients_go_with_fp16() -> None:
    plan = plan_of(*ON_FOUR_NODES, "parallelism.quantized_gradients=true", "training.precision=fp16")
    assert [problem for problem in plan.problems if problem.kind != "memory"] == []
    assert plan.ds_config["zero_optimization"]["zero_quantized_gradients"] is True


def test_quantized_gradients_want_equal_groups_and_a_network() -> None:
    words = ("model=13b", "parallelism=zero3", "parallelism.quantized_gradients=true", "training.precision=fp16")
    (problem,) = [found for found in plan_of(*words, "nodes=5").problems if found.kind != "memory"]
    # By hand: 40 ranks divide 5,120, 15,360 and 20,480.
    assert str(problem).count(" mod ") == 1
    assert "the token table 50,304 x 5,120: 50,304 mod 40 = 24" in str(problem)
    # 24 ranks do not divide 5,120, but neither do 2 x 24 divide 5,120 x 5,120: DeepSpeed reduces such a matrix as usual.
    assert [found for found in plan_of(*words, "nodes=3").problems if found.kind != "memory"] == []
    (problem,) = [
        found
        for found in plan_of(*words, "nodes=4", "parallelism.tensor_parallel_size=2").problems
        if found.kind != "memory"
    ]
    assert "tensor_parallel_size=2 hold different parameters" in str(problem)
    assert any("no effect on one node" in warning for warning in plan_of(*words, "nodes=1").warnings)


def test_quantized_collectives_want_cuda() -> None:
    words = ("model=tiny", "cluster=local", "parallelism=zero3", "parallelism.quantized_gradients=true")
    (problem,) = plan_of(*words).problems
    assert "CUDA alone" in str(problem)


def test_inputs_that_are_not_kept_cannot_be_offloaded() -> None:
    words = ("training.offload_activations=true", "training.activation_checkpointing=none")
    (problem,) = [found for found in plan_of(*ON_FOUR_NODES, *words).problems if found.kind != "memory"]
    assert "training.offload_activations=true" in str(problem)
    assert "activation_checkpointing=full" in str(problem)


def test_an_idle_pipeline_and_groups_beyond_a_node_are_warned_of() -> None:
    stages = ("parallelism=zero1", "parallelism.pipeline_parallel_size=4")
    pipeline = plan_of(*ON_FOUR_NODES, *stages, "training.gradient_accumulation_steps=1")
    assert any("3 of 4 turns" in warning for warning in pipeline.warnings)
    wide = plan_of(*ON_FOUR_NODES, "parallelism=zero3", "parallelism.hpz_partition_size=16")
    assert any("hpz_partition_size=16 is above the 8 GPUs" in warning for warning in wide.warnings)


def test_a_second_partition_over_all_ranks_is_warned_of() -> None:
    words = ("model=13b", "training.micro_batch_size=1", "parallelism=zeropp")
    one, two = (plan_of(*words, f"nodes={nodes}").warnings for nodes in (1, 2))
    text = "is all ranks: the second partition is a copy"
    assert [any(text in warning for warning in warnings) for warnings in (one, two)] == [True, False]


def test_what_stages_hand_on_is_cut_over_tensor_ranks() -> None:
    odd = ("model.hidden_size=5121", "model.head_dim=128", "model.ffn_hidden_size=20480", "training.seq_len=1023")
    words = (*ON_FOUR_NODES, *odd, "parallelism=zero1", "parallelism.tensor_parallel_size=8")
    piped = plan_of(*words, "parallelism.pipeline_parallel_size=2")
    (problem,) = [found for found in piped.problems if found.kind != "memory"]
    assert "activations between two stages 5238783 (5238783 mod 8 = 7)" in str(problem)
    assert [found for found in plan_of(*words).problems if found.kind != "memory"] == []


def test_quantized_weights_need_shares_of_whole_groups() -> None:
    # By hand, 350m (hidden 1,024) on 24 ranks: the position table has 2,048 x 1,024 / 24 = 87,381.3 elements a rank.
    words = ("model=350m", "nodes=3", "training.micro_batch_size=1", "parallelism=zero3")
    (problem,) = plan_of(*words, "parallelism.quantized_weights=true").problems
    assert "the position table 87,382 (87,382 mod 8 = 6)" in str(problem)
    two = (
        "model=350m",
        "nodes=2",
        "training.micro_batch_size=1",
        "parallelism=zero3",
        "parallelism.quantized_weights=true",
    )
    assert plan_of(*two).problems == ()


def test_an_odd_bucket_is_refused_below_stage_3() -> None:
    words = (*ON_FOUR_NODES, "parallelism=zero2", "parallelism.allgather_bucket_size=1001")
    (problem,) = [found for found in plan_of(*words).problems if found.kind != "memory"]
    assert "nearest: 1002" in str(problem)
