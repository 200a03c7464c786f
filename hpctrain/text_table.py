"""Aligned tables in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

MISSING = "-"
"""Where there is no value."""
WIDTH = 100
"""Columns of a terminal that text may take."""


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart, the first row as header; columns of numbers only are flushed right.

    >>> print(aligned([["RUN", "GPUS"], ["a", "8"], ["long", "1,024"]]))
    RUN    GPUS
    a         8
    long  1,024
    """
    widths = column_widths(rows)
    right = [all(_is_number(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    )


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph in at most ``WIDTH`` columns, its later lines two blanks further in; long words stay whole."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def printable(text: str, kept: str = "\n") -> str:
    """The text with everything that a terminal would obey, or cannot show, spelled out; ``kept`` stays as it is.

    >>> printable("a\\x1b[31mb"), printable("a\\nb", kept="")
    ('a\\\\x1b[31mb', 'a\\\\nb')
    """
    return "".join(
        letter if letter in kept or letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _is_number(cell: str) -> bool:
    return cell == MISSING or cell.replace(",", "").replace(".", "").replace("/", "").removeprefix("-").isdigit()
