"""``logs``: what a run's processes printed, the last lines first asked for, and what comes till the run ends."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from hpctrain.errors import ConfigError, RecordError
from hpctrain.launch.logs.files import BATCH, LogFile, default_ranks, find_logs
from hpctrain.launch.logs.text import LogPrinter, tail_offset
from hpctrain.launch.status.rows import StatusBoard
from hpctrain.record.files import open_regular
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_each_attempt
from hpctrain.text_table import printable

_DEFAULT_LINES = 100
_RANKS = re.compile(r"(?P<first>\d{1,7})(-(?P<last>\d{1,7}))?")
_BLOCK_BYTES = 1 << 16
_POLL_S = 0.5
_STATUS_S = 2.0
_LATE_S = 1.0
"""Last lines may arrive after the end marker."""


@dataclass(frozen=True)
class LogRequest:
    """What a user asked for, checked."""

    ranks: tuple[int, ...] | None = None
    """None: the default ones; empty: all."""
    attempt: int | None = None
    follow: bool = False
    num_lines: int | None = _DEFAULT_LINES
    """None: all."""
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(
        cls, rank: str | None, attempt: int | None, follow: bool, tail: str | None, grep: str | None
    ) -> LogRequest:
        """The request of a command line.

        Raises:
            ConfigError: an option's value makes no sense.
        """
        if tail is not None and tail != "all" and not tail.isdecimal():
            raise ConfigError(f"--tail={tail}: must be a number of lines, 0 or above, or all")
        words = tail or ("all" if grep is not None else str(_DEFAULT_LINES))
        num_lines = None if words == "all" else int(words)
        try:
            pattern = None if grep is None else re.compile(grep)
        except re.error as error:
            raise ConfigError(f"--grep={grep}: is no regular expression of Python: {error}") from None
        return cls(_parse_ranks(rank), attempt, follow, num_lines, pattern)


def _parse_ranks(text: str | None) -> tuple[int, ...] | None:
    if text is None or text == "all":
        return None if text is None else ()
    ranks: dict[int, None] = {}
    for part in text.split(","):
        match = _RANKS.fullmatch(part)
        if match is None and part != "batch":
            raise ConfigError(f"--rank={text}: must be a rank, several such as 0,3 or 0-7, batch, or all")
        first = BATCH if match is None else int(match["first"])
        last = first if match is None else int(match["last"] or first)
        ranks |= dict.fromkeys(range(first, last + 1))
    return tuple(ranks)


def show_logs(run: RunPaths, request: LogRequest, out: TextIO) -> None:
    """Prints the logs; with ``follow`` till the run is over.

    Raises:
        ConfigError: there is no such log.
        RecordError: one cannot be read.
    """
    for problem in read_each_attempt(run).problems:
        print(printable(f"hpctrain: {problem}"), file=sys.stderr)
    readers: dict[Path, _Reader] = {}
    board = StatusBoard([run]) if request.follow else None
    is_first_look, is_over, over_at, looked_at = True, board is None, 0.0, -_STATUS_S
    while True:
        if board is not None and not is_over and time.monotonic() - looked_at >= _STATUS_S:
            looked_at = time.monotonic()
            is_over = board.look(time.time())[0].is_over
            over_at = looked_at + _LATE_S
        chosen = _chosen(run, request, may_come=not is_over)
        for log in chosen:
            if log.path not in readers:
                # What appears later of all that was asked for is shown from its beginning.
                is_cut = is_first_look or request.ranks is None
                readers[log.path] = _Reader(log, request, len(chosen) > 1 or request.ranks == (), out, is_cut)
        is_first_look = False
        for reader in readers.values():
            reader.read_new()
        out.flush()
        if is_over and (board is None or time.monotonic() >= over_at):
            break
        time.sleep(_POLL_S)
    for reader in readers.values():
        reader.finish()


def _chosen(run: RunPaths, request: LogRequest, may_come: bool) -> list[LogFile]:
    """The logs that the request means and that are there."""
    found = find_logs(run, request.attempt)
    ranks = request.ranks
    if ranks is None:
        ranks = tuple(default_ranks(run, found, request.attempt))
    elif not ranks:
        ranks = tuple(sorted(found))
    missing = [rank for rank in ranks if rank not in found]
    if not may_come and (missing or not found):
        raise ConfigError(_missing_text(run, missing, sorted(rank for rank in found if rank != BATCH)))
    return [log for rank in ranks for log in found.get(rank, [])]


def _missing_text(run: RunPaths, missing: list[int], there: list[int]) -> str:
    names = ", ".join("the batch script" if rank == BATCH else f"rank {rank}" for rank in missing) or "anything"
    if not there:
        return f"{run.logs}: no log of {names}, nor of any rank: no process has started yet; --follow waits for it"
    ranks = f"0 to {there[-1]}" if there == list(range(len(there))) else ", ".join(map(str, there))
    return f"{run.logs}: no log of {names}; there are those of ranks {ranks}"


class _Reader:
    """One log, read as far as it is there."""

    def __init__(self, log: LogFile, request: LogRequest, labelled: bool, out: TextIO, is_cut: bool) -> None:
        self._log = log
        self._offset = log.start
        self._printer = LogPrinter(out, f"{log.label}: " if labelled else "", request.pattern)
        if not labelled and sys.stderr.isatty():
            print(printable(f"==> {log.path}"), file=sys.stderr)
        if is_cut and request.num_lines is not None:
            with self._open() as stream:
                self._offset = tail_offset(stream, log.start, self._end(stream.seek(0, 2)), request.num_lines)

    def _open(self) -> BinaryIO:
        try:
            return open_regular(self._log.path)
        except OSError as error:
            raise RecordError(f"{self._log.path}: {error.strerror}") from error

    def _end(self, size: int) -> int:
        return size if self._log.end is None else min(size, self._log.end)

    def read_new(self) -> None:
        with self._open() as stream:
            end = self._end(stream.seek(0, 2))
            if end < self._offset and self._log.end is None:
                self._offset = 0  # somebody emptied it
            stream.seek(self._offset)
            while self._offset < end:
                content = stream.read(min(_BLOCK_BYTES, end - self._offset))
                if not content:
                    break
                self._offset += len(content)
                self._printer.feed(content)

    def finish(self) -> None:
        self._printer.finish()
