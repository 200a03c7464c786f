"""Numbers as text and back: sizes, large counts, ranges, and Slurm's time forms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

GIB = 2**30
MIB = 2**20
GIGA = 1e9
TERA = 1e12

_DAYS_FORM = re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+))?(:(?P<seconds>\d+))?", re.ASCII)
_CLOCK_FORM = re.compile(r"\d+(:\d+){0,2}", re.ASCII)
_LARGEST_TIME_S = 2**31 - 1
"""Slurm 22.05 turns longer limits into other ones, 99999999999 minutes into 2,981,813 days."""


def parse_slurm_time(text: str | int) -> int | None:
    """Seconds of a time limit in one of Slurm's six forms; None for no limit.

    The forms are ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``, ``days-hours:minutes``
    and ``days-hours:minutes:seconds``. Source: sbatch(1), option --time; tried on Slurm 22.05.

    Raises:
        ValueError: the text is in none of these forms, it is zero, or more than Slurm can count.

    >>> parse_slurm_time("90"), parse_slurm_time("4:00"), parse_slurm_time("2-12"), parse_slurm_time("3-0:00")
    (5400, 240, 216000, 259200)
    >>> parse_slurm_time("UNLIMITED") is None
    True
    """
    value = str(text)
    if value.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if match := _DAYS_FORM.fullmatch(value):
        days, hours, minutes, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    elif _CLOCK_FORM.fullmatch(value):
        numbers = [int(part) for part in value.split(":")]
        days = 0
        hours, minutes, seconds = {1: (0, *numbers, 0), 2: (0, *numbers), 3: tuple(numbers)}[len(numbers)]
    else:
        raise ValueError(f"{value!r} is none of Slurm's time forms")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total <= 0:
        raise ValueError(f"{value!r} is zero")
    if total > _LARGEST_TIME_S:
        raise ValueError(f"{value!r} is more than Slurm can count")
    return total


def stated_limit_s(text: str | None) -> int | None:
    """Seconds of a stated time limit; None where there is none, or its form is refused among the plan's problems.

    >>> stated_limit_s("2-12"), stated_limit_s(None), stated_limit_s("UNLIMITED"), stated_limit_s("soon")
    (216000, None, None, None)
    """
    if text is None:
        return None
    try:
        return parse_slurm_time(text)
    except ValueError:
        return None


def slurm_time(seconds: float) -> str:
    """Whole seconds in Slurm's form.

    >>> slurm_time(86400), slurm_time(5400), slurm_time(216000), slurm_time(math.inf)
    ('1-00:00:00', '1:30:00', '2-12:00:00', 'UNLIMITED')
    """
    if math.isinf(seconds):
        return "UNLIMITED"
    seconds = int(seconds)
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{hours:02d}:{clock}" if days else f"{hours}:{clock}"


def duration_in_words(seconds: float) -> str:
    """A duration for people: ``2 d 12 h``, ``4 min``, ``8.5 s``.

    >>> duration_in_words(216000), duration_in_words(240), duration_in_words(5400), duration_in_words(8.5)
    ('2 d 12 h', '4 min', '1 h 30 min', '8.5 s')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    rest = round(seconds)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def gib(num_bytes: float) -> str:
    """Bytes for people, in GiB, or in MiB below a tenth of one.

    >>> gib(3 * 2**30), gib(5 * 2**20)
    ('3.00 GiB', '5.0 MiB')
    """
    return f"{num_bytes / GIB:,.2f} GiB" if num_bytes >= 0.1 * GIB else f"{num_bytes / MIB:,.1f} MiB"


def counted(number: float, noun: str = "node") -> str:
    """A count with its noun.

    >>> counted(1), counted(1200)
    ('1 node', '1,200 nodes')
    """
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def number_ranges(numbers: Iterable[int]) -> str:
    """Rising whole numbers, neighbours as a range.

    >>> number_ranges([0, 1, 2, 3, 8]), number_ranges([])
    ('0-3,8', '')
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def short_count(count: float) -> str:
    """A large count for people.

    >>> short_count(529_613_946_880), short_count(1234), short_count(12)
    ('529.6 B', '1.234 K', '12')
    """
    for size, letter in ((TERA, "T"), (GIGA, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.4g} {letter}"
    return f"{count:g}"


def next_power_of_two(number: int) -> int:
    """The least power of two that is not below ``number``.

    >>> [next_power_of_two(number) for number in (1, 512, 513)]
    [1, 512, 1024]
    """
    return 1 << max(0, (number - 1).bit_length())
