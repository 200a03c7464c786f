"""Bytes of logs as text: the last lines of a file of any size, characters that come in halves, lines with labels."""

from __future__ import annotations

import codecs
import re
from typing import BinaryIO, TextIO

_BLOCK_BYTES = 1 << 16
_MAX_TAIL_BYTES = 16 << 20
"""So far back the last lines are looked for; a log without line ends has no others."""
_MAX_LINE = 1 << 16
"""Letters of a line that are held back till its end comes."""


def tail_offset(stream: BinaryIO, start: int, end: int, num_lines: int) -> int:
    """Where the last lines between two offsets begin; a line without its end counts as one.

    Args:
        stream: opened for reading bytes.
        start: the offset before which nothing is read.
        end: the offset behind the last byte.
        num_lines: 0 or above.
    """
    if num_lines == 0:
        return end
    missing, position = num_lines, end
    is_last_byte = True
    while position > start and end - position < _MAX_TAIL_BYTES:
        size = min(_BLOCK_BYTES, position - start)
        position -= size
        stream.seek(position)
        block = stream.read(size)
        at = len(block)
        if is_last_byte and block.endswith(b"\n"):
            at -= 1  # ends the last line and begins none
        is_last_byte = False
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            missing -= 1
            if missing == 0:
                return position + at + 1
    return position


class LogPrinter:
    """Prints what one log holds, as it comes: decoded with replacement, each line with its label, or only lines that match."""

    def __init__(self, out: TextIO, label: str, pattern: re.Pattern[str] | None) -> None:
        self._out = out
        self._label = label
        self._pattern = pattern
        # A character may be cut where reading stopped; its rest comes with the next bytes.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, content: bytes) -> None:
        """The next bytes of the file."""
        self._print(self._decoder.decode(content))

    def finish(self) -> None:
        """There are no more: what is left is printed, with a line end."""
        self._print(self._decoder.decode(b"", final=True))
        if self._rest:
            self._print_lines([self._rest])
            self._rest = ""

    def _print(self, text: str) -> None:
        if not self._label and self._pattern is None:
            self._out.write(text)
            return
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        if len(self._rest) > _MAX_LINE:
            lines.append(self._rest)
            self._rest = ""
        self._print_lines(lines)

    def _print_lines(self, lines: list[str]) -> None:
        kept = lines if self._pattern is None else [line for line in lines if self._pattern.search(line)]
        if kept:
            self._out.write("".join(f"{self._label}{line}\n" for line in kept))
