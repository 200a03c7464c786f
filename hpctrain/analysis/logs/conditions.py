"""What a reader of a log must know before using its numbers: conditions by name, and values derived from the records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.loss_conditions import loss_flags
from hpctrain.analysis.logs.reading_summary import summary_of
from hpctrain.analysis.logs.record_columns import RecordColumns
from hpctrain.analysis.logs.run_conditions import run_flags
from hpctrain.analysis.logs.speed_conditions import speed_flags

_LABEL_TRAITS = frozenset({"process_label", "torchrun_label", "srun_label"})
_RANK = re.compile(r"rank\d+")
_NO_CONDITIONS = frozenset({"damaged_lines"})
"""Counted in ``LogReading.damaged_lines``; no name of the samples."""


@dataclass(frozen=True)
class Conditions:
    """Names of the samples' flags and of their derived values."""

    flags: tuple[str, ...]
    """Sorted; a condition with a place names it: ``loss_spike_at_31219``."""
    summary: Mapping[str, object]
    """Units are in the names; a value that the log does not give is absent."""


def find_conditions(reading: LogReading) -> Conditions:
    """All conditions of one log, each by one rule with a named threshold, and the values derived from its records.

    The rules are in ``loss_conditions``, ``speed_conditions`` and ``run_conditions``; how the file is written comes with
    the reading.
    """
    columns = RecordColumns(reading)
    # A log may hold any number, also zeros to divide by; what is not finite then counts as missing.
    with np.errstate(all="ignore"):
        flags = {*_written(reading), *loss_flags(columns), *speed_flags(columns), *run_flags(columns)}
        return Conditions(tuple(sorted(flags)), summary_of(columns))


def _written(reading: LogReading) -> set[str]:
    """Traits of the file; of labels the most special name, and none for a rank that the records carry as a field."""
    flags = set(reading.traits - _LABEL_TRAITS - _NO_CONDITIONS)
    if "srun_label" in reading.traits:
        flags.add("srun_label")
    if "torchrun_label" in reading.traits:
        labels = {str(label) for label in reading.records.column("rank_label") if label is not None}
        if any(not _RANK.fullmatch(label) for label in labels):
            flags.add("torchrun_label")
    elif "process_label" in reading.traits and "srun_label" not in reading.traits:
        flags.add("process_label")
    return flags
