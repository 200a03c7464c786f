"""What a step's time goes into: marks between its parts, on a GPU events, so that nobody waits for them."""

from __future__ import annotations

from typing import Literal

import torch

from hpctrain.worker.timing import Mark, mark, seconds_between

Part = Literal["data", "forward", "backward", "optimizer"]


class StepParts:
    """The parts of one step of one rank, in the order in which they came; of many micro steps they add up."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._starts: list[tuple[Part, Mark]] = []
        self._end: Mark | None = None

    def begin(self, part: Part) -> None:
        """Ends the part before, and begins this one."""
        self._starts.append((part, mark(self._device)))

    def end(self) -> None:
        """Ends the last part."""
        self._end = mark(self._device)

    def seconds(self) -> dict[Part, float]:
        """Device time by part, once the device has reached the end of the step; empty where none was begun."""
        if self._end is None:
            return {}
        found: dict[Part, float] = {}
        ends = [*(start for _, start in self._starts[1:]), self._end]
        for (part, start), end in zip(self._starts, ends, strict=True):
            found[part] = found.get(part, 0.0) + seconds_between(start, end)
        return found
