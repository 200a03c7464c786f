"""The signals that ask for the end: noted, and acted on by the loop between two steps."""

from __future__ import annotations

import signal
from types import FrameType

from hpctrain.worker.end_reasons import StoppedBySignalError

# USR1: Slurm's warning before the time limit (--signal). USR2: the same from submitit's local controller.
# TERM: cancellation and preemption; Slurm sends KILL when KillWait has passed.
_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class StopSignal:
    """Whether one of the signals has come. Its handler does nothing else: a collective may be under way."""

    def __init__(self) -> None:
        self.name = ""
        """Of the first signal that came; empty before."""

    def install(self) -> None:
        """Takes the signals over, also from submitit, which ignores TERM."""
        for number in _SIGNALS:
            signal.signal(number, self._note)

    @property
    def received(self) -> bool:
        return bool(self.name)

    def check_before_first_step(self) -> None:
        """Raises StoppedBySignalError; before the loop a rank leaves on its own, and the others lose it."""
        if self.received:
            raise StoppedBySignalError(f"stopped by {self.name} before the first step")

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.name = self.name or signal.Signals(number).name
