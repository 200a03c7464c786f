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
_STAGES_A_RANK = re.compile(r"(\d+) virtual stages")
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
    """
    if match := _STAGES_A_RANK.search(notes):
        return max(1, min(int(match[1]), layers_per_rank))
    if match := _LAYERS_A_STAGE.search(notes):
        return max(1, layers_per_rank // max(1, int(match[1])))
    return 2 if re.search(r"\binterleaved\b", notes, re.IGNORECASE) else 1
