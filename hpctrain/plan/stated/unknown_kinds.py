"""Kinds of runs that the planner has no rules for, by the words of a row."""

from __future__ import annotations

import re

_ADAPTERS = re.compile(r"\bq?lora\b|\badapters?\b|\bbnb\.", re.IGNORECASE)
_TILED = re.compile(r"\bFPDT \(|\bALST\b|\btiled (mlp|loss|compute)|\bArctic ?(Training|Long)", re.IGNORECASE)
_ONE_LAYER = re.compile(r"\bper-layer time\b|\bsingle layer\b", re.IGNORECASE)
_SPARSE = re.compile(
    r"mixtral|moe|\dx\d|\bgrok|deepseek-?v[23]|\bdbrx|\db-a\d+(?:\.\d)?b\b|gpt-oss|kimi-?k2", re.IGNORECASE
)


def unknown_kind(model: str, source: str, notes: str, precision: str) -> str:
    """Why a row cannot be planned, in words; empty: nothing speaks against it.

    >>> unknown_kind("Mixtral 8x7B", "", "", "bf16")
    'model=Mixtral 8x7B is sparse, the planner knows dense decoders'
    """
    if _SPARSE.search(model):
        return f"model={model} is sparse, the planner knows dense decoders"
    if _ADAPTERS.search(f"{notes} {precision}"):
        return "trains adapters; the planner knows runs that train all parameters"
    if _TILED.search(f"{source} {notes}"):
        return "computes a sequence in pieces, one after the other; the planner knows blocks that see it at once"
    if _ONE_LAYER.search(f"{model} {notes}"):
        return "is the time of a layer alone; the planner knows whole steps"
    return ""
