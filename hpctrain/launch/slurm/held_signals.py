"""Signals that ask this process to end, held back while a submission is under way, so that no job is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

_ASKING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_EVERY_S = 0.1
_NOTICE = b"\nhpctrain: ends as soon as it is known whether there is a job; Ctrl-C once more leaves at once\n"


class HeldSignals:
    """Inside it, Ctrl-C, SIGTERM and SIGHUP are noted only; they act when it is left. A second Ctrl-C acts at once.

    Attributes:
        received: The signal that was noted, None without one.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():  # Python has signals in this one only
            for number in _ASKING_TO_END:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                    self._former[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        os.write(2, _NOTICE)  # print() may be what was interrupted

    def pause(self, seconds: float) -> None:
        """Sleeps; a noted signal ends it."""
        deadline = time.monotonic() + seconds
        while self.received is None and (rest := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_EVERY_S, rest))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        if self.received is not None and error is None:
            signal.raise_signal(self.received)
