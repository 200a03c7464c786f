"""Warm-up and the ways down, by hand and against torch's."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR

from hpctrain.worker.schedule import learning_rate


# 4 steps of warm-up and 12 of decay: a third, a half and two thirds of it have cosines 1/2, 0 and -1/2.
@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.25), (4, 1.0), (8, 0.1 + 0.9 * 0.75), (10, 0.55), (12, 0.1 + 0.9 * 0.25), (16, 0.1)]
)
def test_warm_up_then_cosine(step: int, expected: float) -> None:
    assert learning_rate(step, 16, 4, peak=1.0, minimum=0.1) == pytest.approx(expected)


def test_a_straight_line_after_the_warm_up_by_hand() -> None:
    rates = [learning_rate(step, 16, 4, 1.0, 0.1, "linear") for step in (1, 4, 7, 10, 16)]
    assert rates == pytest.approx([0.25, 1.0, 0.775, 0.55, 0.1])


@pytest.mark.parametrize(("decay", "last"), [("cosine", 0.1), ("linear", 0.1), ("constant", 1.0)])
def test_each_way_down_is_torch_s(decay: Literal["cosine", "linear", "constant"], last: float) -> None:
    """Step by step, behind 4 steps of warm-up: torch counts from 0, and its first value is the peak."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedules = {
        "cosine": lambda: CosineAnnealingLR(optimizer, T_max=12, eta_min=0.1),
        "linear": lambda: LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=12),
        "constant": lambda: ConstantLR(optimizer, factor=1.0),
    }
    theirs = schedules[decay]()  # type: ignore[no-untyped-call]
    for step in range(4, 17):
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate(step, 16, 4, 1.0, 0.1, decay) == pytest.approx(expected)
        optimizer.step()
        theirs.step()
    assert expected == pytest.approx(last)


@pytest.mark.parametrize("num_steps", [1, 2, 30])
@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 50])
def test_rates_stay_between_zero_and_the_peak(num_steps: int, warmup_steps: int) -> None:
    rates = [learning_rate(step, num_steps, warmup_steps, 1.0, 0.1) for step in range(1, num_steps + 1)]
    assert all(0 < rate <= 1.0 for rate in rates)
    if warmup_steps < num_steps:
        assert rates[-1] == pytest.approx(0.1)


def test_a_constant_rate() -> None:
    assert {learning_rate(step, 30, 0, 1e-4, 1e-4) for step in range(1, 31)} == {1e-4}
