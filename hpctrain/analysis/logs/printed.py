"""Numbers, clock times and ranks as training logs print them; the one place that turns their text into values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sized

from hpctrain.analysis.logs.events import FactEvent, Line, Value

NUMBER = r"[-+]?(?:(?:\d+(?:,\d{3}(?!\d))*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf(?:inity)?)"
"""A number of a log, with thousands separators, NaN and infinity; a piece of a regular expression."""
SI_SHIFT = {"K": 3, "k": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15}
"""Powers of ten behind the letters of human-readable numbers; G and B both mean 1e9."""
GIB = 2**30

_NUMBER_AT_CUT = re.compile(r"[-+\w.,]*\Z")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:[+-]\d\d:\d\d|Z)?")
_RANK = re.compile(r"rank[ _]?(\d+)")


def number(text: str, shift: int = 0) -> int | float | None:
    """The number that stands in ``text``, times ten to the power of ``shift``; None for NaN, infinity and anything else.

    The shift moves the decimal point, so that milliseconds become seconds without a rounding error of a division.

    >>> number("7,282"), number("1099.34", -3), number("nan"), number("N/A")
    (7282, 1.09934, None, None)
    """
    plain = text.replace(",", "") if "," in text else text
    try:
        if not shift:
            if plain.isdecimal():
                return int(plain)
            value = float(plain)
        elif "e" in plain or "E" in plain:
            mantissa, _, exponent = plain.lower().partition("e")
            value = float(f"{mantissa}e{int(exponent) + shift}")
        else:
            value = float(f"{plain.strip()}e{shift}")
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if shift > 0 and value.is_integer() else value


def si_number(text: str) -> int | float | None:
    """A human-readable number (``14.2K``, ``85.8G``, ``1.05M``); None where ``text`` holds anything else beside it.

    >>> si_number("14.2K"), si_number("0.00869"), si_number("1.2510/17/2025")
    (14200, 0.00869, None)
    """
    shift = SI_SHIFT.get(text[-1:])
    return number(text) if shift is None else number(text[:-1], shift)


def is_nan(text: str) -> bool:
    """True for NaN and for infinity, which is as useless as a value.

    >>> is_nan("nan"), is_nan("-inf"), is_nan("0.0")
    (True, True, False)
    """
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def put_number(fields: dict[str, Value], name: str, text: str, shift: int = 0) -> None:
    """Set ``fields[name]``; NaN and infinity become None with ``NAME_is_nan`` True."""
    value = fields[name] = number(text, shift)
    if value is None and is_nan(text):
        fields[f"{name}_is_nan"] = True


def positive_number(text: str) -> int | float | None:
    """The number; None for zero and negative ones, which are placeholders for "not measured" or "rounded away".

    >>> positive_number("41.36"), positive_number("-1"), positive_number("nan")
    (41.36, None, None)
    """
    value = number(text)
    return value if value is not None and value > 0 else None


def put_or_missing(fields: dict[str, Value], name: str, text: str, shift: int = 0) -> None:
    """Set ``fields[name]``; zero and negative numbers are placeholders for "not measured" or "rounded away" and become None."""
    value = number(text, shift)
    fields[name] = value if value is not None and value > 0 else None


def gib(num_bytes: int | float | None) -> float | None:
    """GiB of a number of bytes, to four decimals.

    >>> gib(85899345920)
    80.0
    """
    return None if num_bytes is None else round(num_bytes / GIB, 4)


def clock_seconds(text: str) -> int | float:
    """Seconds of ``[[days, ]hours:]minutes:seconds``, the last with or without decimals.

    >>> clock_seconds("0:15:19.02"), clock_seconds("9:07:58"), clock_seconds("00:58"), clock_seconds("1 day, 2:00:00")
    (919.02, 32878, 58, 93600)
    """
    days, _, clock = text.rpartition(", ")
    *larger, seconds = clock.strip().split(":")
    minutes = 0
    for part in larger:
        minutes = 60 * minutes + int(part)
    minutes += 24 * 60 * int(days.split()[0]) if days else 0
    return minutes * 60 + int(seconds) if seconds.isdigit() else round(minutes * 60 + float(seconds), 6)


def find_timestamp(text: str) -> re.Match[str] | None:
    """The first time stamp with year, month and day in this order."""
    return _TIMESTAMP.search(text)


def put_timestamp(fields: dict[str, Value], text: str) -> None:
    """Set ``timestamp`` where ``text`` holds one with year, month and day in this order."""
    match = find_timestamp(text)
    if match:
        fields["timestamp"] = match[0]


def put_rank(fields: dict[str, Value], label: str) -> None:
    """Set ``rank`` where the process label names one (``rank0``, ``rank 12``)."""
    match = _RANK.search(label)
    if match:
        fields["rank"] = int(match[1])


def certain_text(line: Line, closed_by: Collection[str] = ()) -> tuple[str, bool]:
    """The part of a line that is certain, and whether that is all of it.

    Where the file ends in the line, the number or word at its end may be the first half of a longer one and is left out, unless
    one of ``closed_by`` (a unit, a percent sign, a bracket) stands behind it.
    """
    if line.whole or line.text.rstrip().endswith(tuple(closed_by)):
        return line.text, True
    text = _NUMBER_AT_CUT.sub("", line.text)
    return text, len(text) == len(line.text)


def parts_from(start: re.Pattern[str], text: str) -> list[tuple[re.Match[str], str]]:
    """Records that are glued into one line: each match of ``start`` with the text behind it, up to the next match."""
    matches = list(start.finditer(text))
    starts = [match.start() for match in matches] + [len(text)]
    return [(match, text[match.end() : starts[place + 1]]) for place, match in enumerate(matches)]


def glued(line: Line, parts: Sized) -> Iterable[FactEvent]:
    """The trait of a line that holds more than one record."""
    return (FactEvent(line.number, "trait", {"name": "glued_lines"}),) if len(parts) > 1 else ()
