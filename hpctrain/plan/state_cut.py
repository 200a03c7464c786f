"""How ZeRO cuts the master weights and moments of one group of parameters over its ranks: who holds which elements, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_ALIGNMENT = 2
"""Elements to which stages 1 and 2 align a rank's share. Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py
nccl_start_alignment_factor."""


class Span(NamedTuple):
    """Consecutive elements of one parameter in the flat tensor of one rank."""

    name: str
    start: int
    """The first element, of the parameter seen flat."""
    stop: int
    """Behind the last one."""
    rank: int
    """Among the ranks that share the state."""
    offset: int
    """Where the first one stands in that rank's flat tensor."""


@dataclass(frozen=True)
class StateCut:
    """One group of parameters (in stage 3: one sub-group), flat and cut over ranks.

    Stages 1 and 2 put the parameters one after another, and each rank has one stretch of the whole. Stage 3 cuts each parameter
    by itself, the share rounded up, and a rank's shares stand one after another.
    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py get_data_parallel_partitions, runtime/zero/stage3.py
    _create_fp16_partitions_with_defragmentation, runtime/zero/partition_parameters.py _aligned_size.

    >>> StateCut(2, 2, {"a": 5, "b": 4}).spans_of(1)
    [Span(name='b', start=1, stop=4, rank=1, offset=0)]
    >>> StateCut(3, 2, {"a": 5, "b": 4}).spans_of(1)
    [Span(name='a', start=3, stop=5, rank=1, offset=0), Span(name='b', start=2, stop=4, rank=1, offset=3)]
    """

    zero_stage: int
    num_ranks: int
    sizes: Mapping[str, int]
    """Elements by name, in the order of the group."""

    @cached_property
    def length(self) -> int:
        """Elements of each rank's flat tensor, padding included."""
        if self.zero_stage == 3:
            return sum(self._share(size) for size in self.sizes.values())
        return _ALIGNMENT * -(-sum(self.sizes.values()) // (_ALIGNMENT * self.num_ranks))

    def spans_of(self, rank: int) -> list[Span]:
        """What ``rank`` holds, in the order of its flat tensor; padding is in none of them."""
        return [
            span
            for name, size in self.sizes.items()
            for span in self.holders(name, *self._range_of(name, size, rank))
            if span.rank == rank
        ]

    def holders(self, name: str, start: int, stop: int) -> Iterator[Span]:
        """Who holds the elements from ``start`` to ``stop`` of a parameter, in order."""
        base = self._bases[name]
        while start < stop:
            if self.zero_stage == 3:
                share = self._share(self.sizes[name])
                rank, place = divmod(start, share)
                offset, left = base + place, share - place
            else:
                rank, offset = divmod(base + start, self.length)
                left = self.length - offset
            end = min(stop, start + left)
            yield Span(name, start, end, rank, offset)
            start = end

    def _range_of(self, name: str, size: int, rank: int) -> tuple[int, int]:
        """From the first element that the rank may hold to behind the last one."""
        if self.zero_stage == 3:
            share = self._share(size)
            return min(size, rank * share), min(size, (rank + 1) * share)
        first = rank * self.length - self._bases[name]
        return min(size, max(0, first)), max(0, min(size, first + self.length))

    @cached_property
    def _bases(self) -> dict[str, int]:
        """Where each parameter begins: in the whole (stages 1 and 2), or in every rank's flat tensor (3)."""
        bases, base = {}, 0
        for name, size in self.sizes.items():
            bases[name] = base
            base += self._share(size) if self.zero_stage == 3 else size
        return bases

    def _share(self, size: int) -> int:
        return -(-size // self.num_ranks)
