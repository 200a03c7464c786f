"""Step times and rates: each rule at and below its threshold."""

from __future__ import annotations

import pytest

from tests.analysis.logs.make_readings import flags_of, series


@pytest.mark.parametrize(
    ("first", "times", "flags"),
    [
        pytest.param(1, [21.8, 3.2, 3.1], {"warmup_outlier_first_record"}, id="warm-up"),
        pytest.param(1, [3.4, 3.2, 3.2], set(), id="six-percent-is-no-warm-up"),
        pytest.param(1001, [21.8, 3.2, 3.1], set(), id="an-excerpt-has-no-warm-up"),
        pytest.param(1001, [3.0, 3.01, 3.0, 3.12, 3.13], {"throughput_drop_at_1004"}, id="drop-to-the-end"),
        pytest.param(1001, [3.0, 3.01, 3.0, 3.12, 3.0], set(), id="one-slow-record-is-no-drop"),
        pytest.param(1001, [3.0, 3.01, 3.0, 3.07, 3.08], set(), id="two-percent-is-no-drop"),
        pytest.param(1001, [3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6], {"throughput_trend_down"}, id="trend"),
        pytest.param(
            1001, [3.0, 3.0, 3.0, 3.0, 3.6, 3.6, 3.6, 3.6], {"throughput_drop_at_1005"}, id="one-drop-is-no-trend"
        ),
        pytest.param(1001, [3.0, 3.02, 3.04, 3.06, 3.08, 3.1, 3.12], set(), id="four-percent-is-no-trend"),
        pytest.param(1001, [3.0, 3.0, 6.1, 3.0, 3.0], {"slow_outlier"}, id="outlier"),
        pytest.param(1001, [3.0, 3.0, 5.9, 3.0, 3.0], set(), id="less-than-twice-is-none"),
        pytest.param(1001, [3.0, 5.0, 2.0, 4.5, 2.2, 5.1], {"no_steady_state"}, id="no-plateau"),
        pytest.param(1001, [3.0, 90.0, 3.1, 3.0, 3.1, 90.0], {"slow_outlier"}, id="outliers-beside-a-plateau"),
        pytest.param(
            1, [22.0, 12.0, 8.0, 5.0], {"warmup_outlier_first_record", "no_steady_state"}, id="still-warming-up"
        ),
    ],
)
def test_step_times(first: int, times: list[float], flags: set[str]) -> None:
    assert flags_of(series(first, loss=[3.0] * len(times), time_per_iteration_s=times)) == flags


@pytest.mark.parametrize(
    ("times", "flags"),
    [
        ([[9.0, 3.0, 3.0], [9.0, 3.0, 3.0]], {"warmup_outlier_first_record_of_each_segment"}),
        ([[9.0, 3.0, 3.0], [3.0, 3.0, 3.0]], {"warmup_outlier_first_record"}),
        ([[3.0, 3.0, 3.0], [9.0, 3.0, 3.0]], {"warmup_outlier_first_record_of_each_segment"}),
        ([[3.0], [9.0]], {"no_steady_state"}),
    ],
    ids=["each", "first-only", "second", "never-a-second-record"],
)
def test_each_start_is_slow(times: list[list[float]], flags: set[str]) -> None:
    records = [
        {"attempt": attempt, "iteration": 1 + place + 10 * attempt, "loss": 3.0, "time_per_iteration_s": time}
        for attempt, series_of_times in enumerate(times)
        for place, time in enumerate(series_of_times)
    ]
    assert flags_of(records) - {"iteration_gaps", "log_interval_gt_1"} == flags | {"restart"}


def test_a_log_of_rates_only_is_judged_by_its_rates() -> None:
    records = series(1, loss=[3.0] * 5, tokens_per_s_per_gpu=[500, 1000, 1001, 999, 1000])
    assert flags_of(records, system="torchtitan") == {"warmup_outlier_first_record"}


def test_a_skipped_first_record_is_no_warm_up() -> None:
    records = series(1, loss=[None, 3.0, 3.0], time_per_iteration_s=[9.0, 3.0, 3.0], skipped_iterations=[1, 0, 0])
    assert flags_of(records) == {"loss_missing_at_1"}


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({"samples_per_s": 53.7, "ds_curr_samples_per_s": 61.3}, {"two_throughputs"}),
        ({"samples_per_s": 53.7, "ds_curr_samples_per_s": 55.0}, set()),
        ({"samples_per_s": 5.0, "samples_per_s_printed": 0.005}, {"samples_per_s_inconsistent"}),
        ({"samples_per_s": 9.0, "global_batch_size": 64, "time_per_iteration_s": 1.0}, {"samples_per_s_inconsistent"}),
        ({"tflops_per_gpu": 2501.0}, {"tflops_above_peak"}),
        ({"tflops_per_gpu": 1574.0}, set()),
        ({"mfu_percent": 101.0}, {"tflops_above_peak"}),
    ],
    ids=["two-rates", "nearly-one", "corrected", "left", "above-every-gpu", "fp8-on-blackwell", "mfu"],
)
def test_rates(fields: dict[str, float], flags: set[str]) -> None:
    assert flags_of([{"iteration": 1001, "loss": 3.0, **fields}]) == flags


@pytest.mark.parametrize(
    ("rates", "flags"),
    [
        ([20.0, 1400.0, 140.0, 141.0], {"tflops_above_peak"}),
        ([20.0, 990.0, 140.0, 141.0], set()),
        ([900.0, 1400.0, 1390.0, 1410.0], set()),
        ([140.0, 1400.0], set()),
    ],
    ids=["ten-times-the-others", "an-h100-could", "blackwell", "too-few-to-compare"],
)
def test_a_rate_that_the_logs_others_forbid(rates: list[float], flags: set[str]) -> None:
    assert flags_of(series(loss=[3.0] * len(rates), tflops_per_gpu=rates)) == flags


@pytest.mark.parametrize(
    ("settings", "tflops", "above"),
    [
        ({"gpu": "A100-SXM-80GB"}, 313.0, True),
        ({"gpu": "A100-SXM-80GB"}, 311.0, False),
        ({"gpu": "H100-SXM-80GB"}, 1200.0, False),
        ({"gpu": "H100-SXM-80GB", "precision": "bf16"}, 1200.0, True),
    ],
    ids=["a100", "a100-below", "h100-may-be-fp8", "h100-in-bf16"],
)
def test_the_peak_of_a_named_gpu(settings: dict[str, object], tflops: float, above: bool) -> None:
    flags = flags_of([{"iteration": 1001, "loss": 3.0, "tflops_per_gpu": tflops}], settings=settings)
    assert flags == ({"tflops_above_peak"} if above else set())


def test_a_tflops_key_without_a_value_is_missing_and_not_zero() -> None:
    assert flags_of(series(loss=[3.0] * 2, tflops_per_gpu=[150.0, None])) == {"tflops_zero_means_missing"}
    assert flags_of(series(loss=[3.0] * 2, tflops_per_gpu=[None, 150.0])) == set(), "not measured yet"
    assert flags_of(series(loss=[3.0] * 2, tflops_per_gpu=[150.0, ...])) == set(), "no key"


@pytest.mark.parametrize(
    ("total", "average", "flags"),
    [
        (100.0, 10.0, set()),
        (119.0, 10.0, set()),
        (121.0, 10.0, {"avg_not_total_over_count"}),
        (-100.0, 10.0, {"negative_latency", "avg_not_total_over_count"}),
        (0.9, 0.04, set()),
    ],
    ids=["agree", "19-percent", "21-percent", "negative", "average-lost-its-digits"],
)
def test_collectives(total: float, average: float, flags: set[str]) -> None:
    row = {"op": "all_reduce", "count": 10, "total_ms": total, "avg_ms": average}
    assert flags_of(facts={"comm_row": [(2, row)]}, system="deepspeed") == flags


def test_a_step_that_grows_with_its_batch_is_no_slower() -> None:
    sizes = [16, 16, 32, 32, 64, 64, 128, 128]
    records = series(loss=[3.0] * 8, global_batch_size=sizes, time_per_iteration_s=[size / 32 for size in sizes])
    assert flags_of(records) == {"batch_size_ramp_up"}
