"""One plan inside the process, with nothing remembered of an earlier one, in CPU time."""

from __future__ import annotations

import pytest

from tests.bench.plan_bench import AIM_MS, CASES, plan_ms


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_plan_takes_milliseconds(words: str) -> None:
    # Twice the aim, and the fastest of a few: other processes share the cores and their caches.
    assert plan_ms(words, 3)[1] < 2 * AIM_MS
