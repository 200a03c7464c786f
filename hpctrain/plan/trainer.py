"""Which software a described run used, and how its memory was read: from the words of its source and notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpctrain.plan.memory_habits import FUSED_LOSS_BYTES, HABITS, MemoryHabits
from hpctrain.plan.software import SOFTWARE, Software
from hpctrain.plan.tier_memory import Reading, States

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
)
"""Words of ``source`` and the software generation that they stand for; the first that fits."""
_ZERO_3_OF_2021 = ("SC21", "BigScience (V100")
_FSDP_WORDS = re.compile(r"torchtitan|\bFSDP|litgpt|lightning", re.IGNORECASE)
_DEEPSPEED_WORDS = re.compile(r"deepspeed|\bzero\b|zero-", re.IGNORECASE)
_ALLOCATED_SOURCES = ("low-precision master", "Megatron-DeepSpeed READMEs")
_FUSED_LOSS_WORDS = re.compile(r"llm-foundry|liger|fused (cross.entropy|loss)|chunked loss", re.IGNORECASE)


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


def find_trainer(source: str, notes: str, precision: str, zero_stage: int | None, has_offload: bool = False) -> Trainer:
    """The trainer that the words mean; without a known word DeepSpeed for stages 2 and 3 and for offload, else
    Megatron-LM.

    Args:
        source: who published the row.
        notes: remarks of the row.
        precision: data type as the row spells it.
        zero_stage: None: not stated.
        has_offload: states lie in host memory.

    >>> find_trainer("pytorch/torchtitan", "", "bf16", 3).habits.name
    'fsdp'
    """
    name = _generation(source, notes, zero_stage)
    habits = HABITS[name]
    words = f"{source} {notes}"
    if name == "megatron" and (has_offload or zero_stage == 2 or _DEEPSPEED_WORDS.search(words)):
        habits = HABITS["deepspeed"]
    if _FUSED_LOSS_WORDS.search(words):
        habits = replace(habits, loss_bytes=FUSED_LOSS_BYTES)
    if habits.name == "megatron_deepspeed" and "bf16" in precision and (zero_stage or 0) < 2:
        # Its bf16 optimizer accumulates in fp32 and needs no second copy in the step.
        habits = replace(habits, gradient_bytes=4, step_bytes=4)
    software = SOFTWARE[name]
    if habits.sharded_master_only:
        # With tensor parallelism these trainers split norms and residuals over the sequence as well.
        software = replace(software, sequence_parallel=True)
    return Trainer(software, habits, _states(precision), _reading(source, notes))


def _generation(source: str, notes: str, zero_stage: int | None) -> str:
    without_compile = "no torch.compile" in notes.lower()
    if "fms-fsdp" in source and not without_compile:
        return "fsdp_compiled"
    if zero_stage == 3 and any(words in source for words in _ZERO_3_OF_2021):
        return "deepspeed_2021"
    for words, name in _GENERATIONS:
        if words in source:
            return name
    if _FSDP_WORDS.search(f"{source} {notes}") and "DeepSpeed" not in source:
        compiled = "compile" in notes and not without_compile
        return "fsdp_compiled" if compiled else "fsdp"
    return "deepspeed" if zero_stage == 3 else "megatron"


def _states(precision: str) -> States:
    """``bf16/PURE`` is Composer's name for 16-bit computation over fp32 states; ``bf16-pure`` and ``bf16-true`` have no other."""
    words = precision.lower()
    if words in ("fp32", "tf32", "float32"):
        return "fp32"
    return "pure" if words.startswith(("bf16-pure", "bf16-true", "fp16-true")) else "mixed"


def _reading(source: str, notes: str) -> Reading:
    if "nvidia-smi" in notes or "BigScience" in source:
        return "device"
    return "allocated" if "allocated" in notes or any(words in source for words in _ALLOCATED_SOURCES) else "reserved"
