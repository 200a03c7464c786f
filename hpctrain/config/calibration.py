"""What past runs of a cluster say of predicted steps; in a module of its own, beside ``schema``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PartKind = Literal["compute", "communication", "host"]
"""What a part of a step waits for, see ``plan.calibration.KIND_OF_PART``."""


@dataclass(frozen=True)
class Seen:
    """What the runs were: least and greatest of each."""

    nodes: tuple[int, int]
    parameters: tuple[int, int]
    zero_stages: tuple[int, ...]
    """All of them, in order."""
    model_parallel: tuple[str, ...]
    """Ways in which some run spread a model: tensor, pipeline, sequence."""
    shares: dict[PartKind, tuple[float, float]]
    """Of the step as it is predicted without a calibration, by kind of parts."""


@dataclass(frozen=True)
class Calibration:
    """Factors for one kind of node in one data type, and what the runs were, to be held against a plan."""

    hardware: str
    precision: str
    compiled: bool
    """Of runs with ``training.compile``, whose blocks are other kernels."""
    rates: dict[str, float]
    """What the hardware stated when the runs were made, by dotted key: with other values the factors would be others."""
    factors: dict[PartKind, float]
    """Measured over predicted time; a kind that no run had is left out and stays as it is predicted."""
    errors: tuple[float, float] | None
    """Predicted over measured - 1 between which 95 % of further configurations lie, lowest and highest; None: too few to tell."""
    num_runs: int
    num_configurations: int
    """Different ones among the runs: repeated runs of one say nothing about others."""
    fitted_on: str
    """Date, such as 2026-11-29 (UTC)."""
    seen: Seen
    runs: tuple[str, ...]
    """Names of the runs' folders."""
    source: str = ""
    """The file that it was read from; not in the file itself."""
