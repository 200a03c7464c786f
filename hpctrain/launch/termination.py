"""SIGTERM to a process that waits for a run, treated like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside it SIGTERM raises Terminated, so that who waits can end its run or say that it goes on."""
    former = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    # The end of the run takes a while; a second one must not break it off.
    signal.signal(number, signal.SIG_IGN)
    raise Terminated
