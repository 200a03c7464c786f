"""Live bytes over the course of a rehearsal, thinned so that a picture can be drawn of them. Imports no torch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from hpctrain.rehearse.result import PHASES, Phase, Timeline

_NUM_POINTS = 2000
_SMALLEST_CHANGE = 1 / 1000
"""Of a tier's greatest value so far: smaller changes are not seen in a picture."""


class Track:
    """All points that a picture could show, in flat arrays: operator, step, phase, then a column a tier."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(6))
        self._last = [-1, -1, -1]
        self._greatest = [0, 0, 0]

    def see(self, operator: int, step: int, phase: Phase, totals: Sequence[int]) -> None:
        """Keeps the point if a tier has changed by enough to be seen."""
        for tier in (0, 1, 2):
            total = totals[tier]
            if total > self._greatest[tier]:
                self._greatest[tier] = total
            if abs(total - self._last[tier]) > _SMALLEST_CHANGE * self._greatest[tier]:
                self.add(operator, step, phase, totals)
                return

    def add(self, operator: int, step: int, phase: Phase, totals: Sequence[int]) -> None:
        """Keeps the point."""
        self._last = list(totals[:3])
        for column, value in zip(self._columns, (operator, step, PHASES.index(phase), *self._last), strict=True):
            column.append(value)

    def timeline(self, marked: Iterable[tuple[int, int, Phase, tuple[int, ...]]], num_layers: int) -> Timeline:
        """The points, at most about ``_NUM_POINTS``; those in ``marked`` (the peaks) stay in any case.

        Of each stretch of points the lowest and the highest of the fullest tier are kept.
        """
        points = list(zip(*self._columns, strict=True))
        tier = 3 + max((0, 1), key=lambda index: self._greatest[index])
        width = max(1, 2 * len(points) // _NUM_POINTS)
        kept = set()
        for start in range(0, len(points), width):
            stretch = points[start : start + width]
            kept |= {min(stretch, key=lambda point: point[tier]), max(stretch, key=lambda point: point[tier])}
        kept |= {(operator, step, PHASES.index(phase), *totals[:3]) for operator, step, phase, totals in marked}
        operator, step, phase, gpu, host, pinned = zip(*sorted(kept), strict=True)
        return Timeline(operator, step, phase, gpu, host, pinned, num_layers)
