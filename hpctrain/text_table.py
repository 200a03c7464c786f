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


def folded(rows: Sequence[Sequence[str]], num_keys: int, width: int | None) -> str:
    """The table, or as many below each other as make it fit, see ``column_blocks``.

    >>> print(folded([["RUN", "GPUS", "STATE"], ["a", "8", "RUNNING"]], 1, 12))
    RUN  GPUS
    a       8
    <BLANKLINE>
    RUN  STATE
    a    RUNNING
    """
    blocks = column_blocks(rows, num_keys, width)
    return "\n\n".join(aligned([[row[column] for column in block] for row in rows]) for block in blocks)


def column_blocks(rows: Sequence[Sequence[str]], num_keys: int, width: int | None) -> list[tuple[int, ...]]:
    """Columns of the tables into which a wide one is folded, each with those that say what a line is of.

    Args:
        rows: the header and at least one line.
        num_keys: so many columns come first in each table.
        width: of the terminal; None: a file or pipe, which may be as wide as it likes.
    """
    sizes = column_widths(rows)
    keys = tuple(range(num_keys))
    blocks: list[tuple[int, ...]] = [()]
    for column in range(num_keys, len(sizes)):
        taken = sum(sizes[each] + 2 for each in (*keys, *blocks[-1]))
        if width is not None and blocks[-1] and taken + sizes[column] > width:
            blocks.append(())
        blocks[-1] = (*blocks[-1], column)
    return [(*keys, *block) for block in blocks]


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
