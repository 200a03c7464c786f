"""What all ranks of a launch check share: who they are, and until when they wait for each other."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from hpctrain.worker.end_reasons import LostRankError
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.stop_signal import StopSignal


@dataclass(frozen=True)
class Meeting:
    """The meeting as one rank goes to it."""

    env: RankEnv
    token: str
    """Text that all ranks of this start share, and nobody else has."""
    stop: StopSignal
    """Signals to this rank."""
    failure: str
    """Path at which the first failing rank of this attempt leaves its record."""
    deadline: float
    """``time.monotonic()`` until which this rank waits."""

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def check_failure(self) -> None:
        """Raises LostRankError if another rank has failed."""
        if os.path.exists(self.failure):
            raise LostRankError(f"another rank failed during the start, see {self.failure}")
