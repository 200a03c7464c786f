"""What the remarks of a row say of its schedule, its optimizer, and of where block inputs wait."""

from __future__ import annotations

import re

_ON_HOST = re.compile(
    r"activation checkpoints on the host|checkpoint-in-cpu on|\+ OC\b|v1\.1\.5-ZeRO3\b(?!.*checkpoint-in-cpu off)"
    r"|(?<!= )(?<!no )(?<!without )\b(?:cpu_checkpointing(?!\W+(?:off|false)\b)"
    r"|activation(?:[- ]checkpoint(?:s|ing)?)?(?: (?:to )?(?:cpu|host))? offload(?:ed|ing)?\b"
    r"|offload(?:ed|ing) (?:of )?activation)",
    re.IGNORECASE,
)
"""``OC`` is FPDT's word for it, which its rows explain with "OC = ..."; an explanation is no statement. Megatron-LM-v1.1.5-ZeRO3
does it unless it is told not to (DeepSpeedExamples, examples/ds_pretrain_gpt2-zero3.sh: PA_CPU=true)."""
_NOT_ON_HOST = re.compile(
    r"\b(?:no|without) (?:activation[- ](?:checkpoint(?:s|ing)? )?(?:cpu )?offload|cpu[_ ]checkpointing|offload of activations?)",
    re.IGNORECASE,
)
_SPLIT = re.compile(
    r"(?<!no )(?<!without )\bpartition(?:ed|s|ing)?[_ ](?:the )?activations?\b(?!\W+(?:off|false)\b)"
    r"|\bactivation partitioning|\(Pa\)",
    re.IGNORECASE,
)
_OTHER_OPTIMIZER = re.compile(
    r"\b8[- ]?bit (?:paged )?adam|adam\w*[- ]?8[- ]?bit|\badafactor|\bpaged[_ ]?adam|\blion\b|\bgalore|\blomo\b|\bq-?adam|\bbnb\b"
    r"|\bsgd\b|\bmuon\b|\bbf16 (?:adam|moments|optimizer states)|anyprecision",
    re.IGNORECASE,
)
_FINE_TUNING = re.compile(r"\bfine-?tun|\bSFT\b", re.IGNORECASE)
_OPTIMIZER = re.compile(r"adam|mixed.precision|zero-?[123]\b|fp32 (?:master|states)", re.IGNORECASE)
_COUNT = r"(\d{1,3}(?:,\d{3})+|\d{3,})"
_POSITIONS = re.compile(
    r"\b(?:max_position_embeddings|n_positions|n_ctx|(?:learned )?position(?:s|al)?(?: (?:table|embeddings?))?(?: of)?)"
    rf"\W{{0,3}}{_COUNT}\b|\b{_COUNT} (?:learned )?positions\b",
    re.IGNORECASE,
)
_NO_TABLE = re.compile(r"\brotary|\brope\b|\balibi\b", re.IGNORECASE)
_STAGES_A_RANK = re.compile(
    r"(\d+) (?:virtual (?:pipeline )?stages|interleav\w+ stages|(?:model|virtual|pipeline) chunks)"
    r"|\b(?:vpp?|virtual[- ]pipeline(?:[- ](?:size|degree|stages))?)[ =:]+(\d+)\b",
    re.IGNORECASE,
)
_LAYERS_A_STAGE = re.compile(r"(\d+) layers? (?:a|per) virtual stage")


def checkpoints_on_host(notes: str) -> bool:
    """Whether block inputs that wait for the backward pass lie in host memory.

    >>> checkpoints_on_host("AC + OC; OC = activation-checkpoint CPU offload"), checkpoints_on_host("cpu_checkpointing: true")
    (True, True)
    >>> checkpoints_on_host("Megatron v1.1.5-ZeRO3"), checkpoints_on_host("Megatron v1.1.5-ZeRO3; --checkpoint-in-cpu off")
    (True, False)
    >>> checkpoints_on_host("TP + AC; OC = activation-checkpoint CPU offload"), checkpoints_on_host("no activation offload")
    (False, False)
    """
    return bool(_ON_HOST.search(notes))


def checkpoints_on_device(notes: str) -> bool:
    """Whether they deny that block inputs lie in host memory.

    >>> checkpoints_on_device("no activation offload"), checkpoints_on_device("no offload of states"), checkpoints_on_device("")
    (True, False, False)
    """
    return bool(_NOT_ON_HOST.search(notes))


def checkpoints_split(notes: str) -> bool:
    """Whether each tensor rank keeps a part of a block's input.

    >>> checkpoints_split("partitioned activations"), checkpoints_split("partition_activations: true"), checkpoints_split("(Pa)")
    (True, True, True)
    >>> checkpoints_split("no partition_activations"), checkpoints_split("partition_activations: false")
    (False, False)
    """
    return bool(_SPLIT.search(notes))


def positions_stated(notes: str) -> int | None:
    """Tokens for which a model has learned positions, where they say it.

    >>> positions_stated("max_position_embeddings: 1024"), positions_stated("position table of 2,048"), positions_stated("")
    (1024, 2048, None)
    >>> positions_stated("1,024 learned positions"), positions_stated("rotary, 2048 positions"), positions_stated("position 3")
    (1024, None, None)
    """
    match = None if _NO_TABLE.search(notes) else _POSITIONS.search(notes)
    return None if match is None else int((match[1] or match[2]).replace(",", ""))


def optimizer_is_open(notes: str) -> bool:
    """Whether a run may have other states than Adam's in fp32: another optimizer is named, or it is fine-tuning, which is done in
    16 bit and with 8-bit optimizers as well.

    >>> optimizer_is_open("full fine-tuning on Alpaca2k"), optimizer_is_open("full fine-tuning, AdamW"), optimizer_is_open("")
    (True, False, False)
    >>> optimizer_is_open("full fine-tuning, 8-bit paged AdamW"), optimizer_is_open("Muon (one momentum buffer)")
    (True, True)
    """
    if _OTHER_OPTIMIZER.search(notes):
        return True
    return bool(_FINE_TUNING.search(notes)) and not _OPTIMIZER.search(notes)


def virtual_stages_stated(notes: str) -> bool:
    """Whether they tell in how many pieces a pipeline rank is cut."""
    return bool(_STAGES_A_RANK.search(notes) or _LAYERS_A_STAGE.search(notes))


def virtual_stages(notes: str, layers_per_rank: int) -> int:
    """Pieces of a pipeline rank, at least one and at most a block each; interleaved without a number: the least there is.

    >>> virtual_stages("interleaved", 8), virtual_stages("2 layers a virtual stage", 8), virtual_stages("", 8)
    (2, 4, 1)
    >>> [virtual_stages(notes, 8) for notes in ("0 virtual stages", "0 layers a virtual stage", "99 virtual stages")]
    [1, 8, 8]
    >>> [virtual_stages(notes, 8) for notes in ("VP 4", "vpp=2", "interleaved 1F1B, 8 model chunks", "virtual pipeline size 4")]
    [4, 2, 8, 4]
    """
    if match := _STAGES_A_RANK.search(notes):
        return max(1, min(int(match[1] or match[2]), layers_per_rank))
    if match := _LAYERS_A_STAGE.search(notes):
        return max(1, layers_per_rank // max(1, int(match[1])))
    return 2 if re.search(r"\binterleaved\b", notes, re.IGNORECASE) else 1
