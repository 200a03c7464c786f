"""What the remarks of a row say of its schedule and of where block inputs wait."""

from __future__ import annotations

import re

_ON_HOST = re.compile(
    r"activation checkpoints on the host|checkpoint-in-cpu on|\+ OC\b"
    r"|(?<!= )(?<!no )(?<!without )\b(?:cpu_checkpointing(?!\W+(?:off|false)\b)"
    r"|activation(?:[- ]checkpoint(?:s|ing)?)?(?: (?:to )?(?:cpu|host))? offload(?:ed|ing)?\b"
    r"|offload(?:ed|ing) (?:of )?activation)",
    re.IGNORECASE,
)
"""``OC`` is FPDT's word for it, which its rows explain with "OC = ..."; an explanation is no statement."""
_FINE_TUNING = re.compile(r"\bfine-?tun|\bSFT\b", re.IGNORECASE)
_OPTIMIZER = re.compile(r"adam|mixed.precision|zero-?[123]\b|fp32 (?:master|states)", re.IGNORECASE)
_STAGES_A_RANK = re.compile(r"(\d+) virtual stages")
_LAYERS_A_STAGE = re.compile(r"(\d+) layers? (?:a|per) virtual stage")


def checkpoints_on_host(notes: str) -> bool:
    """Whether block inputs that wait for the backward pass lie in host memory.

    >>> checkpoints_on_host("AC + OC; OC = activation-checkpoint CPU offload"), checkpoints_on_host("cpu_checkpointing: true")
    (True, True)
    >>> checkpoints_on_host("TP + AC; OC = activation-checkpoint CPU offload"), checkpoints_on_host("no activation offload")
    (False, False)
    """
    return bool(_ON_HOST.search(notes))


def optimizer_is_open(notes: str) -> bool:
    """Whether a run may have other states than Adam's in fp32: fine-tuning is done in 16 bit and with 8-bit optimizers as well.

    >>> optimizer_is_open("full fine-tuning on Alpaca2k"), optimizer_is_open("full fine-tuning, AdamW"), optimizer_is_open("")
    (True, False, False)
    """
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
