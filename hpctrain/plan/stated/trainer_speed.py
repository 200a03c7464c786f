"""What the words and the date of a described run make of its software's constants: kernels, attention, and what travels."""

from __future__ import annotations

import re
from dataclasses import replace

from hpctrain.plan.speed.software import (
    EAGER_ELEMENT_TRAFFIC,
    EAGER_SCORE_BYTES,
    FLASH_2_ROW_COST,
    FLASH_2_SHARE,
    LOSS_BYTES_PER_LOGIT,
    SOFTWARE,
    UNFUSED_ADAM_BYTES,
    UNFUSED_LOSS_BYTES,
    Software,
)

Written = tuple[int, int] | None
"""Year of the century and month in which a source was published; None: it has no date. How long a release takes to reach what is
published is an assumption in each constant below."""
LAST_WITHOUT_FLASH_ATTENTION = (22, 9)
"""Its paper is of May 2022 (arXiv 2205.14135)."""
_FIRST_OF_FLASH_ATTENTION_2 = (23, 8)
"""Its paper is of July 2023 (arXiv 2307.08691)."""
_LAST_OF_EAGER_ATTENTION = (23, 12)
"""Hugging Face's models call PyTorch's fused attention since transformers 4.36, of December 2023."""
_FIRST_OF_HOPPER_KERNELS = (24, 9)
"""Transformer Engine took up cuDNN's attention for Hopper in the middle of 2024; NeMo's recipes of 24.09 have it."""
_FIRST_OF_LATE_KERNELS = (26, 1)
"""From here on products and attention of PyTorch and its libraries are made for Hopper and Blackwell also outside of it."""
_LATE_KERNEL_WORDS = re.compile(
    r"flash[- _]?att(?:entio)?n[- ]?v?[34]\b|\bFA-?[34]\b|\bcudnn\b|ml-engineering", re.IGNORECASE
)
"""ml-engineering's runs have FlashAttention-3 and -4 (insights/when-to-upgrade-gpus)."""
_FIRST_FLASH_WORDS = re.compile(r"llm-foundry|mosaicgpt|flash[- _]?att(?:entio)?n[- ]?(?:v?1\b|triton)", re.IGNORECASE)
"""llm-foundry's tables were made with the first one's port to Triton (attn_impl: triton in their settings)."""
_MOSAIC_WORDS = re.compile(r"llm-foundry|mosaic", re.IGNORECASE)
"""Its blocks have fused norms and no gate; others' blocks, where nothing compiles them, are those of Hugging Face's kind."""
_FLASH_WORDS = re.compile(r"flash[- _]?att|\bxformers\b|\bsdpa\b|mosaicgpt", re.IGNORECASE)
_NO_FLASH_WORDS = re.compile(r"\b(?:no|without|before) flash[- ]?att|\beager attention", re.IGNORECASE)
_BEFORE_AMPERE = re.compile(r"\bV100|\bT4\b|\bP100|\bTITAN|\bRTX 20", re.IGNORECASE)
_AFTER_AMPERE = re.compile(r"\bG?[HB][23]00|\bG?H100", re.IGNORECASE)
_OTHER_MAKERS = re.compile(r"\bMI[23]\d\d|\bmax\b|\bpvc\b", re.IGNORECASE)
_NO_SEQUENCE_PARALLEL_WORDS = re.compile(r"\b(?:no|without) (?:SP\b|sequence[- ]parallel)", re.IGNORECASE)
_SEQUENCE_PARALLEL_WORDS = re.compile(r"\bsequence[- ]parallel|\bTP *\+ *SP\b", re.IGNORECASE)
_WIDE_SUMS_WORDS = re.compile(r"torchtitan|fsdp-?2|fp32 (?:gradient )?reduc|reduc\w* in fp32", re.IGNORECASE)
"""Gradients are reduced in fp32. Source: torchtitan, config/job_config.py (mixed_precision_reduce)."""
_AUTOCAST_WORDS = re.compile(r"\bDDP\b|\bAMP\b|\bautocast\b", re.IGNORECASE)
"""Parameters and gradients stay in fp32, and so does what is reduced."""
_FUSED_BLOCK_WORDS = re.compile(
    r"\bliger|(?<!no torch\.)(?<!no )compile|\bfused[- ](?:rms|(?:layer)?norm|kernel|swiglu|rotary|rope)|\bunsloth|\bapex\b",
    re.IGNORECASE,
)
FUSED_LOSS_WORDS = re.compile(r"llm-foundry|fused (cross.entropy|loss)|cross.entropy fusion", re.IGNORECASE)
_RANK_BY_RANK_WORDS = re.compile(r"intern(?:lm|evo)", re.IGNORECASE)
"""Stage 1 reduces to and broadcasts from one rank after the other, tensor by tensor, as DeepSpeed's did then. Source: InternEvo,
solver/optimizer/hybrid_zero_optim.py; on what it costs, alibaba/Megatron-LLaMA, README (OverlappedDistributedOptimizer)."""
NEMO_WORDS = re.compile(r"\bnemo\b|dgx ?cloud|dgxc|megatron-bridge", re.IGNORECASE)
MEGATRON_CORE_WORDS = re.compile(rf"megatron.?core|\bmcore\b|transformer engine|{NEMO_WORDS.pattern}", re.IGNORECASE)
_MAKERS_SOURCES = re.compile(rf"nvidia|mlperf|megatron.?core|{NEMO_WORDS.pattern}", re.IGNORECASE)
_MEGASCALE_WORDS = re.compile(r"megascale|2402\.15627", re.IGNORECASE)
"""Its tensor, pipeline and data parallelism run beside compute; its tables have Megatron-LM beside it. Source: arXiv 2402.15627,
section 3.2."""
_OVERLAP_WORDS = re.compile(r"tp[-_ ]comm[-_ ]overlap|user ?buffers?\b", re.IGNORECASE)
HUGGING_FACE_WORDS = re.compile(
    r"\bHF\b|ml-engineering|hugging ?face|(?<![-\w])transformers\b|axolotl|llama-?factory"
    r"|llama-?(?:recipes|cookbook)|\baccelerate\b|\btrl\b|fastchat|alpaca",
    re.IGNORECASE,
)


def worded_software(
    name: str, source: str, notes: str, gpu: str, written: Written, is_megatron: bool = False, is_fsdp: bool = False
) -> Software:
    """The constants of a generation, with what the words say of its kernels, of attention and of sequence parallelism.

    Args:
        name: of the generation in ``SOFTWARE``.
        source: who published the row.
        notes: its remarks.
        gpu: as the row spells it.
        written: when the source was published.
        is_megatron: it is Megatron-LM of no other generation.
        is_fsdp: it is one of FSDP's trainers.
    """
    words, software = f"{source} {notes}", SOFTWARE[name]
    if is_megatron and (MEGATRON_CORE_WORDS.search(words) or _AFTER_AMPERE.search(gpu)):
        software = _megatron_core(source, words, written)
    if _RANK_BY_RANK_WORDS.search(words):
        first = SOFTWARE["deepspeed_2022"]
        software = replace(
            software, hop_latency_s=first.hop_latency_s, collectives_per_block=first.collectives_per_block
        )
    if _MEGASCALE_WORDS.search(words) and "megatron" not in notes.lower():
        software = replace(software, model_parallel_overlap=1.0, gradient_overlap=1.0)
    software = _with_attention(software, words, gpu, written)
    if _LATE_KERNEL_WORDS.search(words) or (written is not None and written >= _FIRST_OF_LATE_KERNELS):
        software = replace(software, own_kernels=True)
    if name != "nanotron" and HUGGING_FACE_WORDS.search(words):
        software = _of_hugging_face(software, words, written)
    elif name == "fsdp" and not (_MOSAIC_WORDS.search(words) or _FUSED_BLOCK_WORDS.search(words)):
        software = replace(software, element_traffic=EAGER_ELEMENT_TRAFFIC)
    if is_fsdp:
        # With tensor parallelism these trainers split norms and residuals over the sequence as well.
        sums = 4 if _WIDE_SUMS_WORDS.search(words) else software.gradient_bytes
        software = replace(software, sequence_parallel=True, gradient_bytes=sums)
    if FUSED_LOSS_WORDS.search(words):
        software = replace(software, loss_bytes=LOSS_BYTES_PER_LOGIT)
    if _NO_SEQUENCE_PARALLEL_WORDS.search(words):
        return replace(software, sequence_parallel=False)
    if _SEQUENCE_PARALLEL_WORDS.search(words):
        return replace(software, sequence_parallel=True)
    return software


def _megatron_core(source: str, words: str, written: Written) -> Software:
    """As its makers run it; with others, tensor parallelism does not run beside compute, for which an option and MPI are
    needed, and before Transformer Engine had them there are no kernels for Hopper.

    Source: Megatron-LM, arguments.py (tp_comm_overlap is off) and README (the H100 tables were made with it).
    """
    software = SOFTWARE["megatron_core"]
    if _MAKERS_SOURCES.search(source):
        return software
    overlap = software.model_parallel_overlap if _OVERLAP_WORDS.search(words) else 0.0
    has_kernels = written is None or written >= _FIRST_OF_HOPPER_KERNELS
    return replace(
        software, model_parallel_overlap=overlap, own_kernels=has_kernels, loss_bytes=SOFTWARE["megatron"].loss_bytes
    )


def _of_hugging_face(software: Software, words: str, written: Written) -> Software:
    """Each operator of a block is a kernel of its own, of attention too until transformers had a fused one."""
    if not _FUSED_BLOCK_WORDS.search(words):
        traffic = max(software.element_traffic, EAGER_ELEMENT_TRAFFIC)
        software = replace(software, element_traffic=traffic, loss_bytes=UNFUSED_LOSS_BYTES)
    if _AUTOCAST_WORDS.search(words):
        software = replace(software, gradient_bytes=4, adam_bytes=UNFUSED_ADAM_BYTES)
    is_early = written is not None and written <= _LAST_OF_EAGER_ATTENTION
    if software.fused_attention and is_early and not _FLASH_WORDS.search(words):
        software = replace(software, fused_attention=False, attention_share=SOFTWARE["megatron_2021"].attention_share)
    return software if software.fused_attention else replace(software, score_bytes=EAGER_SCORE_BYTES)


def _with_attention(software: Software, words: str, gpu: str, written: Written) -> Software:
    """As the remarks say; where they say nothing, not fused before it was published or on GPUs that its kernels leave out."""
    too_early = written is not None and written <= LAST_WITHOUT_FLASH_ATTENTION
    if _NO_FLASH_WORDS.search(words):
        return replace(software, fused_attention=False)
    if _FLASH_WORDS.search(words):
        share = software.attention_share if software.fused_attention else Software.attention_share
        software = replace(software, fused_attention=True, attention_share=share)
    elif software.fused_attention and (too_early or _BEFORE_AMPERE.search(gpu)):
        return replace(software, fused_attention=False, attention_share=SOFTWARE["megatron_2021"].attention_share)
    is_second = written is None or written >= _FIRST_OF_FLASH_ATTENTION_2
    if software.fused_attention and is_second and not (_FIRST_FLASH_WORDS.search(words) or _OTHER_MAKERS.search(gpu)):
        software = replace(software, attention_share=FLASH_2_SHARE, attention_row_cost=FLASH_2_ROW_COST)
    return software
