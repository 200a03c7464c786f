"""Numbers of a log against each other: what contradicts is corrected, and the printed value is kept beside it."""

from __future__ import annotations

import math

import pytest

from hpctrain.analysis.logs.events import Value
from hpctrain.analysis.logs.step_joiner import put_checked_rate
from hpctrain.analysis.logs.unit_checks import (
    RateCheck,
    check_samples_per_s,
    check_tflops,
    global_batch_from_rate,
    whole_quotient,
)
from hpctrain.plan.flops import megatron_flops


@pytest.mark.parametrize(
    ("batch", "time_s", "printed", "rate", "kept"),
    [
        pytest.param(2048, 573.1258, 0.004, 3.5734, 0.004, id="gpt104b-off-by-1000"),
        pytest.param(2048, 111.0, 18.451, 18.451, None, id="bloom-agrees"),
        pytest.param(2048, 100.0, 24.5, 24.5, None, id="19-percent-off-is-an-average"),
        pytest.param(2048, 100.0, 25.0, 20.48, 25.0, id="22-percent-off-is-not"),
        pytest.param(2048, 100.0, 0.0, None, None, id="a-rounded-zero-is-nothing"),
        pytest.param(None, 100.0, 25.0, 25.0, None, id="no-batch-to-check-with"),
        pytest.param(2048, None, 25.0, 25.0, None, id="no-time-to-check-with"),
        pytest.param(2048, 100.0, None, None, None, id="nothing-printed"),
        pytest.param(2048, 100.0, math.nan, None, None, id="nan"),
        pytest.param(True, 100.0, "fast", None, None, id="no-numbers"),
    ],
)
def test_batch_over_time_is_samples_per_s(
    batch: Value, time_s: Value, printed: Value, rate: float | None, kept: float | None
) -> None:
    check = check_samples_per_s(batch, time_s, printed)
    assert check.samples_per_s == (None if rate is None else pytest.approx(rate, rel=1e-4))
    assert check.samples_per_s_printed == kept
    assert check.consistent == (kept is None)


def test_a_record_keeps_both_rates_side_by_side() -> None:
    record = {"iteration": 17061, "global_batch_size": 2048, "time_per_iteration_s": 423.0423, "samples_per_s": 0.005}
    row: dict[str, object] = dict(record)
    put_checked_rate(row, record)
    assert row["samples_per_s"] == pytest.approx(4.8411, abs=5e-5)
    assert row["samples_per_s_printed"] == 0.005


def test_a_record_that_agrees_stays_as_it_is() -> None:
    record: dict[str, Value] = {"global_batch_size": 768, "time_per_iteration_s": 14.2875, "samples_per_s": 53.753}
    row: dict[str, object] = dict(record)
    put_checked_rate(row, record)
    assert row == record


@pytest.mark.parametrize(
    ("numerator", "denominator", "whole"),
    [
        (14200.0, 1780.0, 8),
        (216329.1, 1126.713, 192),
        (3.0, 2.0, None),
        (104.4, 1.0, None),
        (104.2, 1.0, 104),
        (0.2, 1.0, None),
        (5, 0, None),
        (None, 2, None),
        (1e308, 1.0, None),
        (1e308, 1e-308, None),
    ],
)
def test_whole_quotients(numerator: Value, denominator: Value, whole: int | None) -> None:
    assert whole_quotient(numerator, denominator) == whole


@pytest.mark.parametrize(("rate", "time_s", "batch"), [(6.805, 150.4713, 1024), (2.93, 10.921, 32), (None, 1.0, None)])
def test_batch_from_rate_and_time(rate: float | None, time_s: float, batch: int | None) -> None:
    assert global_batch_from_rate(rate, time_s) == batch


def test_published_530b_agrees_with_its_flops() -> None:
    # 1,024 GPUs, 204.08 s, 171.37 TFLOP/s a GPU: DeepSpeed on Azure, 2022.
    flops = megatron_flops(8192, 1024, 105, 20480, 50304)
    check = check_tflops(171.37, 1024, 204.08, flops)
    assert check.consistent
    assert check.expected == pytest.approx(171.37, rel=1e-3)


@pytest.mark.parametrize(
    ("printed", "hint"),
    [
        pytest.param(
            171_370.0,
            "printed value is 1000.0 times it: perhaps milliseconds or GFLOPs taken for seconds or TFLOPs",
            id="giga",
        ),
        pytest.param(171.37 / 8, "printed value is 1/8.0 of it: perhaps a parallel degree of 8", id="model-parallel"),
        pytest.param(171.37 * 11.3, "printed value is 11.3 times it: unit or model differ", id="nothing-known"),
    ],
)
def test_a_contradiction_names_its_factor(printed: float, hint: str) -> None:
    check = check_tflops(printed, 1024, 204.08, megatron_flops(8192, 1024, 105, 20480, 50304))
    assert not check.consistent
    assert check.hint == hint


@pytest.mark.parametrize("factor", [0.51, 0.75, 4 / 3, 1.99], ids=str)
def test_conventions_differ_by_less_than_the_tolerance(factor: float) -> None:
    assert check_tflops(100 * factor, 8, 1.0, 800e12).consistent


def test_nothing_printed_is_consistent() -> None:
    assert RateCheck(None, None).consistent
