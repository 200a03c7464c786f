"""The loss scale of fp16, step by step."""

from __future__ import annotations

import pickle
import types
from typing import Any

import pytest

from hpctrain.worker.end_reasons import EXIT_CODES, LossScaleError
from hpctrain.worker.loss_scale import LossScale, ScaleRule, install_loss_scale, loss_scale_of, scale_rule
from tests.plan.test_run_plan import plan_of

GOOD, BAD = False, True


def scales(rule: ScaleRule, *steps: bool) -> list[float]:
    """By which the loss is multiplied in each step, and would be in the next."""
    scale, found = LossScale(rule), []
    for overflow in steps:
        found.append(float(scale.loss_scale))
        # What DeepSpeed calls in the middle of a step moves nothing.
        scale.update_scale(overflow)
        assert scale.loss_scale == found[-1]
        scale.end_step(overflow)
    return [*found, float(scale.loss_scale)]


@pytest.mark.parametrize(
    ("steps", "hysteresis", "expected"),
    [
        pytest.param([GOOD] * 6, 1, [16, 16, 16, 32, 32, 32, 64], id="grows-after-each-window"),
        pytest.param([BAD, BAD], 1, [16, 8, 4], id="each-overflow-halves"),
        pytest.param([BAD, BAD, BAD], 2, [16, 16, 8, 4], id="the-second-and-later"),
        pytest.param(
            [BAD, GOOD, GOOD, BAD, GOOD, GOOD, GOOD], 2, [16, 16, 16, 16, 8, 8, 8, 16], id="good-ones-between"
        ),
        pytest.param([BAD, GOOD, GOOD, GOOD, BAD, BAD], 2, [16, 16, 16, 16, 32, 32, 16], id="growth-forgives"),
        pytest.param([GOOD, GOOD, BAD, GOOD, GOOD, GOOD], 1, [16, 16, 16, 8, 8, 8, 16], id="an-overflow-begins-anew"),
    ],
)
def test_a_dynamic_scale(steps: list[bool], hysteresis: int, expected: list[float]) -> None:
    rule = ScaleRule(first=16.0, is_dynamic=True, window=3, smallest=1.0, hysteresis=hysteresis)
    assert scales(rule, *steps) == expected


def test_an_overflow_at_the_smallest_scale_ends_the_run() -> None:
    rule = ScaleRule(first=16.0, is_dynamic=True, window=3, smallest=6.0, hysteresis=1)
    assert scales(rule, BAD, BAD) == [16, 8, 6]
    with pytest.raises(
        LossScaleError, match=r"training\.min_loss_scale=6: .* after 3 skipped steps in a row"
    ) as caught:
        scales(rule, BAD, BAD, BAD)
    assert EXIT_CODES[caught.value.reason] == 14


def test_a_fixed_scale_skips_single_steps_and_ends_with_the_fifth_in_a_row() -> None:
    rule = ScaleRule(first=64.0)
    assert set(scales(rule, *([BAD] * 4 + [GOOD]) * 3)) == {64.0}
    with pytest.raises(
        LossScaleError, match=r"training\.loss_scale=64: .* in 5 steps in a row; .*loss_scale=4, or null"
    ):
        scales(rule, GOOD, *[BAD] * 5)


@pytest.mark.parametrize(
    ("num_steps", "told"),
    [(1, "the only step; nearest"), (3, "all 3 steps, and no weight was updated; nearest: training.loss_scale=4,")],
    ids=["one step", "three steps"],
)
def test_a_short_run_at_a_fixed_scale_without_one_good_step_is_no_success(num_steps: int, told: str) -> None:
    scale = LossScale(ScaleRule(first=64.0))
    for _ in range(num_steps - 1):
        scale.end_step(BAD)
    with pytest.raises(LossScaleError, match=f"gradients overflowed fp16 in {told}"):
        scale.end_step(BAD, is_last=True)


def test_one_good_step_is_enough_and_a_dynamic_scale_may_still_be_coming_down() -> None:
    scale = LossScale(ScaleRule(first=64.0))
    for overflow in (GOOD, BAD):
        scale.end_step(overflow)
    scale.end_step(BAD, is_last=True)
    LossScale(ScaleRule(first=64.0, is_dynamic=True)).end_step(BAD, is_last=True)


def test_the_rule_is_that_of_the_plan() -> None:
    words = ("model=tiny", "cluster=local", "training.precision=fp16", "training.initial_scale_power=5")
    plan = plan_of(*words, "training.loss_scale_window=7", "training.min_loss_scale=2", "training.hysteresis=3")
    assert scale_rule(plan.ds_config) == ScaleRule(32.0, True, 7, 2.0, 3)
    assert scale_rule(plan_of("model=tiny", "cluster=local").ds_config) is None


def engine_with(scale: Any) -> Any:
    return types.SimpleNamespace(optimizer=types.SimpleNamespace(loss_scaler=scale))


def test_a_loaded_scale_goes_on_under_the_rule_of_the_configuration() -> None:
    saved = LossScale(ScaleRule(first=16.0, is_dynamic=True, window=9, hysteresis=4))
    for overflow in (BAD, GOOD, GOOD, GOOD):
        saved.end_step(overflow)
    engine = engine_with(pickle.loads(pickle.dumps(saved)))
    install_loss_scale(engine, ScaleRule(first=1024.0, is_dynamic=True, window=4, hysteresis=2))
    scale = loss_scale_of(engine)
    assert scale is not None
    assert (scale.loss_scale, scale.num_good, scale.num_overflows) == (16.0, 3, 1)
    scale.end_step(GOOD)
    assert scale.loss_scale == 32.0


def test_a_fixed_scale_of_the_configuration_wins_over_a_loaded_one() -> None:
    engine = engine_with(LossScale(ScaleRule(first=16.0, is_dynamic=True)))
    install_loss_scale(engine, ScaleRule(first=128.0))
    scale = loss_scale_of(engine)
    assert scale is not None
    assert scale.loss_scale == 128.0


def test_other_types_have_none() -> None:
    engine = engine_with(None)
    install_loss_scale(engine, None)
    assert loss_scale_of(engine) is None
