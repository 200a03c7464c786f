"""What the words and the date of a row make of its software's constants."""

from __future__ import annotations

import pytest

from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.stated.run import stated_run
from hpctrain.plan.stated.trainer import find_trainer
from hpctrain.plan.stated.trainer_speed import worded_software
from tests.plan.test_stated_run import LARGE

FIRST, SECOND = (0.366, 0.0), (0.725, 2.75)
"""Share of the best matmul, and what a row costs: the first FlashAttention, and the second."""


@pytest.mark.parametrize(
    ("name", "source", "notes", "gpu", "expected"),
    [
        ("fsdp", "mosaicml/llm-foundry", "MPT", "A100", FIRST),
        ("fsdp", "somebody (2023-03-15)", "", "A100", FIRST),
        ("fsdp", "somebody (2023-09-01)", "", "A100", SECOND),
        ("fsdp", "somebody", "", "H100", SECOND),
        ("megatron", "somebody (2023-03-15)", "FlashAttention", "A100", FIRST),
        ("megatron", "somebody", "flash attention 1", "A100", FIRST),
        ("megatron", "somebody", "", "MI250X", FIRST),
        ("megatron_core", "NeMo", "", "H100", SECOND),
    ],
)
def test_which_flash_attention_it_is(
    name: str, source: str, notes: str, gpu: str, expected: tuple[float, float]
) -> None:
    dates = {"2023-03": (23, 3), "2023-09": (23, 9)}
    written = next((date for words, date in dates.items() if words in source), None)
    software = worded_software(name, source, notes, gpu, written)
    assert software.fused_attention
    assert (software.attention_share, software.attention_row_cost) == expected


@pytest.mark.parametrize(
    ("source", "notes", "has_own_kernels"),
    [
        ("stas00/ml-engineering", "ZeRO-3", True),
        ("somebody (2024-05-01)", "FSDP, FlashAttention-3", True),
        ("somebody (2024-05-01)", "FSDP, FA4", True),
        ("somebody (2024-05-01)", "FSDP, flash attention 2", False),
        ("somebody (2025-11-01)", "FSDP", False),
        ("somebody (2026-02-01)", "FSDP", True),
    ],
)
def test_kernels_for_hopper_outside_of_transformer_engine(source: str, notes: str, has_own_kernels: bool) -> None:
    assert find_trainer(source, notes, "bf16", 3, gpu="H200").software.own_kernels is has_own_kernels


@pytest.mark.parametrize(
    ("source", "notes", "overlap", "has_own_kernels"),
    [
        ("DGX Cloud recipes, NeMo", "", 0.45, True),
        ("Megatron-Core H100 weak scaling", "", 0.45, True),
        ("NVIDIA MLPerf v3.1 (2023-11)", "", 0.45, True),
        ("somebody (2025-02-01)", "megatron-core 0.9", 0.0, True),
        ("somebody (2024-06-01)", "megatron-core 0.6, Transformer Engine", 0.0, False),
        ("somebody (2025-02-01)", "megatron-core 0.9, --tp-comm-overlap", 0.45, True),
    ],
)
def test_megatron_core_of_its_makers_and_of_others(
    source: str, notes: str, overlap: float, has_own_kernels: bool
) -> None:
    software = find_trainer(source, notes, "bf16", 1, gpu="H100").software
    assert software.name == "megatron_core"
    assert (software.model_parallel_overlap, software.own_kernels) == (overlap, has_own_kernels)


@pytest.mark.parametrize(
    ("source", "notes", "gpu", "is_fused", "score_bytes"),
    [
        ("somebody (2022-11-01)", "Hugging Face model, ZeRO-3", "A100", False, 27),
        ("somebody (2022-11-01)", "Hugging Face model, flash attention", "A100", True, 13),
        ("somebody (2024-02-01)", "Hugging Face model, ZeRO-3", "A100", True, 13),
        ("somebody (2024-02-01)", "Hugging Face model, no flash attention", "A100", False, 27),
        ("DeepSpeed's autotuner", "HF run_clm", "V100", False, 27),
        ("Megatron-LM", "no flash attention", "A100", False, 13),
    ],
)
def test_attention_of_hugging_face_before_it_was_fused(
    source: str, notes: str, gpu: str, is_fused: bool, score_bytes: int
) -> None:
    software = find_trainer(source, notes, "fp16", 3 if "ZeRO-3" in notes else 1, gpu=gpu).software
    assert (software.fused_attention, software.score_bytes) == (is_fused, score_bytes)


def test_gradients_that_fsdp_reduces_in_fp32() -> None:
    wide, narrow = (
        find_trainer(source, "FSDP", "bf16", 3, gpu="A100").software for source in ("torchtitan", "fms-fsdp (IBM)")
    )
    assert (wide.gradient_bytes, narrow.gradient_bytes) == (4, 2)


@pytest.mark.parametrize(
    ("notes", "gradient_bytes", "adam_bytes"),
    [
        ("HF run_clm, vanilla DDP", 4, 120),
        ("Hugging Face model, Lightning DDP (AMP)", 4, 120),
        ("HF run_clm, DeepSpeed", 2, 30),
        ("Megatron-LM, DDP", 2, 30),
    ],
)
def test_autocast_keeps_fp32_and_steps_operator_by_operator(notes: str, gradient_bytes: int, adam_bytes: int) -> None:
    software = find_trainer("somebody (2022-11-01)", notes, "fp16", 0, gpu="A100").software
    assert (software.gradient_bytes, software.adam_bytes) == (gradient_bytes, adam_bytes)


@pytest.mark.parametrize(
    ("notes", "traffic"), [("FSDP", 3.5), ("FSDP, fused layernorm, fused swiglu", 1.9), ("FSDP, fused RMS norm", 1.9)]
)
def test_blocks_that_are_fused_by_hand(notes: str, traffic: float) -> None:
    assert find_trainer("lit-gpt (2023-09)", notes, "bf16", 3, gpu="A100").software.element_traffic == traffic


def test_stage_1_of_internevo_goes_tensor_by_tensor() -> None:
    ours, first = find_trainer("InternLM (2023-09)", "", "bf16", 1, gpu="A100").software, SOFTWARE["deepspeed_2022"]
    assert ours.name == "megatron"
    assert (ours.hop_latency_s, ours.collectives_per_block) == (first.hop_latency_s, 4) == (1.16e-5, 4)


@pytest.mark.parametrize(
    ("source", "notes", "loss_bytes"),
    [
        ("mosaicml/llm-foundry", "", 20),
        ("NeMo", "", 20),
        ("somebody", "Megatron-LM", 54),
        ("somebody", "Megatron-LM, cross-entropy fusion", 20),
        ("somebody", "HF Trainer, FSDP", 54),
        ("somebody", "HF Trainer, FSDP, liger", 20),
    ],
)
def test_traffic_of_the_loss(source: str, notes: str, loss_bytes: int) -> None:
    stage = 3 if "FSDP" in notes or "foundry" in source else 1
    assert find_trainer(source, notes, "bf16", stage, gpu="H100").software.loss_bytes == loss_bytes


def test_fsdp_gathers_fp8_in_fp8() -> None:
    row = LARGE | {"source": "torchtitan", "gpu": "H100", "gpu_mem_gb": None, "zero_stage": 3, "tp": 1, "pp": 1}
    narrow = [stated_run(row | {"precision": precision}).setup.quantized_weights for precision in ("bf16", "fp8")]
    assert narrow == [False, True]


def test_hosts_of_newer_gpus_step_adam_faster() -> None:
    row = LARGE | {"gpu_mem_gb": None, "source": "somebody"}
    machines = [stated_run(row | {"gpu": gpu}).machine for gpu in ("A100", "H200", "B200")]
    rates = [(machine.host_memory_gb_per_s, machine.host_adam) for machine in machines if machine]
    assert rates == [(409, 1.0), (614, 1.9), (717, 1.9)]


def test_a_card_at_500_w_sustains_less_than_its_family() -> None:
    row = LARGE | {"gpu_mem_gb": None, "source": "torchtitan"}
    usual, limited = (stated_run(row | {"gpu": gpu}).machine for gpu in ("H100-SXM-80GB", "H100-SXM-96GB"))
    assert usual and limited
    assert (usual.sustained_matrix, limited.sustained_matrix) == (0.866, 0.82)
    assert (usual.sustained_attention, limited.sustained_attention) == (0.62, 0.35)
