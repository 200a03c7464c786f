"""Lines of known shapes that follow one another: found without a look at each, and given to their reader at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hpctrain.analysis.logs.events import AlikeLines, AlikeTaker, Line

MIN_ALIKE_LINES = 16
"""Of each shape; fewer are read faster one by one."""
MAX_ALIKE_LINES = 2048
"""Offered at once; if they are not taken, so many have been looked at in vain."""
MAX_ALIKE_SHAPES = 64
"""Offered at once: two widths of each of six numbers."""
MAX_DIGITS = 300
"""Of a number; more digits are damage, and no float could hold them."""
ENDLESS_NUMBER = re.compile(rb"\d{%d,}" % MAX_DIGITS)
DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
"""Makes the shape of a line."""


class AlikeSearch:
    """Finds lines of one block whose shapes are known to who took the line before them."""

    def __init__(self, data: bytes, starts: Sequence[int], ends: Sequence[int], numbers: Sequence[int]) -> None:
        """Where the lines with a marker stand in ``data``, and their numbers; a last line that may be cut off is left out."""
        self._data = data
        self._starts, self._ends, self._numbers = starts, ends, numbers
        self._not_before = 0

    def offer(
        self, first: int, line: Line, raw: bytes, taker: AlikeTaker, wanted: Mapping[bytes, tuple[int, ...]]
    ) -> int:
        """Offer lines from hit number ``first`` on; ``line``, made of ``raw``, is the one before them. The number taken.

        ``wanted``: which formats want a shape.
        """
        if first < self._not_before or len(self._starts) - first < MIN_ALIKE_LINES:
            return 0
        if not (line.whole and raw.isascii() and raw.endswith(line.text.encode())) or ENDLESS_NUMBER.search(raw):
            return 0
        label = raw[: len(raw) - len(line.text)]
        groups = self._groups(first, label, wanted.get(raw.translate(DIGITS_AS_ZERO)), taker, wanted)
        count = sum(map(len, groups.values()))
        self._not_before = first + count
        if count < MIN_ALIKE_LINES * max(1, len(groups)):
            return 0
        texts = []
        for shape, places in groups.items():
            pieces = [self._data[self._starts[first + place] : self._ends[first + place]] for place in places]
            codes = np.frombuffer(b"".join(pieces), dtype=np.uint8).reshape(len(places), len(shape))
            texts.append((np.array(places), codes[:, len(label) :]))
        numbers = np.array(self._numbers[first : first + count], dtype=np.int64)
        return count if taker.take(AlikeLines(numbers, line.label, texts)) else 0

    def _groups(
        self,
        first: int,
        label: bytes,
        wanted_by: tuple[int, ...] | None,
        taker: AlikeTaker,
        wanted: Mapping[bytes, tuple[int, ...]],
    ) -> dict[bytes, list[int]]:
        """Places after ``first`` by shape, up to the first line of an unknown shape or another label."""
        groups: dict[bytes, list[int]] = {}
        last = min(first + MAX_ALIKE_LINES, len(self._starts))
        for place, (start, end) in enumerate(zip(self._starts[first:last], self._ends[first:last], strict=True)):
            raw = self._data[start:end]
            shape = raw.translate(DIGITS_AS_ZERO)
            places = groups.get(shape)
            if places is None:
                known = shape.isascii() and wanted.get(shape) == wanted_by and taker.knows(shape[len(label) :])
                if not known or len(groups) == MAX_ALIKE_SHAPES:
                    break
                places = groups[shape] = []
            if not raw.startswith(label):
                break
            places.append(place)
        return {shape: places for shape, places in groups.items() if places}
