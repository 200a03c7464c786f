"""Divisors of sizes and degrees."""

from __future__ import annotations

import math


def divisors(number: int) -> list[int]:
    """All of them, in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` next below and above ``wanted``.

    >>> nearest_divisors(12288, 100)
    [96, 128]
    """
    good = divisors(number)
    below = [value for value in good if value < wanted][-1:]
    above = [value for value in good if value > wanted][:1]
    return below + above
