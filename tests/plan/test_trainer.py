"""Whose software a row is of, and what that software does: by the words of its source, model and remarks."""

from __future__ import annotations

import pytest

from hpctrain.plan.stated.memory_choice import choose_memory
from hpctrain.plan.stated.run import stated_run
from hpctrain.plan.stated.trainer import find_trainer
from tests.plan.test_stated_run import LARGE, Row


@pytest.mark.parametrize(
    ("source", "notes", "precision", "stage", "offload", "expected"),
    [
        ("pytorch/torchtitan", "", "bf16", 3, False, ("fsdp", "fsdp", "mixed", "reserved")),
        (
            "pytorch/torchtitan",
            "torch.compile",
            "bf16",
            3,
            False,
            ("fsdp_compiled", "fsdp_compiled", "mixed", "reserved"),
        ),
        ("somebody", "FSDP full shard", "bf16-true", 3, False, ("fsdp", "fsdp", "pure", "reserved")),
        ("LitGPT config hub", "", "bf16", 3, False, ("fsdp", "fsdp", "pure", "allocated")),
        ("MaxText", "", "bf16", 3, False, ("fsdp_compiled", "fsdp_compiled", "mixed", "reserved")),
        ("somebody", "", "bf16", 3, False, ("deepspeed", "deepspeed", "mixed", "reserved")),
        ("somebody", "", "bf16", 2, False, ("megatron", "deepspeed", "mixed", "reserved")),
        ("somebody", "", "bf16", 1, True, ("megatron", "deepspeed", "mixed", "reserved")),
        ("somebody", "max allocated", "fp32", 1, False, ("megatron", "megatron", "fp32", "allocated")),
        (
            "BigScience (BLOOM tuning)",
            "",
            "fp16",
            1,
            False,
            (*["megatron_deepspeed_2022"], "megatron_deepspeed", "mixed", "device"),
        ),
        ("somebody", "read by nvidia-smi", "bf16/PURE", 0, False, ("megatron", "megatron", "mixed", "device")),
    ],
)
def test_whose_software_it_is(
    source: str, notes: str, precision: str, stage: int, offload: bool, expected: tuple[str, ...]
) -> None:
    trainer = find_trainer(source, notes, precision, stage, offload)
    assert (trainer.software.name, trainer.habits.name, trainer.states, trainer.reading) == expected


@pytest.mark.parametrize(
    ("source", "notes", "stage", "gpu", "expected"),
    [
        ("DGX Cloud recipes, NeMo", "", 1, "H100", ("megatron_core", "megatron")),
        ("Megatron-Bridge 25.11", "fp8; FSDP", 3, "GB200", ("megatron_core", "megatron")),
        ("somebody", "Transformer Engine", 1, "A100", ("megatron_core", "megatron")),
        ("Megatron-LM", "", 1, "GH200-96GB", ("megatron_core", "megatron")),
        ("Megatron-LM", "", 1, "A100", ("megatron", "megatron")),
        ("Nanotron", "", 1, "H100", ("nanotron", "nanotron")),
        ("somebody", "ZeRO", 2, "H100", ("megatron", "deepspeed")),
    ],
)
def test_megatron_core_by_its_words_and_by_its_time(
    source: str, notes: str, stage: int, gpu: str, expected: tuple[str, str]
) -> None:
    trainer = find_trainer(source, notes, "bf16", stage, gpu=gpu)
    assert (trainer.software.name, trainer.habits.name) == expected


@pytest.mark.parametrize(
    ("gpu", "source", "precision", "block_tflops"),
    [
        # 0.905 of the best fp8 matmul (1,453 and 3,432), times what is sustained; GB200's is not measured: twice its 16-bit rate.
        ("H100-SXM-80GB", "NeMo", "fp8", 0.905 * 1453 * 0.965),
        ("H100-SXM-80GB", "torchtitan", "bf16 + fp8", 0.905 * 1453 * 0.866),
        ("B200", "NeMo", "mxfp8", 0.905 * 3432 * 0.84),
        ("GB200", "NeMo", "FP8-CS", 0.905 * 2 * 1822 * 0.84),
        ("H100-SXM-80GB", "NeMo", "bf16", None),
        ("A100", "NeMo", "fp8", None),
    ],
)
def test_products_in_fp8(gpu: str, source: str, precision: str, block_tflops: float | None) -> None:
    row = LARGE | {"gpu": gpu, "gpu_mem_gb": None, "source": source, "precision": precision}
    machine = stated_run(row).machine
    assert machine is not None
    assert machine.block_tflops == (None if block_tflops is None else pytest.approx(block_tflops))


@pytest.mark.parametrize(
    ("notes", "stage", "gpu", "expected"),
    [
        ("Megatron-DeepSpeed", 1, "A100", ("megatron_deepspeed_2022", False)),
        ("GPT-NeoX", 1, "A100-40GB", ("megatron_deepspeed_2022", False)),
        ("GPT-NeoX, flash attention", 1, "A100-40GB", ("megatron_deepspeed_2022", True)),
        ("Megatron-DeepSpeed", 1, "Max 1550 (tile)", ("megatron", True)),
        ("Megatron-DeepSpeed", 3, "A100", ("deepspeed", True)),
        ("Megatron-LM without flash attention", 1, "A100", ("megatron", False)),
    ],
)
def test_megatron_deepspeed_and_attention_by_remarks(
    notes: str, stage: int, gpu: str, expected: tuple[str, bool]
) -> None:
    software = find_trainer("somebody", notes, "bf16", stage, gpu=gpu).software
    assert (software.name, software.fused_attention) == expected


@pytest.mark.parametrize(
    ("source", "ref", "notes", "stage", "expected"),
    [
        # By the date of the source: PyTorch 2.0 came in March 2023, flash attention in May 2022, the faster ZeRO-3 in 2022.
        ("FSDP on AWS (2022-03-15)", "", "", 3, ("fsdp_2022", False)),
        ("FSDP paper", "arXiv 2304.11277", "", 3, ("fsdp_2022", True)),
        ("FSDP", "arXiv 2410.06511", "", 3, ("fsdp", True)),
        ("mosaicml/examples", "", "MosaicGPT, torch 1.13", 3, ("fsdp_2022", True)),
        ("OPT-175B", "arXiv 2205.01068", "metaseq", 3, ("fsdp_2022", False)),
        ("somebody", "arXiv 2303.17564", "ZeRO-3", 3, ("deepspeed_2022", False)),
        ("somebody (2021-05-01)", "", "ZeRO-3", 3, ("deepspeed_2021", False)),
        ("somebody (2024-05-01)", "", "ZeRO-3", 3, ("deepspeed", True)),
        ("Korthikanti 2022", "arXiv 2205.05198", "", 0, ("megatron_2021", False)),
        ("MT-NLG 530B", "arXiv 2201.11990", "", None, ("megatron_deepspeed_2022", False)),
        ("somebody", "", "DeepSpeed/Megatron 3D parallel", 1, ("megatron_deepspeed_2022", False)),
        ("somebody", "", "stated in 2022-03", 3, ("deepspeed_2022", False)),
    ],
)
def test_generations_by_date(source: str, ref: str, notes: str, stage: int | None, expected: tuple[str, bool]) -> None:
    software = find_trainer(source, notes, "bf16", stage, ref=ref, gpu="A100").software
    assert (software.name, software.fused_attention) == expected


def test_attention_on_gpus_that_its_fused_kernels_leave_out() -> None:
    assert not find_trainer("somebody", "FSDP", "fp16", 3, gpu="V100-SXM2-32GB").software.fused_attention
    assert find_trainer("somebody", "FSDP, xformers", "fp16", 3, gpu="V100-SXM2-32GB").software.fused_attention


@pytest.mark.parametrize(
    ("notes", "traffic"),
    [
        *[("FSDP", 3.5), ("FSDP, torch.compile", 1.14), ("FSDP, no torch.compile", 3.5), ("MPT, mosaic, FSDP", 1.9)],
        *[("HF Trainer, FSDP", 3.5), ("HF Trainer, FSDP, liger", 1.9), ("HF Trainer", 3.5)],
    ],
)
def test_blocks_that_nothing_fuses(notes: str, traffic: float) -> None:
    assert find_trainer("somebody", notes, "bf16", 3, gpu="A100").software.element_traffic == traffic


def test_sequence_parallelism_that_remarks_state() -> None:
    on, off = (
        find_trainer("arXiv 2205.05198", notes, "fp16", 0, gpu="A100").software.sequence_parallel
        for notes in ("selective recompute + sequence parallelism", "baseline")
    )
    assert (on, off) == (True, False)


def test_sequence_parallelism_that_remarks_deny() -> None:
    """Without it each tensor rank keeps its blocks' inputs whole: 48 blocks of 2·s·b·h = 4.5 GiB, and an eighth with it."""
    row: Row = {"source": "Megatron-LM", "model": "GPT 22B", "layers": 48, "hidden": 6144, "heads": 64, "vocab": 51200}
    row |= {
        "seq_len": 2048,
        "gpu": "A100",
        "num_gpus": 8,
        "tp": 8,
        "zero_stage": 0,
        "micro_batch_per_gpu": 4,
        "activation_ckpt": "full",
    }
    kept = []
    for notes in ("sequence parallelism", "baseline (full recompute, no SP)"):
        memory = choose_memory(stated_run(row | {"notes": notes}), row).memory
        (term,) = (term for term in memory.terms if term.name == "activations")
        kept.append(term.num_bytes)
    assert kept == [48 * 2 * 2048 * 4 * 6144 // 8, 48 * 2 * 2048 * 4 * 6144]


def test_bf16_of_megatron_deepspeed_accumulates_in_fp32() -> None:
    fp16, bf16 = (find_trainer("BigScience", "", precision, 1).habits for precision in ("fp16", "bf16"))
    assert (fp16.gradient_bytes, fp16.step_bytes) == (2, 6)
    # A gradient of the pass (2) beside its sum (4), and no second copy in the step.
    assert (bf16.gradient_bytes, bf16.step_bytes, bf16.cast_gradients) == (6, 0, True)
    before = find_trainer("BigScience", "table bf16; 2022-02-17", "bf16", 1).habits
    assert before == fp16


def test_a_fused_loss_is_smaller() -> None:
    assert find_trainer("mosaicml/llm-foundry", "", "bf16", 3).habits.loss_bytes == 4
    assert find_trainer("somebody", "FSDP, fused cross entropy", "bf16", 3).habits.loss_bytes == 4
    assert find_trainer("somebody", "FSDP with liger kernels", "bf16", 3).habits.loss_bytes == 0
    assert find_trainer("torchtune", "chunked cross-entropy", "bf16", 3).habits.loss_bytes == 0
    assert find_trainer("somebody", "FSDP", "bf16", 3).habits.loss_bytes == 12
    assert find_trainer("somebody", "Megatron-Core, cross-entropy fusion", "bf16", 1).habits.loss_bytes == 4


def test_torchtitan_saves_every_second_product_unless_it_chooses_blocks() -> None:
    op, layer, other = (
        find_trainer(source, notes, "bf16", 3)
        for source, notes in (("torchtitan", "FSDP"), ("torchtitan", "FSDP, selective layer"), ("fms-fsdp", ""))
    )
    assert [trainer.habits.every_second_product for trainer in (op, layer, other)] == [True, False, False]
    assert [trainer.chooses_blocks for trainer in (op, layer, other)] == [False, False, True]


def test_torchtitan_compiles_its_loss_since_april_2025() -> None:
    words = "FSDP + torch.compile"
    *before, since = (
        find_trainer("torchtitan", words, "bf16", 3, ref=f"benchmarks/llama3_{date}_torchtitan.md").habits
        for date in ("h100_202412", "2025-01-15", "202503", "8b_h200_2025-06")
    )
    assert [(habits.loss_bytes, habits.split_loss_bytes) for habits in before] == 3 * [(12, 16)]
    assert (since.loss_bytes, since.split_loss_bytes) == (4, None)


@pytest.mark.parametrize(
    ("words", "has_kernels"),
    [
        ("Liger-Kernel", True),
        ("with liger", True),
        ("no Liger", False),
        ("without liger", False),
        ("w/o Liger kernels", False),
    ],
)
def test_ligers_kernels_are_in_blocks_and_loss(words: str, has_kernels: bool) -> None:
    habits = find_trainer("HF Trainer", words, "bf16", 3).habits
    assert (habits.gate_in_place, habits.gated_tensors) == ((True, 3) if has_kernels else (False, 4))
    assert (habits.gated_norm_copies, habits.output_gradient_bytes) == ((0, 8) if has_kernels else (4, 0))


def test_megatron_deepspeed_gathers_in_place_since_2024() -> None:
    kinds = [
        find_trainer("Megatron-DeepSpeed", "", "fp16", 1, ref=ref, gpu="A100").habits
        for ref in ("2023-11-30", "2024-04-21", "")
    ]
    assert [(habits.gather_bucket, habits.awaits_collectives) for habits in kinds] == [
        (5e8, False),
        (None, True),
        (5e8, False),
    ]


def test_ml_engineering_hands_each_gpu_the_whole_model() -> None:
    """Its benchmark has transformers' models and DeepSpeed's own settings, not the Trainer's."""
    own, other = (
        find_trainer(source, "Liger", "bf16", 3).habits
        for source in ("ml-engineering (DeepSpeed)", "DeepSpeed, HF Trainer")
    )
    assert (own.whole_model_first, own.bucket_elements) == (True, 5e8)
    assert (other.whole_model_first, other.bucket_elements) == (False, None)


def test_collectives_are_awaited_but_on_v100() -> None:
    """CUDA_LAUNCH_BLOCKING=1 in the tuning of BLOOM."""
    waits = [
        find_trainer(source, "", "fp16", 1).habits.awaits_collectives
        for source in ("BigScience (V100 experiments)", "BigScience (BLOOM tuning)", "DeepSpeed", "Megatron-LM")
    ]
    assert waits == [False, True, True, True]


def test_megatron_sums_in_fp16_what_is_in_fp16() -> None:
    kinds = [find_trainer("Megatron-LM", "", precision, 1, gpu="A100").habits for precision in ("bf16", "fp16")]
    assert [(habits.gradient_bytes, habits.step_bytes, habits.step_in_pieces) for habits in kinds] == [
        (4, 0, False),
        (2, 4, True),
    ]


@pytest.mark.parametrize(
    ("model", "notes", "expected"),
    [
        ("Qwen3-4B", "", True),
        ("Qwen 3 32B", "", True),
        ("OLMo-2-7B", "", True),
        ("Llama-like", "--qk-layernorm", True),
        ("GPT", "QK norm", True),
        ("Qwen2.5-3B", "", False),
        ("Llama-3-8B", "RMSNorm", False),
    ],
)
def test_models_that_norm_queries_and_keys(model: str, notes: str, expected: bool) -> None:
    assert find_trainer("Megatron-LM", notes, "bf16", 1, model=model).habits.normed_queries is expected


def test_nemo_reduces_gradients_as_they_are() -> None:
    nemo, megatron = (find_trainer(source, "", "bf16", 1).habits for source in ("NeMo 24.07", "Megatron-Core"))
    assert (nemo.gradient_bytes, megatron.gradient_bytes) == (2, 4)


def test_megatron_bridge_reduces_in_fp32_but_where_its_speed_is_published() -> None:
    kinds = [
        find_trainer(source, "", "bf16", 1, ref=ref).habits
        for source, ref in (
            ("Megatron-Bridge 25.11", ""),
            ("Megatron-Bridge", "docs/performance-summary.md"),
            ("Megatron-Bridge", "course log"),
        )
    ]
    assert [habits.gradient_bytes for habits in kinds] == [2, 2, 4]
    assert {habits.loss_bytes for habits in kinds} == {4}


def test_hugging_face_sets_the_buckets_and_shifts_the_logits() -> None:
    own, hugging = (find_trainer(source, "", "bf16", 3).habits for source in ("DeepSpeed", "HF Trainer"))
    assert (own.bucket_elements, hugging.bucket_elements) == (5e8, None)
    assert (own.gated_loss_bytes, hugging.gated_loss_bytes) == (None, 18)
    fused = find_trainer("HF Trainer", "liger", "bf16", 3).habits
    assert (fused.loss_bytes, fused.gated_loss_bytes) == (0, None)
    assert find_trainer("Nanotron / HF playbook", "", "bf16", 1).habits.gated_loss_bytes is None


@pytest.mark.parametrize(
    ("source", "notes", "expected"),
    [
        ("torchtune README", "chunked loss; peak memory active", ("fsdp", "pure", "allocated", True)),
        ("Ulysses-Offload / FPDT blog", "", ("megatron_deepspeed", "mixed", "reserved", True)),
        ("Llama 3 paper", "FSDP", ("fsdp", "mixed", "reserved", False)),
        ("somebody", "HF Trainer, FSDP", ("fsdp", "mixed", "reserved", True)),
    ],
)
def test_what_is_known_of_its_memory(source: str, notes: str, expected: tuple[str, str, str, bool]) -> None:
    trainer = find_trainer(source, notes, "bf16", 3)
    assert (trainer.habits.name, trainer.states, trainer.reading, trainer.is_counted) == expected


def test_stage_2_of_that_time_is_deepspeeds() -> None:
    """Megatron-LM had neither stage 2 nor offload."""
    kinds = [
        find_trainer("somebody (2021-01-18)", "", "fp16", stage, has_offload=offload).habits.name
        for stage, offload in ((0, False), (2, False), (0, True))
    ]
    assert kinds == ["megatron_2021", "megatron_deepspeed", "megatron_deepspeed"]


@pytest.mark.parametrize(
    ("source", "notes", "expected"),
    [
        ("Llama 3 (Meta)", "FSDP, ZeRO-2 like: parameters are not gathered again", False),
        ("Llama 3 (Meta)", "Megatron-like FSDP", False),
        ("pytorch/torchtitan", "FSDP", True),
        ("some lab", "Megatron-LM", True),
        ("some lab", "ZeRO-1", True),
    ],
)
def test_words_of_other_software_beside_fsdp_count_nothing(source: str, notes: str, expected: bool) -> None:
    assert find_trainer(source, notes, "bf16", 2 if "FSDP" in notes else 1).is_counted is expected
