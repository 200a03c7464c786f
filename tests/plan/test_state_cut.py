"""Who holds which elements: every one exactly once, and both ways of asking agree."""

from __future__ import annotations

import random

import pytest

from hpctrain.plan.state_cut import StateCut

SIZES = [{"a": 1}, {"a": 7, "b": 1, "c": 12}, {"a": 64, "b": 3, "c": 1, "d": 31}]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_the_ranks_together_hold_every_element_once(zero_stage: int, num_ranks: int, sizes: dict[str, int]) -> None:
    cut = StateCut(zero_stage, num_ranks, sizes)
    held: dict[tuple[str, int], tuple[int, int]] = {}
    for rank in range(num_ranks):
        places: set[int] = set()
        for span in cut.spans_of(rank):
            for number in range(span.stop - span.start):
                assert (span.name, span.start + number) not in held
                held[span.name, span.start + number] = (rank, span.offset + number)
                assert span.offset + number not in places
                places.add(span.offset + number)
        assert all(0 <= place < cut.length for place in places)
    assert set(held) == {(name, place) for name, size in sizes.items() for place in range(size)}
    for name, size in sizes.items():
        start, stop = sorted(random.Random(size).choices(range(size + 1), k=2))
        asked = [
            (span.name, span.start + number, span.rank, span.offset + number)
            for span in cut.holders(name, start, stop)
            for number in range(span.stop - span.start)
        ]
        assert asked == [(name, place, *held[name, place]) for place in range(start, stop)]


def test_shares_are_as_large_as_the_engines() -> None:
    # Stage 1 and 2: 20 elements over 3 ranks, aligned to 2 elements each: 24 / 3. Stage 3: ceil(7/3) + ceil(1/3) + ceil(12/3).
    assert StateCut(1, 3, SIZES[1]).length == 8
    assert StateCut(3, 3, SIZES[1]).length == 3 + 1 + 4
