"""Which software a described run used, and how its memory was read: from the words of its source and notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpctrain.plan.speed.software import Software
from hpctrain.plan.stated.memory_habits import (
    FUSED_LOSS_BYTES,
    HABITS,
    MemoryHabits,
    of_fp16_megatron,
    of_hugging_face,
    with_liger_kernels,
)
from hpctrain.plan.stated.tier_memory import Reading, States
from hpctrain.plan.stated.trainer_speed import (
    FUSED_LOSS_WORDS,
    HUGGING_FACE_WORDS,
    LAST_WITHOUT_FLASH_ATTENTION,
    MEGATRON_CORE_WORDS,
    NEMO_WORDS,
    Written,
    worded_software,
)

_GENERATIONS = (
    ("on Azure", "deepspeed_2022"),
    ("llm-foundry", "fsdp"),
    ("fms-fsdp", "fsdp"),
    ("BigScience", "megatron_deepspeed_2022"),
    ("SC21", "megatron_2021"),
    ("Megatron-LM README", "megatron_2021"),
    ("MT-NLG", "megatron_deepspeed_2022"),
    ("Nanotron", "nanotron"),
    ("Ulysses", "deepspeed"),
)
"""Words of ``source`` and the software generation that they stand for; the first that fits."""
_ZERO_3_OF_2021 = ("SC21", "BigScience (V100")
_FSDP_WORDS = re.compile(
    r"torchtitan|torchtune|\b[FH]SDP|litgpt|lightning|maxtext|paxml|\bjax\b|mosaic|metaseq|fairscale", re.IGNORECASE
)
_TORCH_1_WORDS = re.compile(r"\b(?:py)?torch[ =v]*1\.\d|mosaicgpt|metaseq|fairscale", re.IGNORECASE)
_DATE = re.compile(r"arxiv[: ]*(?P<paper>\d{4})\.\d{4,5}|\b20(?P<year>[12]\d)(?:-(?P<month>[01]\d))?\b", re.IGNORECASE)
_LAST_OF_TORCH_1 = (23, 6)
"""Year and month until which what was published was measured with PyTorch 1: PyTorch 2.0 came in March 2023. How long a release
takes to reach what is published is an assumption here and in the next."""
_LAST_OF_FIRST_ZERO_3 = (21, 12)
"""Between the sources of the two generations: SC21 is of November 2021, DeepSpeed on Azure of July 2022."""
_DAY = re.compile(r"\b20[12]\d-[01]\d(?:-[0-3]\d)?\b")
_FIRST_OF_BF16_SUMS = "2022-02-28"
"""DeepSpeed's BF16 optimizer: BigScience's table of 17 February sums gradients in bf16, that of the 28th in fp32 (bigscience,
train/tr11-176B-ml/chronicles-prequel.md)."""
_COMPILED_WORDS = re.compile(r"compile|maxtext|paxml|\bjax\b", re.IGNORECASE)
_DEEPSPEED_WORDS = re.compile(r"deepspeed|\bzero\b|zero-", re.IGNORECASE)
_ALLOCATED_SOURCES = ("low-precision master", "Megatron-DeepSpeed READMEs", "SimuMax", "LitGPT")
"""They print what torch.cuda.max_memory_allocated says."""
_ONE_SELECTION_WORDS = re.compile(r"torchtitan|selective[- ]op\b", re.IGNORECASE)
"""Of every second product, or of every second block where the row says so."""
_WHOLE_BLOCKS_WORDS = re.compile(r"selective[- ]layer|every (?:second|other) block", re.IGNORECASE)
_PURE_SOURCES = re.compile(r"^litgpt|torchtune", re.IGNORECASE)
_ALLOCATED_WORDS = re.compile(r"\balloc(ated|ation)?\b|\bmemory active\b|\bactive memory\b")
_LIGER_WORDS = re.compile(r"(?<!no )(?<!without )(?<!w/o )\bliger", re.IGNORECASE)
_NO_LOGITS_WORDS = re.compile(
    r"chunked (?:cross[- ]?entropy|loss)|(?:fused[- ]linear|linear[- ]fused|cut)[- ]cross[- ]?entropy",
    re.IGNORECASE,
)
"""The output matrix is applied to a few tokens at a time, whose loss and gradient are formed at once."""
_MEGATRON_DEEPSPEED_WORDS = re.compile(
    r"megatron(?:-lm)?(?:[-/+&, ]| and )+deepspeed|deepspeed(?:[-/+&, ]| and )+megatron|gpt-neox|\bbloom\b",
    re.IGNORECASE,
)
_NEW_GPUS = re.compile(r"\bG?[HB][23]00|\bG?H100|\bMI3\d\d|\bmax\b|\bpvc\b", re.IGNORECASE)
"""On them Megatron-DeepSpeed is a later one than that of BLOOM and GPT-NeoX."""
_COUNTED_WORDS = re.compile(
    r"megatron|deepspeed|deepcompile|\bzero(?:[- ]?[123])?\b|zero-|bigscience"
    r"|nemo|torchtitan|torchtune|llm-foundry|fms-fsdp|nanotron|simumax|SC21|MT-NLG"
    rf"|gpt-neox|ulysses|{HUGGING_FACE_WORDS.pattern}",
    re.IGNORECASE,
)
_COUNTED_FSDP_WORDS = re.compile(
    rf"nemo|torchtitan|torchtune|llm-foundry|fms-fsdp|{HUGGING_FACE_WORDS.pattern}", re.IGNORECASE
)
"""With FSDP: its rows speak of ZeRO's stages, and of Megatron's degrees, without its software."""
_NORMED_QUERIES_WORDS = re.compile(r"qwen[- ]?3(?![.\db])|olmo[- ]?2|gemma[- ]?3|qk[- _]?(?:layer)?norm", re.IGNORECASE)
"""Source: transformers, models/qwen3/modeling_qwen3.py (q_norm, k_norm), and Megatron-LM's option --qk-layernorm."""
_FIRST_GATHERING_IN_PLACE = (24, 1)
"""Source: DeepSpeed, pull request 4705 (all_gather_into_tensor)."""
_PUBLISHED_SPEED_WORDS = re.compile(r"(?<!\d)2\d\.\d\d|perf|nemo|dgx", re.IGNORECASE)
"""Megatron-Bridge's own results, by container or page."""
_LOSS_DATE = re.compile(r"(?<!\d)20(?P<year>[2-9]\d)(?:-?(?P<month>[01]\d))?")
_FIRST_OF_COMPILED_LOSS = ("25", "04")


@dataclass(frozen=True)
class Trainer:
    """What the planner's rules take from the software."""

    software: Software
    habits: MemoryHabits
    states: States
    reading: Reading
    is_counted: bool = True
    """What it keeps was counted from its source; else its words only tell its kind."""
    chooses_blocks: bool = False
    """Selective recomputation means a share of blocks, which the user chooses (IBM's fms-fsdp)."""

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
    model: str = "",
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
        model: its name; some norm queries and keys.

    >>> find_trainer("pytorch/torchtitan", "", "bf16", 3).habits.name
    'fsdp'
    """
    written = _written(f"{source} {ref}") or _written(notes)
    name = _generation(source, notes, zero_stage, gpu, written)
    words = f"{source} {notes}"
    habits = _habits(name, source, notes, precision, zero_stage, has_offload, ref)
    if habits.name == "megatron_deepspeed" and written is not None and written >= _FIRST_GATHERING_IN_PLACE:
        habits = replace(habits, gather_bucket=None, awaits_collectives=True)
    habits = replace(habits, normed_queries=bool(_NORMED_QUERIES_WORDS.search(f"{model} {notes}")))
    is_megatron = habits.name == name == "megatron"
    software = worded_software(name, source, notes, gpu, written, is_megatron, habits.sharded_master_only)
    chooses_blocks = habits.sharded_master_only and not _ONE_SELECTION_WORDS.search(f"{words} {ref}")
    known = _COUNTED_FSDP_WORDS if habits.sharded_master_only else _COUNTED_WORDS
    is_counted = bool(known.search(words))
    return Trainer(software, habits, _states(precision, source), _reading(source, notes), is_counted, chooses_blocks)


def _habits(
    name: str, source: str, notes: str, precision: str, zero_stage: int | None, has_offload: bool, ref: str
) -> MemoryHabits:
    """Of a generation, with what the words say of its loss, its sums and what it recomputes."""
    habits = HABITS[name]
    words = f"{source} {notes}"
    if name == "megatron" and (has_offload or zero_stage == 2 or _DEEPSPEED_WORDS.search(words)):
        habits = HABITS["deepspeed"]
    elif name == "megatron_2021" and (has_offload or zero_stage == 2):
        habits = HABITS["deepspeed_2022"]
    elif "Ulysses" in source:
        habits = HABITS["deepspeed_2022"]  # its experiments run in Megatron-DeepSpeed
    if name != "nanotron" and HUGGING_FACE_WORDS.search(words):
        habits = of_hugging_face(habits)
    if _LIGER_WORDS.search(words):
        habits = with_liger_kernels(habits)
    elif _NO_LOGITS_WORDS.search(words):
        habits = replace(habits, loss_bytes=0, split_loss_bytes=None, gated_loss_bytes=None)
    elif FUSED_LOSS_WORDS.search(words):
        habits = replace(habits, loss_bytes=FUSED_LOSS_BYTES, split_loss_bytes=None, gated_loss_bytes=None)
    elif name == "fsdp_compiled" and "torchtitan" in f"{words} {ref}":
        habits = _torchtitan_loss(habits, f"{words} {ref}")
    if habits.name == "megatron" and NEMO_WORDS.search(words):
        # Its bf16 recipes reduce gradients as they are and fuse the loss; Megatron-Bridge's do where its speed is published.
        # Source: NeMo, collections/llm/recipes/precision/mixed_precision.py (grad_reduce_in_fp32); Megatron-Bridge,
        # training/mixed_precision.py (bf16_mixed) and scripts/performance.
        of_library = "bridge" in words.lower() and not _PUBLISHED_SPEED_WORDS.search(f"{words} {ref}")
        gradient_bytes = habits.gradient_bytes if of_library else 2
        habits = replace(habits, gradient_bytes=gradient_bytes, loss_bytes=FUSED_LOSS_BYTES)
    if habits.name == "megatron" and "fp16" in precision:
        habits = of_fp16_megatron(habits)
    if "ml-engineering" in source:
        # No zero.Init, and DeepSpeed's own buckets. Source: ml-engineering, insights/when-to-upgrade-gpus/benchmark.py.
        habits = replace(habits, whole_model_first=True, bucket_elements=HABITS[habits.name].bucket_elements)
    if "BLOOM" in source:
        # Their remedy for hangs was CUDA_LAUNCH_BLOCKING=1. Source: bigscience, train/tr11-176B-ml/chronicles-prequel.md.
        habits = replace(habits, awaits_collectives=True)
    has_bf16_sums = "bf16" in precision and min(_DAY.findall(words), default=_FIRST_OF_BF16_SUMS) >= _FIRST_OF_BF16_SUMS
    if habits.name == "megatron_deepspeed" and has_bf16_sums and (zero_stage or 0) < 2:
        # Its bf16 optimizer sums in fp32 (4) beside the gradients of the pass (2), and steps on the sums themselves.
        # Source: DeepSpeed, runtime/bf16_optimizer.py; runtime/pipe/engine.py, _exec_backward_pass.
        habits = replace(habits, gradient_bytes=6, step_bytes=0, cast_gradients=True)
    if (
        habits.sharded_master_only
        and _ONE_SELECTION_WORDS.search(f"{words} {ref}")
        and not _WHOLE_BLOCKS_WORDS.search(words)
    ):
        habits = replace(habits, every_second_product=True)
    return habits


def _torchtitan_loss(habits: MemoryHabits, words: str) -> MemoryHabits:
    """Its loss is compiled with the blocks since April 2025, and was not before.

    Source: torchtitan, pull request 1033.
    """
    dates = [(match["year"], match["month"] or "12") for match in _LOSS_DATE.finditer(words)]
    if max(dates, default=("", "")) >= _FIRST_OF_COMPILED_LOSS:
        return replace(habits, loss_bytes=FUSED_LOSS_BYTES, split_loss_bytes=None)
    eager = HABITS["fsdp"]
    return replace(habits, loss_bytes=eager.loss_bytes, split_loss_bytes=eager.split_loss_bytes)


def _written(words: str) -> Written:
    """Year of the century and month in which a source was published, by dates and numbers of papers; None: it has none.

    The first of several; a year alone is taken for its end.

    >>> _written("Korthikanti 2022"), _written("Zhao 2023, arXiv 2304.11277"), _written("AWS (2022-03-15)"), _written("issue 13")
    ((22, 12), (23, 4), (22, 3), None)
    """
    dates = [
        (int(match["paper"][:2]), int(match["paper"][2:]))
        if match["paper"]
        else (int(match["year"]), int(match["month"] or 12))
        for match in _DATE.finditer(words)
    ]
    return min(dates, default=None)


def _generation(source: str, notes: str, zero_stage: int | None, gpu: str, written: Written) -> str:
    remarks = f"{source} {notes}"
    of_torch_1 = bool(_TORCH_1_WORDS.search(remarks)) or (written is not None and written <= _LAST_OF_TORCH_1)
    without_compile = "no torch.compile" in notes.lower()
    if "fms-fsdp" in source and not without_compile:
        return "fsdp_compiled"
    if zero_stage == 3 and any(words in source for words in _ZERO_3_OF_2021):
        return "deepspeed_2021"
    for words, name in _GENERATIONS:
        if words in source:
            return name
    if zero_stage != 3 and _MEGATRON_DEEPSPEED_WORDS.search(remarks) and not _NEW_GPUS.search(gpu):
        return "megatron_deepspeed_2022"
    if MEGATRON_CORE_WORDS.search(remarks):
        return "megatron"
    if _FSDP_WORDS.search(remarks) and "DeepSpeed" not in source:
        if _COMPILED_WORDS.search(remarks) and not without_compile:
            return "fsdp_compiled"
        return "fsdp_2022" if of_torch_1 else "fsdp"
    if zero_stage == 3:
        if written is not None and written <= _LAST_OF_FIRST_ZERO_3:
            return "deepspeed_2021"
        return "deepspeed_2022" if of_torch_1 else "deepspeed"
    before_flash = written is not None and written <= LAST_WITHOUT_FLASH_ATTENTION
    return "megatron_2021" if before_flash and not _NEW_GPUS.search(gpu) else "megatron"


def _states(precision: str, source: str) -> States:
    """``bf16/PURE`` is Composer's name for 16-bit computation over fp32 states; ``bf16-pure`` and ``bf16-true`` have no other.

    Recipes of LitGPT and torchtune are of the last kind. Source: litgpt, config_hub/finetune (precision: bf16-true); torchtune,
    recipes/full_finetune_single_device.py (the model is made in ``dtype``).
    """
    words = precision.lower()
    if words == "bf16" and _PURE_SOURCES.search(source):
        return "pure"
    if words in ("fp32", "tf32", "float32"):
        return "fp32"
    return "pure" if words.startswith(("bf16-pure", "bf16-true", "fp16-true")) else "mixed"


def _reading(source: str, notes: str) -> Reading:
    if "nvidia-smi" in notes or "BigScience" in source:
        return "device"
    is_allocated = _ALLOCATED_WORDS.search(notes) or any(words in source for words in _ALLOCATED_SOURCES)
    return "allocated" if is_allocated else "reserved"
