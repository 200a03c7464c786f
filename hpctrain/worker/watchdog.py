"""The watchdog: where no step ends for a while, the stacks of all ranks are printed and the run ends as ``hang``."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from traceback import extract_stack
from types import TracebackType
from typing import NoReturn, Protocol, Self

from hpctrain.record.files import read_json, write_record
from hpctrain.worker.end_reasons import HangError
from hpctrain.worker.rank_start import Rank

_POLLS, _LONGEST_POLL_S = 20, 1.0
"""Looks at the last step in one silence, and the longest time between two."""
_GATHER_S = 6.0
"""How long rank 0 waits for the words of the others: their clocks of the last step differ by a fraction of a second."""
_C_TIMER_S = 10.0
"""After the silence: ranks whose main thread holds Python's lock inside C are dumped and ended by faulthandler's own thread."""
_LEAVE_S = 15.0
"""After the silence: the others leave, since the first to leave has Slurm end the rest."""
_NUM_FRAMES = 3
_WAITING_FILES = ("distributed_c10d.py", "torch/distributed/", "deepspeed/comm/")
_NUM_NAMED = 8


class Steps(Protocol):
    """What is watched: ``StepLog``."""

    last_step: int


@dataclass(frozen=True)
class HangWord:
    """Where a rank stands, see ``RunPaths.hang_word``."""

    rank: int
    node: str
    place: str
    """The innermost calls of the main thread."""
    is_waiting: bool
    """In a collective, for another rank."""


Leave = Callable[[BaseException], NoReturn]
"""Records the failure and ends the process, from any thread."""


def watch_steps(rank: Rank, steps: Steps, leave: Leave) -> AbstractContextManager[object]:
    """The watchdog that ``launch.watchdog_min`` asks for; where it asks for none, what does nothing."""
    minutes = rank.config.launch.watchdog_min
    return nullcontext() if minutes is None else Watchdog(rank, steps, 60.0 * minutes, leave)


class Watchdog:
    """Watches the steps of one rank from a thread, from the first that ends in this attempt on."""

    def __init__(self, rank: Rank, steps: Steps, silence_s: float, leave: Leave) -> None:
        """Does nothing yet.

        Args:
            rank: this rank.
            steps: their progress.
            silence_s: without a new step.
            leave: records the failure and ends the process.
        """
        self._rank = rank
        self._steps = steps
        self._silence_s = silence_s
        self._leave = leave
        self._main = threading.get_ident()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hpctrain-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        first = seen = self._steps.last_step
        seen_at = time.monotonic()
        while not self._stopping.wait(min(self._silence_s / _POLLS, _LONGEST_POLL_S)):
            step = self._steps.last_step
            if step != seen:
                seen, seen_at = step, time.monotonic()
                faulthandler.dump_traceback_later(self._silence_s + _C_TIMER_S, exit=True, file=2)
            elif seen != first and time.monotonic() - seen_at > self._silence_s:
                self._end(seen)
                return
        faulthandler.cancel_dump_traceback_later()

    def _end(self, step: int) -> None:
        faulthandler.cancel_dump_traceback_later()
        ends_at = time.monotonic() + _LEAVE_S
        print(f"hpctrain: watchdog: no step for {self._silence_s:g} s after step {step}; stacks follow", flush=True)
        faulthandler.dump_traceback(file=2)
        env = self._rank.env
        word = HangWord(env.rank, env.node_name, *_place(self._main))
        with suppress(OSError):  # the device may be what hangs or is full
            write_record(self._rank.paths.hang_word(env.attempt, env.rank), word)
        if env.rank == 0:
            time.sleep(_GATHER_S)
            self._leave(hang_error(self._silence_s, step, env.world_size, self._words()))
        time.sleep(max(0.0, ends_at - time.monotonic()))
        self._leave(HangError(f"no step for {self._silence_s:g} s after step {step}; rank 0 said nothing", env.rank))

    def _words(self) -> dict[int, HangWord]:
        words, env = {}, self._rank.env
        for rank in range(env.world_size):
            path = self._rank.paths.hang_word(env.attempt, rank)
            with suppress(OSError, ValueError, TypeError):
                words[rank] = HangWord(**read_json(path))
                path.unlink()
        return words


def hang_error(silence_s: float, step: int, world_size: int, words: Mapping[int, HangWord]) -> HangError:
    """The end of the run, with the ranks by where they stand; those that do not wait for another rank come first."""
    silent = [rank for rank in range(world_size) if rank not in words]
    groups: dict[tuple[bool, str], list[HangWord]] = defaultdict(list)
    for word in words.values():
        groups[word.is_waiting, word.place].append(word)
    parts = [f"no word from {_ranks(silent)}"] if silent else []
    for (_, place), members in sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]))):
        node = f" on {members[0].node}" if len(members) == 1 else ""
        parts.append(f"{_ranks([word.rank for word in members])}{node} in {place}")
    suspects = silent + [word.rank for word in words.values() if not word.is_waiting]
    culprit = suspects[0] if len(suspects) == 1 else None
    seen = words.get(suspects[0]) if culprit is not None else None
    told = f"no step for {silence_s:g} s after step {step} (launch.watchdog_min): {'; '.join(parts)}; stacks are in the logs"
    return HangError(told, culprit, seen.node if seen is not None else None)


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_NUM_NAMED]))
    more = f" and {len(ranks) - _NUM_NAMED} more" if len(ranks) > _NUM_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _place(thread: int) -> tuple[str, bool]:
    """The innermost calls of a thread, and whether one of them waits for another rank."""
    frames = list(reversed(extract_stack(sys._current_frames()[thread])))
    place = " < ".join(
        f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames[:_NUM_FRAMES]
    )
    return place, any(part in frame.filename for frame in frames for part in _WAITING_FILES)
