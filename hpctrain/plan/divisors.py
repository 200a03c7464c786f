"""Divisors of sizes and degrees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator


def divisors(number: int) -> list[int]:
    """All of them, in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def powers_and_halves(most: int) -> Iterator[int]:
    """Powers of two and the halves between them, rising: sizes of which the next is at most half as large again.

    >>> list(powers_and_halves(8))
    [1, 2, 3, 4, 6, 8]
    """
    size = 1
    while size <= most:
        yield size
        if size >= 2 and 3 * size // 2 <= most:
            yield 3 * size // 2
        size *= 2


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` next below and above ``wanted``.

    >>> nearest_divisors(12288, 100)
    [96, 128]
    """
    good = divisors(number)
    below = [value for value in good if value < wanted][-1:]
    above = [value for value in good if value > wanted][:1]
    return below + above


def nearest_where(number: int, is_right: Callable[[int], bool], reach: int = 64) -> list[int]:
    """The next smaller and the next larger number, from 1 on and not further than ``reach``, for which something holds.

    >>> nearest_where(10, lambda value: value % 7 == 0), nearest_where(3, lambda value: value % 7 == 0)
    ([7, 14], [7])
    """
    below = next((value for value in range(number - 1, max(0, number - reach - 1), -1) if is_right(value)), None)
    above = next((value for value in range(number + 1, number + reach + 1) if is_right(value)), None)
    return [value for value in (below, above) if value is not None]


def nearest_spread(sequences: int, micro_batch_size: int, degree: int) -> str:
    """How batches that stay, as in a run that goes on, can be whole micro steps: the nearest micro batch, else degrees.

    Args:
        sequences: of the batch, or what divides all of them.
        micro_batch_size: of now.
        degree: data-parallel ranks.

    >>> nearest_spread(16, 8, 4), nearest_spread(16, 1, 3)
    ('training.micro_batch_size=4', 'a data-parallel degree of 2 or 4')
    """
    if sequences % degree == 0:
        micro = max(each for each in divisors(sequences // degree) if each <= micro_batch_size)
        return f"training.micro_batch_size={micro}"
    return f"a data-parallel degree of {' or '.join(map(str, nearest_divisors(sequences, degree)))}"
