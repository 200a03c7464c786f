"""What the decoder keeps and the loss takes, by hand; rehearsals hold the same counts in tests/rehearse/test_memory_grid.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpctrain.config.schema import ActivationCheckpointing, HardwareConfig, ParallelismConfig
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.memory.loss_chunks import loss_chunk_size
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.render.plan import render_plan
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.stated.plain_shape import plain_shape
from tests.plan.test_run_plan import plan_of

H, Q, KV, F, V, HEADS = 1024, 1024, 256, 3584, 32000, 16
TOKENS = 2 * 2048
LLAMA = ModelShape("llama", "llama", 4, H, HEADS, 4, 64, F, V, 2048, False, 1e-5, 1e4, 0.02)
GPT = dataclasses.replace(LLAMA, architecture="gpt", num_kv_heads=HEADS)


def work_of(
    shape: ModelShape, checkpointing: ActivationCheckpointing, precision: Any = "bf16", chunk: int = 0
) -> RankWork:
    hardware = HardwareConfig("any", "cuda", "any", 8, "any", None, None, "bf16")
    return RankWork(
        shape,
        Layout(1, 8),
        Batch(2, 1, 16, 2048),
        ParallelismConfig("zero1", 1),
        hardware,
        precision,
        checkpointing,
        loss_chunk_size=chunk,
    )


@pytest.mark.parametrize(
    ("shape", "checkpointing", "elements", "statistics"),
    [
        # Block input, both norms' outputs, the middle of the residual stream; q, k, v and the result; the feed-forward's
        # product, in a Llama gate and up, silu(gate), and what goes into the last product.
        (LLAMA, "none", 4 * H + 2 * Q + 2 * KV + 4 * F, HEADS + 2),
        (LLAMA, "selective", 2 * H + 2 * Q + 2 * KV + 2 * F, HEADS + 2),
        (GPT, "none", 4 * H + 4 * H + 2 * F, HEADS + 4),
        (GPT, "selective", 2 * H + 4 * H + F, HEADS + 4),
    ],
    ids=["llama", "llama, selective", "gpt", "gpt, selective"],
)
def test_what_a_block_keeps(
    shape: ModelShape, checkpointing: ActivationCheckpointing, elements: int, statistics: int
) -> None:
    activations = DecoderActivations(work_of(shape, checkpointing))
    assert activations.block == TOKENS * (2 * elements + 4 * statistics)
    assert activations.kept_with(3) == 4 * activations.block
    assert activations.kept_before(2) == 2 * activations.block + TOKENS * 2 * H


@pytest.mark.parametrize("shape", [LLAMA, GPT], ids=["llama", "gpt"])
def test_selective_recomputation_lies_between_none_and_full(shape: ModelShape) -> None:
    none, selective, full = (
        DecoderActivations(work_of(shape, kind)).kept_with(3) for kind in ("none", "selective", "full")
    )
    assert full < selective < 0.7 * none
    heights = [
        max(height.num_bytes for height in DecoderActivations(work_of(shape, kind)).block_heights())
        for kind in ("none", "selective")
    ]
    # While one block is in its backward pass the activation function's gradients are there all the same.
    assert 0.5 * heights[0] < heights[1] < heights[0]


def test_scores_of_a_chunk_in_16_bits_and_fp32_and_two_gradients() -> None:
    chunk = 1024
    found = DecoderActivations(work_of(LLAMA, "none", chunk=chunk))
    matrix = 4 * V * H
    assert found.loss_forward == TOKENS * 2 * H + matrix + 6 * chunk * V
    assert found.loss_backward == found.head_backward == matrix
    whole = DecoderActivations(work_of(LLAMA, "none"))
    assert whole.loss_forward == TOKENS * V * (2 + 4 + 4)
    assert found.loss_forward < 0.3 * whole.loss_forward
    # In a small chunk the gradient's product with what the matrix reads is more than fp32 scores.
    small = DecoderActivations(work_of(LLAMA, "none", chunk=64))
    assert small.loss_forward == TOKENS * 2 * H + matrix + 2 * 64 * V + 2 * V * H


def test_in_fp32_a_chunk_needs_no_copies() -> None:
    found = DecoderActivations(work_of(LLAMA, "none", "fp32", chunk=1024))
    assert found.loss_forward == TOKENS * 4 * H + 4 * V * H + 4 * 1024 * V
    # The gradient of the matrix is handed over as it is.
    assert (found.loss_backward, found.head_backward) == (4 * V * H, 0)


@pytest.mark.parametrize(
    ("hidden", "stated", "tokens", "size"),
    [
        (1024, None, 4096, 1024),
        (4096, None, 4096, 2048),
        (4096, None, 2048, 0),
        (5120, None, 16384, 2048),
        (12288, None, 16384, 4096),
        (16384, None, 16384, 8192),
        (4096, 0, 16384, 0),
        (4096, 100, 16384, 100),
        (4096, 100, 100, 0),
    ],
)
def test_the_chunk_that_the_plan_takes(hidden: int, stated: int | None, tokens: int, size: int) -> None:
    assert loss_chunk_size(stated, plain_shape(4, hidden, 50304), tokens) == size


WORDS = ("model=1.3b", "nodes=1", "hardware=ndm_a100_v4", "parallelism=zero1", "training.micro_batch_size=8")


def notes_on(key: str, plan: RunPlan) -> list[str]:
    return [note for note in plan.assumptions if note.startswith(key)]


def test_the_plan_says_what_it_chose_of_the_loss() -> None:
    plan = plan_of(*WORDS)
    assert plan.loss_chunk_size == 1024
    assert notes_on("training.loss_chunk_size", plan) == [
        "training.loss_chunk_size not stated: 1,024 of the 16,384 tokens of a micro batch have scores at a time"
    ]
    assert "activation checkpointing none, loss in chunks of 1,024 tokens\n" in render_plan(plan, "python")
    stated = plan_of(*WORDS, "training.loss_chunk_size=4096")
    assert (stated.loss_chunk_size, notes_on("training.loss_chunk_size", stated)) == (4096, [])
    # Sequence-parallel ranks have a part of the tokens each.
    shared = plan_of(*WORDS, "parallelism.sequence_parallel_size=8", "training.loss_chunk_size=2048")
    assert shared.loss_chunk_size == 0
    whole = plan_of(*WORDS, "training.loss_chunk_size=0")
    assert "chunks" not in render_plan(whole, "python")
    assert plan.memory.gpu_bytes < whole.memory.gpu_bytes - 5 * 2**30
    assert plan.flops_per_step == whole.flops_per_step


@pytest.mark.parametrize(
    ("gib", "chosen", "reason"),
    [
        (40, "none", "it fits without recomputation"),
        (30, "selective", "without recomputation it does not fit"),
        (20, "full", "neither without recomputation nor with selective one does it fit"),
    ],
)
def test_the_least_recomputation_that_fits_is_chosen(gib: int, chosen: str, reason: str) -> None:
    plan = plan_of(*WORDS, f"hardware.gpu_memory_gib={gib}")
    assert plan.activation_checkpointing == chosen
    told = f"training.activation_checkpointing not stated: {chosen}, {reason} at a micro batch of"
    assert any(note.startswith(told) for note in plan.assumptions)
    assert not plan.problems
    assert (plan.flops_per_step.hardware_flops > plan.flops_per_step.model_flops) == (chosen == "full")


@pytest.mark.parametrize("stated", ["selective", "none"])
def test_inputs_go_to_the_host_where_nothing_else_is_kept(stated: str) -> None:
    plan = plan_of(*WORDS, f"training.activation_checkpointing={stated}", "training.offload_activations=true")
    (problem,) = [problem for problem in plan.problems if problem.key == "training.offload_activations"]
    assert f"training.activation_checkpointing is {stated}" in str(problem)
    assert "add training.activation_checkpointing=full" in str(problem)
