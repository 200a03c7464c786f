"""What of ZeRO++ and of FSDP's narrow gathers a described run has, by the words of its row."""

from __future__ import annotations

import re
from typing import NamedTuple

_PARTS = re.compile("hpz|qwz|qgz")


class Stage3Variants(NamedTuple):
    """Of a run in stage 3; all False in other stages."""

    has_second_partition: bool
    narrow_gathers: bool
    """Parameters are gathered in 8 bit."""
    narrow_sums: bool
    """Gradients are sent in 4 bit."""


def stage_3_variants(zero_stage: int | None, source: str, notes: str, precision: str) -> Stage3Variants:
    """All three parts of ZeRO++ where none is named; FSDP of torchtitan gathers in fp8 what it multiplies in fp8.

    Source: torchtitan, docs/float8.md (enable_fsdp_float8_all_gather).

    Args:
        zero_stage: None: not stated.
        source: who published the row, and its file.
        notes: remarks of the row.
        precision: data type as the row spells it.

    >>> stage_3_variants(3, "", "ZeRO++", "fp16"), stage_3_variants(3, "", "ZeRO++ (qwZ)", "fp16").has_second_partition
    (Stage3Variants(has_second_partition=True, narrow_gathers=True, narrow_sums=True), False)
    >>> stage_3_variants(3, "torchtitan", "Float8", "fp8").narrow_gathers, stage_3_variants(1, "", "ZeRO++", "").narrow_sums
    (True, False)
    """
    if zero_stage != 3:
        return Stage3Variants(False, False, False)
    words = notes.lower()
    named = set(_PARTS.findall(words)) or (set(_PARTS.findall("hpz qwz qgz")) if "zero++" in words else set())
    in_fp8 = "fp8" in precision.lower() and "torchtitan" in f"{source} {notes}".lower()
    return Stage3Variants("hpz" in named, "qwz" in named or in_fp8, "qgz" in named)
