"""FLOP counts against published rates; torch's counter is the second source, in tests/worker."""

from __future__ import annotations

import pytest

from hpctrain.plan.flops import StepFlops, megatron_flops, step_flops
from tests.plan.test_model_shape import shape_of

AZURE = [
    # model, GPUs, micro batch, sequence, step time in s, TFLOP/s a GPU.
    # Source: DeepSpeed on Azure (2022-07-26), vocabulary 50304; step times as derived in analysis/published.
    ("175b", 256, 32, 512, 112.6, 204.49),
    ("530b", 1024, 8, 1024, 204.08, 171.37),
    ("1t", 1024, 8, 1024, 401.99, 165.36),
    ("2t", 1024, 8, 1024, 865.56, 157.0),
]
MT_NLG = [(280, 60.1, 126), (350, 50.2, 121), (420, 44.4, 113)]
"""DGX nodes, step time in s, TFLOP/s a GPU. Source: arXiv 2201.11990, section 5; sequence 2048, batch 1920."""


@pytest.mark.parametrize(("model", "gpus", "micro", "seq_len", "step_time_s", "published"), AZURE)
def test_azure_points(model: str, gpus: int, micro: int, seq_len: int, step_time_s: float, published: float) -> None:
    flops = step_flops(shape_of(model), seq_len, micro * gpus, "full", zero_stage=3)
    assert flops.per_gpu_tflops(step_time_s, gpus)["megatron"] == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(("nodes", "step_time_s", "published"), MT_NLG)
def test_megatron_turing_points(nodes: int, step_time_s: float, published: float) -> None:
    flops = step_flops(shape_of("530b"), 2048, 1920, "full", zero_stage=3)
    assert flops.per_gpu_tflops(step_time_s, nodes * 8)["megatron"] == pytest.approx(published, rel=0.02)


def test_with_full_recomputation_hardware_flops_are_megatrons() -> None:
    # The 96-formula is the term-by-term count of a GPT whose feed-forward is 4h wide, with each block's forward twice.
    flops = step_flops(shape_of("175b"), 2048, 64, "full", zero_stage=3)
    assert flops.hardware_flops == pytest.approx(flops.megatron_flops, rel=1e-12)


def test_below_stage_3_the_last_product_of_a_block_is_not_recomputed() -> None:
    # A GPT block's forward is 24·s·h² and attention, its last product 8·s·h².
    shape = shape_of("530b")
    whole, early = (step_flops(shape, 1024, 1, "full", zero_stage=stage).hardware_flops for stage in (3, 1))
    assert whole - early == 105 * 8 * 1024 * 20480**2


def test_without_recomputation_hardware_flops_are_model_flops() -> None:
    flops = step_flops(shape_of("175b"), 2048, 64, "none", zero_stage=3)
    assert flops.hardware_flops == flops.model_flops < flops.megatron_flops


def test_model_flops_by_the_palm_form() -> None:
    # 6N + 12Lhs a token (PaLM, appendix B) for a Llama with grouped queries, N without the token table and norms.
    shape = shape_of("llama3_8b")
    matmul_parameters = shape.num_layers * shape.block_matmul_parameters + shape.vocab_size * shape.hidden_size
    per_token = 6 * matmul_parameters + 12 * shape.num_layers * shape.hidden_size * 8192
    assert step_flops(shape, 8192, 1, "none", zero_stage=3).model_flops == pytest.approx(8192 * per_token, rel=1e-12)


def test_rates_by_hand() -> None:
    rates = StepFlops(8e12, 12e12, 16e12).per_gpu_tflops(step_time_s=2.0, world_size=4)
    assert rates == {"model": 1.0, "hardware": 1.5, "megatron": 2.0}


def test_vocabulary_term() -> None:
    # From no vocabulary to 51,200 the count grows by V/16lh = 0.27 % at 175B.
    with_vocabulary = megatron_flops(1, 2048, 96, 12288, 51200)
    assert with_vocabulary / megatron_flops(1, 2048, 96, 12288, 0) == pytest.approx(1.0026, abs=1e-4)
