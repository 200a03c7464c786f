"""One tracker and the points that it has not taken yet: errors are told once, and tried again ever less often."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from hpctrain.track.points import Point
from hpctrain.track.tracker import Ending, Tracker

FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 600.0
MAX_WAITING = 100_000
"""Points that are kept for a tracker that does not take them; the oldest of more are given up. They are in steps.jsonl."""


class Feed:
    """Opens a tracker at the first point, and hands it what comes."""

    def __init__(self, name: str, open_tracker: Callable[[], Tracker], tell: Callable[[str, str], None]) -> None:
        """Opens nothing yet.

        Args:
            name: such as wandb.
            open_tracker: returns it, or raises whatever its library does.
            tell: gets the name and what is wrong, once for each outage.
        """
        self._name = name
        self._open = open_tracker
        self._tell = tell
        self._tracker: Tracker | None = None
        self._waiting: list[Point] = []
        self._num_given_up = 0
        self._failures = 0
        """In a row."""
        self._next_try_s = 0.0
        self._is_over = False

    def add(self, points: Sequence[Point], now_s: float) -> None:
        """Hands on the points and those that wait, unless the tracker failed a short while ago."""
        self._waiting += points
        if len(self._waiting) > MAX_WAITING:
            self._num_given_up += len(self._waiting) - MAX_WAITING
            del self._waiting[:-MAX_WAITING]
        if self._waiting and now_s >= self._next_try_s:
            self._try(self._hand_on, now_s)

    def close(self, ending: Ending, now_s: float) -> None:
        """Hands on what waits, and marks the end; tried once, with no regard to earlier errors."""
        if self._is_over or not (self._waiting or self._tracker):
            return

        def end() -> None:
            self._hand_on()
            assert self._tracker is not None
            self._tracker.close(ending)

        self._try(end, now_s)
        if self._num_given_up or self._waiting:
            self._tell(
                self._name, f"{self._num_given_up + len(self._waiting)} points were not taken; steps.jsonl has all"
            )

    def _hand_on(self) -> None:
        if self._tracker is None:
            self._tracker = self._open()
        if self._waiting:
            self._tracker.write(self._waiting)
            self._waiting = []

    def _try(self, action: Callable[[], None], now_s: float) -> None:
        if self._is_over:
            return
        try:
            action()
        except ImportError as error:
            self._is_over = True
            self._tell(self._name, f"{error}; pip install 'hpctrain[track]'")
        # Libraries of trackers raise errors of their own, of HTTP, of databases; none of them may end the others.
        except Exception as error:
            if self._failures == 0:
                self._tell(self._name, f"{type(error).__name__}: {error}")
            self._next_try_s = now_s + min(LONGEST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
        else:
            self._failures = 0


class FeedThread:
    """A feed in a thread of its own: one whose server does not answer holds up neither the others nor the end."""

    def __init__(self, name: str, open_tracker: Callable[[], Tracker], tell: Callable[[str, str], None]) -> None:
        """As of ``Feed``."""
        self._name, self._tell = name, tell
        self._feed = Feed(name, open_tracker, tell)
        self._told: queue.SimpleQueue[Sequence[Point] | Ending] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"track.{name}", daemon=True)
        self._thread.start()

    def add(self, points: Sequence[Point]) -> None:
        """Has it hand on the points, and what waits; returns at once."""
        self._told.put(points)

    def close(self, ending: Ending) -> None:
        """Has it mark the end; returns at once."""
        self._told.put(ending)

    def wait(self, limit_s: float) -> None:
        """Till the end is marked; one that is not there at the limit is told, and must be left behind."""
        self._thread.join(max(0.0, limit_s))
        if self._thread.is_alive():
            self._tell(self._name, "did not take the last points before the end of the attempt; steps.jsonl has all")

    def _run(self) -> None:
        while True:
            told = self._told.get()
            if isinstance(told, str):
                self._feed.close(told, time.monotonic())
                return
            self._feed.add(told, time.monotonic())
