"""A rank's standard output and error that never raise: what cannot be written is counted, and told when there is room again."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from typing import Any

_WAIT_S = 5.0
"""For a pipe that takes no more at the moment and was opened not to wait."""


class RankOutput(io.RawIOBase):
    """Bytes to a file descriptor; a full or vanished device costs lines and never the run."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._untold = 0
        self._reason = ""
        self.lost_lines = 0
        """In all."""

    def write(self, data: Any) -> int:
        """Takes all of ``data``, written or lost."""
        content = bytes(data)
        with self._lock:
            if self._untold and self._try_write(self._note()) is None:
                self._untold = 0
            lost = self._try_write(content)
            if lost is not None:
                num_lines = max(1, lost.count(b"\n"))
                self._untold += num_lines
                self.lost_lines += num_lines
        return len(content)

    def _note(self) -> bytes:
        return f"\nhpctrain: {self._untold} lines of this log were lost ({self._reason})\n".encode()

    def _try_write(self, content: bytes) -> bytes | None:
        """What could not be written; None: all was."""
        left = content
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                if not select.select([], [self._descriptor], [], _WAIT_S)[1]:
                    self._reason = "the reader does not read"
                    return left
            except OSError as error:
                self._reason = error.strerror or str(error)
                return left
        return None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


def protect_output() -> None:
    """Puts such streams in the place of ``sys.stdout`` and ``sys.stderr``; text is UTF-8 in any locale."""
    for descriptor in (0, 1, 2):
        _occupy(descriptor)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)


def _occupy(descriptor: int) -> None:
    """A standard descriptor that is closed would be the next file that is opened, and take what is printed."""
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)


def _text_stream(descriptor: int) -> io.TextIOWrapper:
    output: Any = RankOutput(descriptor)
    return io.TextIOWrapper(output, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
