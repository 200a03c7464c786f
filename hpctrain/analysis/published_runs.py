"""What a row of the published files describes, resolved to what the planner's core takes.

The resolving itself is ``plan/stated/run.py``, the path of ``plan --table``; a row that is held against its measurement must
state more, so that no choice of ours is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.flop_conventions import FlopConvention
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.speed.software import Software
from hpctrain.plan.speed.step_parts import Machine, Setup
from hpctrain.plan.stated import run as stated
from hpctrain.plan.stated.memory_choice import choose_memory

_NEEDED = ("layers", "hidden", "seq_len", "num_gpus", "micro_batch_per_gpu", "global_batch")


@dataclass(frozen=True)
class PublishedRun:
    """A row, resolved."""

    setup: Setup
    machine: Machine
    software: Software
    num_parameters: float
    """As the row states them, for the FLOP conventions with N."""
    convention: FlopConvention | None
    assumptions: tuple[str, ...]
    """What the row does not state and was taken, a few words each."""


def published_run(row: Mapping[Any, Any]) -> PublishedRun:
    """The run that a row of the published files describes.

    Args:
        row: columns of the published files; missing values are None or pandas' NA.

    Raises:
        ConfigError: the row leaves out what cannot be assumed, its numbers contradict each other, or it is a run of a kind
            that the planner has no rules for.
    """
    known = without_missing(row)
    missing = [name for name in (*_NEEDED, "gpu") if known.get(name) is None]
    if missing:
        raise _refusal(f"does not state {', '.join(missing)}")
    if known.get("tp") is None and known.get("dp") is None:
        raise _refusal("does not state tp, pp, dp")
    run = stated.stated_run(known)
    assert run.machine is not None, "the GPU is stated"
    choice = choose_memory(run, known)
    chosen = tuple(f"{words}, since it does not fit otherwise" for words in choice.chosen)
    return PublishedRun(
        choice.setup,
        run.machine,
        run.trainer.software,
        run.num_parameters,
        run.convention,
        (*run.assumptions, *chosen),
    )


def row_shape(row: Mapping[Any, Any]) -> tuple[ModelShape, float]:
    """Shape of a row, and its parameters as stated (those of the shape, where nothing is stated).

    Raises:
        ConfigError: layers or hidden size are missing, or the heads do not divide.
    """
    return stated.row_shape(without_missing(row))


def gpu_memory_gib(row: Mapping[Any, Any]) -> float:
    """What a process can allocate on one GPU of the row; 1 % less than the name says, by public out-of-memory reports."""
    return stated.gpu_memory_gib(without_missing(row))


def text_of(row: Mapping[Any, Any], name: str) -> str:
    """A text column, empty where it is missing."""
    value = row.get(name)
    return "" if value is None or pd.isna(value) else str(value)


def without_missing(row: Mapping[Any, Any]) -> dict[str, str | float | None]:
    """The row with None for pandas' NA."""
    return {str(name): None if pd.isna(value) else value for name, value in row.items()}


def _refusal(rule: str) -> ConfigError:
    return ConfigError([Problem("row", "", rule, "")])
