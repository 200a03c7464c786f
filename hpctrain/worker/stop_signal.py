"""The signals that ask for the end: noted, and acted on by the loop between two steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
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
        self._pid = os.getpid()

    def install(self) -> None:
        """Takes the signals over, also from submitit, which ignores TERM."""
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def leave_after(self, limit_s: float, leave: Callable[[StoppedBySignalError], object]) -> None:
        """Has ``leave`` called, from a thread, where the process is still there ``limit_s`` after the first signal.

        The step or the save under way may wait for a rank that is gone. Python's handlers do not run while the main thread
        is inside a collective; the byte that the system's part of the handler writes into a pipe does come through.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        # A forked child shares the pipe, and its signals are not this process's.
        os.register_at_fork(after_in_child=_without_wakeup)
        threading.Thread(target=self._watch, args=(read_end, limit_s, leave), name="stop-deadline", daemon=True).start()

    @property
    def received(self) -> bool:
        return bool(self.name)

    def check_before_first_step(self) -> None:
        """Raises StoppedBySignalError; before the loop a rank leaves on its own, and the others lose it."""
        if self.received:
            raise StoppedBySignalError(f"stopped by {self.name} before the first step", self.name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        # A process forked by a library has this handler too.
        if os.getpid() == self._pid:
            self.name = self.name or signal.Signals(number).name

    def _watch(self, read_end: int, limit_s: float, leave: Callable[[StoppedBySignalError], object]) -> None:
        numbers: list[int] = []
        while not (numbers or self.received):
            numbers = [number for number in os.read(read_end, 64) if number in _SIGNALS]
        name = self.name or signal.Signals(numbers[0]).name
        time.sleep(limit_s)
        leave(
            StoppedBySignalError(
                f"stopped by {name}: the step or the save under way did not end within {limit_s:g} s of it"
                " (cluster.signal_lead_s), so this rank left without a checkpoint",
                name,
            )
        )


def _without_wakeup() -> None:
    signal.set_wakeup_fd(-1)
