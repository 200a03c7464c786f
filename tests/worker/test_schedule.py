"""Warm-up and cosine, by hand."""

from __future__ import annotations

import pytest

from hpctrain.worker.schedule import learning_rate


# 4 steps of warm-up and 12 of decay: a third, a half and two thirds of it have cosines 1/2, 0 and -1/2.
@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.25), (4, 1.0), (8, 0.1 + 0.9 * 0.75), (10, 0.55), (12, 0.1 + 0.9 * 0.25), (16, 0.1)]
)
def test_warm_up_then_cosine(step: int, expected: float) -> None:
    assert learning_rate(step, 16, 4, peak=1.0, minimum=0.1) == pytest.approx(expected)


@pytest.mark.parametrize("num_steps", [1, 2, 30])
@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 50])
def test_rates_stay_between_zero_and_the_peak(num_steps: int, warmup_steps: int) -> None:
    rates = [learning_rate(step, num_steps, warmup_steps, 1.0, 0.1) for step in range(1, num_steps + 1)]
    assert all(0 < rate <= 1.0 for rate in rates)
    if warmup_steps < num_steps:
        assert rates[-1] == pytest.approx(0.1)


def test_a_constant_rate() -> None:
    assert {learning_rate(step, 30, 0, 1e-4, 1e-4) for step in range(1, 31)} == {1e-4}
