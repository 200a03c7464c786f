"""Which software a described run used, and how its memory was read: from the words of its source and notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpctrain.plan.speed.software import SOFTWARE, Software
from hpctrain.plan.stated.memory_habits import FUSED_LOSS_BYTES, HABITS, MemoryHabits
from hpctrain.plan.stated.tier_memory import Reading, States

_GENERATIONS = (
    ("on Azure", "deepspeed_2022"),
    ("llm-foundry", "fsdp"),
    ("fms-fsdp", "fsdp"),
    ("BigScience", "megatron_deepspeed_2022"),
    ("Megatron-DeepSpeed", "megatron_deepspeed_2022"),
    ("SC21", "megatron_2021"),
    ("Megatron-LM README", "megatron_2021"),
    ("MT-NLG", "megatron_2021"),
    ("Nanotron", "nanotron"),
    ("Ulysses", "deepspeed"),
)
"""Words of ``source`` and the software generation that they stand for; the first that fits."""
_ZERO_3_OF_2021 = ("SC21", "BigScience (V100")
_FSDP_WORDS = re.compile(r"torchtitan|\bFSDP|litgpt|lightning|maxtext|paxml|\bjax\b", re.IGNORECASE)
_COMPILED_WORDS = re.compile(r"compile|maxtext|paxml|\bjax\b", re.IGNORECASE)
_DEEPSPEED_WORDS = re.compile(r"deepspeed|\bzero\b|zero-", re.IGNORECASE)
_ALLOCATED_SOURCES = ("low-precision master", "Megatron-DeepSpeed READMEs", "SimuMax", "LitGPT")
"""They print what torch.cuda.max_memory_allocated says."""
_ALLOCATED_WORDS = re.compile(r"\balloc(ated|ation)?\b")
_FUSED_LOSS_WORDS = re.compile(
    r"llm-foundry|liger|fused (cross.entropy|loss)|cross.entropy fusion|chunked loss", re.IGNORECASE
)
_NEMO_WORDS = re.compile(r"\bnemo\b|dgx ?cloud|dgxc|megatron-bridge", re.IGNORECASE)
_MEGATRON_CORE_WORDS = re.compile(rf"megatron.?core|\bmcore\b|transformer engine|{_NEMO_WORDS.pattern}", re.IGNORECASE)
_MEGATRON_DEEPSPEED_WORDS = re.compile(r"megatron-deepspeed|gpt-neox|\bbloom\b", re.IGNORECASE)
_NEW_GPUS = re.compile(r"\bG?[HB][23]00|\bG?H100|\bMI3\d\d|\bmax\b|\bpvc\b", re.IGNORECASE)
"""On them Megatron-DeepSpeed is a later one than that of BLOOM and GPT-NeoX."""
_FLASH_WORDS = re.compile(r"flash[- ]?att", re.IGNORECASE)
_NO_FLASH_WORDS = re.compile(r"\b(?:no|without|before) flash[- ]?att|\beager attention", re.IGNORECASE)
_NO_SEQUENCE_PARALLEL_WORDS = re.compile(r"\b(?:no|without) (?:SP\b|sequence[- ]parallel)", re.IGNORECASE)
_AFTER_AMPERE = re.compile(r"\bG?[HB][23]00|\bG?H100", re.IGNORECASE)
_HUGGING_FACE_WORDS = re.compile(r"\bHF\b|hugging ?face|(?<![-\w])transformers\b|axolotl|llama-?factory", re.IGNORECASE)
_COMPILED_LOSS_YEARS = re.compile(r"20(2[5-9]|[3-9]\d)")


@dataclass(frozen=True)
class Trainer:
    """What the planner's rules take from the software."""

    software: Software
    habits: MemoryHabits
    states: States
    reading: Reading

    @property
    def offloads(self) -> bool:
        """It can move states and block inputs to host memory."""
        return self.habits.name in ("deepspeed", "megatron_deepspeed")


def find_trainer(
    source: str,
    notes: str,
    precision: str,
    zero_stage: int | None,
    has_offload: bool = False,
    ref: str = "",
    gpu: str = "",
) -> Trainer:
    """The trainer that the words mean; without a known word DeepSpeed for stages 2 and 3 and for offload, else
    Megatron-LM.

    Args:
        source: who published the row.
        notes: remarks of the row.
        precision: data type as the row spells it.
        zero_stage: None: not stated.
        has_offload: states lie in host memory.
        ref: file or page of the row, whose date tells the version where that matters.
        gpu: as the row spells it; Megatron-LM on one that came after the A100 is of the time of Megatron-Core.

    >>> find_trainer("pytorch/torchtitan", "", "bf16", 3).habits.name
    'fsdp'
    """
    name = _generation(source, notes, zero_stage, gpu)
    habits = HABITS[name]
    words = f"{source} {notes}"
    if name == "megatron" and (has_offload or zero_stage == 2 or _DEEPSPEED_WORDS.search(words)):
        habits = HABITS["deepspeed"]
    if _FUSED_LOSS_WORDS.search(words):
        habits = replace(habits, loss_bytes=FUSED_LOSS_BYTES, split_loss_bytes=None)
    elif name == "fsdp_compiled" and "torchtitan" in f"{words} {ref}":
        habits = _torchtitan_loss(habits, f"{words} {ref}")
    if habits.name == "megatron" and _NEMO_WORDS.search(words):
        # Its bf16 recipes reduce gradients as they are and fuse the loss.
        # Source: NeMo, collections/llm/recipes/precision/mixed_precision.py (grad_reduce_in_fp32).
        habits = replace(habits, gradient_bytes=2, loss_bytes=FUSED_LOSS_BYTES)
    if habits.buckets and _HUGGING_FACE_WORDS.search(words):
        habits = replace(habits, bucket_elements=None)
    has_bf16_sums = "bf16" in precision and "before DeepSpeed's BF16 optimizer" not in notes
    if habits.name == "megatron_deepspeed" and has_bf16_sums and (zero_stage or 0) < 2:
        # Its bf16 optimizer sums in fp32 (4) beside the gradients of the pass (2), and steps on the sums themselves.
        # Source: DeepSpeed, runtime/bf16_optimizer.py; runtime/pipe/engine.py, _exec_backward_pass.
        habits = replace(habits, gradient_bytes=6, step_bytes=0, cast_gradients=True)
    software = SOFTWARE[name]
    if habits.name == name == "megatron" and (_MEGATRON_CORE_WORDS.search(words) or _AFTER_AMPERE.search(gpu)):
        software = SOFTWARE["megatron_core"]
    if _NO_FLASH_WORDS.search(words):
        software = replace(software, fused_attention=False)
    elif _FLASH_WORDS.search(words) and not software.fused_attention:
        software = replace(software, fused_attention=True, attention_share=Software.attention_share)
    if habits.sharded_master_only:
        # With tensor parallelism these trainers split norms and residuals over the sequence as well.
        software = replace(software, sequence_parallel=True)
    if _NO_SEQUENCE_PARALLEL_WORDS.search(words):
        software = replace(software, sequence_parallel=False)
    return Trainer(software, habits, _states(precision, source), _reading(source, notes))


def _torchtitan_loss(habits: MemoryHabits, words: str) -> MemoryHabits:
    """Its loss is compiled with the blocks since 2025, and was not before.

    Source: torchtitan, pull request 1033.
    """
    if _COMPILED_LOSS_YEARS.search(words):
        return replace(habits, loss_bytes=FUSED_LOSS_BYTES, split_loss_bytes=None)
    eager = HABITS["fsdp"]
    return replace(habits, loss_bytes=eager.loss_bytes, split_loss_bytes=eager.split_loss_bytes)


def _generation(source: str, notes: str, zero_stage: int | None, gpu: str) -> str:
    without_compile = "no torch.compile" in notes.lower()
    if "fms-fsdp" in source and not without_compile:
        return "fsdp_compiled"
    if zero_stage == 3 and any(words in source for words in _ZERO_3_OF_2021):
        return "deepspeed_2021"
    for words, name in _GENERATIONS:
        if words in source:
            return name
    if zero_stage != 3 and _MEGATRON_DEEPSPEED_WORDS.search(f"{source} {notes}") and not _NEW_GPUS.search(gpu):
        return "megatron_deepspeed_2022"
    if _MEGATRON_CORE_WORDS.search(f"{source} {notes}"):
        return "megatron"
    if _FSDP_WORDS.search(f"{source} {notes}") and "DeepSpeed" not in source:
        compiled = _COMPILED_WORDS.search(f"{source} {notes}") and not without_compile
        return "fsdp_compiled" if compiled else "fsdp"
    return "deepspeed" if zero_stage == 3 else "megatron"


def _states(precision: str, source: str) -> States:
    """``bf16/PURE`` is Composer's name for 16-bit computation over fp32 states; ``bf16-pure`` and ``bf16-true`` have no other.

    LitGPT's recipes are of the last kind. Source: litgpt, config_hub/finetune (precision: bf16-true).
    """
    words = precision.lower()
    if words == "bf16" and source.startswith("LitGPT"):
        return "pure"
    if words in ("fp32", "tf32", "float32"):
        return "fp32"
    return "pure" if words.startswith(("bf16-pure", "bf16-true", "fp16-true")) else "mixed"


def _reading(source: str, notes: str) -> Reading:
    if "nvidia-smi" in notes or "BigScience" in source:
        return "device"
    is_allocated = _ALLOCATED_WORDS.search(notes) or any(words in source for words in _ALLOCATED_SOURCES)
    return "allocated" if is_allocated else "reserved"
