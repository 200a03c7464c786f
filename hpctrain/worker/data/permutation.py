"""A shuffle that is computed place by place: any corpus is shuffled in no time and no memory.

A list of the shuffled sequences of a trillion tokens would be gigabytes and minutes on every rank. Here the place of a sequence
comes from a cipher over exactly the numbers 0 ... size - 1, so that a rank asks for its own places alone.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

_NUM_ROUNDS = 8
"""Four make a pseudorandom permutation of a good round function (Luby and Rackoff 1988); twice as many for small corpora."""
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


def permuted(places: NDArray[np.int64], size: int, key: tuple[int, ...]) -> NDArray[np.int64]:
    """Where each place of ``0 ... size - 1`` goes in the shuffle of ``key``; a bijection.

    A Feistel network over pairs (left, right) of ``ceil(sqrt(size))`` and ``ceil(size / left)`` values: each round adds to one
    half, modulo its size, a hash of the other, which can be undone. What falls beyond ``size`` goes through again until it falls
    inside (cycle walking); the pairs are fewer than ``size + sqrt(size) + 1``, so hardly anything does.

    Source: Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains, methods 2 (cycle walking) and 3 (generalised Feistel).

    Args:
        places: any shape, each in [0, size).
        size: at least 1.
        key: numbers from 0; another key gives another shuffle.

    >>> sorted(permuted(np.arange(7), 7, (1, 2)).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    left_size = isqrt(size - 1) + 1 if size > 1 else 1
    right_size = -(size // -left_size)
    keys, found = _round_keys(key), places.astype(np.uint64)
    found = _encrypted(found, left_size, right_size, keys)
    while (outside := found >= size).any():
        found[outside] = _encrypted(found[outside], left_size, right_size, keys)
    return found.astype(np.int64)


@lru_cache(maxsize=256)
def _round_keys(key: tuple[int, ...]) -> tuple[np.uint64, ...]:
    return tuple(np.random.SeedSequence(key).generate_state(_NUM_ROUNDS, np.uint64))


def _encrypted(
    places: NDArray[np.uint64], left_size: int, right_size: int, keys: tuple[np.uint64, ...]
) -> NDArray[np.uint64]:
    """One pass of the network over ``left_size * right_size`` numbers."""
    sizes = (np.uint64(left_size), np.uint64(right_size))
    halves = list(np.divmod(places, sizes[1]))
    for number, key in enumerate(keys):
        own = number % 2
        halves[own] = (halves[own] + _mixed(halves[1 - own] ^ key) % sizes[own]) % sizes[own]
    found: NDArray[np.uint64] = halves[0] * sizes[1] + halves[1]
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits. Source: SplitMix64's finaliser (Steele, Lea and Flood 2014, with the constants of Stafford's mix 13)."""
    for shift, factor in _MIX:
        values = (values ^ (values >> shift)) * factor
    mixed: NDArray[np.uint64] = values ^ (values >> _LAST_SHIFT)
    return mixed
