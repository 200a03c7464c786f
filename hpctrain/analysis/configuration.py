"""Which runs are of equal configuration: the columns that say so, and how a configuration is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hpctrain.analysis.scaling import COMPARABLE
from hpctrain.units import short_count

CONFIGURATION = (
    "source",
    *COMPARABLE,
    "nodes",
    "gpus",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "global_batch_size",
    "tokens_per_step",
)
"""Columns of ``runs`` that are equal in runs that are compared: the keys of a scaling group, and size and batch."""


def is_known(runs: pd.DataFrame) -> pd.Series:
    """Rows of which model, GPUs, batch and sequence are known."""
    identity = runs["model"].notna() | runs["num_parameters"].notna()
    return identity & runs["gpus"].notna() & runs["global_batch_size"].notna() & runs["seq_len"].notna()


def unknown_texts(runs: pd.DataFrame) -> list[str]:
    """One text for each of the other rows."""
    unknown = runs.loc[~is_known(runs), ["folder", "reason"]]
    return [
        f"{folder}: model, GPUs, batch or sequence not known: {reason}"
        for folder, reason in unknown.itertuples(index=False)
    ]


def configuration_label(row: Mapping[Any, Any]) -> str:
    """One line that names the configuration of a row."""
    model = row["model"] or f"{short_count(row['num_parameters'])} parameters"
    parts = [
        f"{model} on {row['gpus']} x {row['hardware'] or 'unknown hardware'}",
        f"{row['nodes'] or '?'} node(s)",
        row["parallelism"],
        row["precision"],
        f"micro batch {row['micro_batch_size'] or '?'} x {row['gradient_accumulation_steps'] or '?'}",
        f"sequence {row['seq_len'] or '?'}",
    ]
    return ", ".join(str(part) for part in parts if part)
