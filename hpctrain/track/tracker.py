"""What a tracker is to the process that feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hpctrain.record.paths import RunPaths
from hpctrain.track.points import Point

Ending = Literal["completed", "failed", "stopped"]
"""How an attempt ended; stopped: by a signal (time limit, preemption, cancellation), after which another one may go on."""


@dataclass(frozen=True)
class RunFacts:
    """What a tracker is told of the run and of this attempt."""

    paths: RunPaths
    name: str
    """Of the run folder."""
    config: dict[str, Any]
    """The frozen configuration, in which secrets are left out."""
    sizes: dict[str, int]
    """Of the plan, such as num_parameters."""
    attempt: int
    first_step: int
    """Of this attempt: what a tracker has of it and of later steps is undone."""


class Tracker(Protocol):
    """One that is open. Any exception is told, and tried again later; none reaches the training."""

    def write(self, points: Sequence[Point]) -> None:
        """Takes the points, in the order of their steps."""

    def close(self, ending: Ending) -> None:
        """Marks how the attempt ended; nothing is written afterwards."""
