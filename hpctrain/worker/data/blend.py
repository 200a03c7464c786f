"""From which corpus of a blend each sample is: by its number alone, and at every point of the run close to the weights."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BITS = 30
_HALF = 1 << (_BITS - 1)
_SMALLEST = math.ulp(0.0)


@dataclass(frozen=True)
class _Fork:
    """A share of the samples that arrive here goes to the left, spread evenly."""

    left: _Fork | int
    right: _Fork | int
    share: int
    """Of the left, in units of 2**-30."""

    def num_left(self, count: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the first ``count`` go left: ``share * count``, rounded, in whole numbers of any size."""
        whole, rest = count >> _BITS, count & ((1 << _BITS) - 1)
        found: NDArray[np.int64] = whole * self.share + ((rest * self.share + _HALF) >> _BITS)
        return found


class Blend:
    """Shares the samples of a run out among corpora.

    A binary tree, built as Huffman's from the weights: each fork sends samples left and right in the ratio of the weights below,
    never more than half a sample off. An inner fork holds at most two thirds of the weight of the one above, since what was
    joined to it is at least as heavy as each of its two parts. So the errors on the way to a corpus add up to less than
    1/2 + 1/2 (1 + 2/3 + 4/9 + ...) = 2 samples: of the first n samples, a corpus has n times its weight, give or take two, for
    every n (and the rounding of shares to 2**-30). Megatron-LM's blend takes the corpus that is furthest behind, which must be
    worked out from the first sample on.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Of corpora 0, 1, ...; each weight is above 0, their sum does not matter."""
        # By a power of two, which changes no ratio: sums of the largest weights would be infinite.
        scale = math.frexp(max(weights))[1]
        scaled = [max(math.ldexp(weight, -scale), _SMALLEST) for weight in weights]
        heap: list[tuple[float, int, _Fork | int]] = [(weight, number, number) for number, weight in enumerate(scaled)]
        heapq.heapify(heap)
        number = len(weights)
        while len(heap) > 1:
            light_weight, _, light = heapq.heappop(heap)
            heavy_weight, _, heavy = heapq.heappop(heap)
            weight = light_weight + heavy_weight
            share = min(max(1, round(heavy_weight / weight * (1 << _BITS))), (1 << _BITS) - 1)
            heapq.heappush(heap, (weight, number, _Fork(heavy, light, share)))
            number += 1
        self._root = heap[0][2]

    def split(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each sample, which corpus it is from, and how many of that corpus came before it.

        Args:
            samples: numbers from 0 on, one dimension.

        >>> corpora, places = Blend([2.0, 1.0]).split(np.arange(6))
        >>> corpora.tolist(), places.tolist()
        ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3])
        """
        corpora, places = np.zeros_like(samples), samples.copy()
        pending: list[tuple[_Fork | int, NDArray[np.int64]]] = [(self._root, np.arange(len(samples)))]
        while pending:
            node, chosen = pending.pop()
            if isinstance(node, int):
                corpora[chosen] = node
                continue
            here = places[chosen]
            before = node.num_left(here)
            goes_left = node.num_left(here + 1) > before
            places[chosen] = np.where(goes_left, before, here - before)
            pending += [(node.left, chosen[goes_left]), (node.right, chosen[~goes_left])]
        return corpora, places
