"""Losses, gradients and skipped steps: each rule at and below its threshold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.logs.make_readings import flags_of, series

HEALTHY = [3.0, 3.01, 2.99, 3.0, 3.02, 2.98, 3.0, 3.01]


@pytest.mark.parametrize(
    ("losses", "flags"),
    [
        pytest.param(HEALTHY, set(), id="healthy"),
        pytest.param([*HEALTHY, 4.2, 3.1, 3.0], {"loss_spike_at_1009"}, id="spike-names-its-step"),
        pytest.param([*HEALTHY, 3.8, 3.1, 3.0], set(), id="27-percent-is-none"),
        pytest.param([3.0, 6.0, 3.0, 3.0], set(), id="one-record-before-is-no-baseline"),
        pytest.param([2.0, 4.0, 1.5, 3.8, 2.2, 4.6, 1.9, 5.5, 2.4], set(), id="noise-is-no-spike"),
        pytest.param([*HEALTHY, 4.6, 5.5, 6.0, 6.6, 7.1], {"divergence"}, id="divergence-is-no-spike"),
        pytest.param([3.0, 3.1, 4.4, 6.0, 7.5], {"divergence"}, id="five-records-diverge"),
        pytest.param([6.0, 6.2, 6.9, 8.1, 9.3], {"divergence"}, id="slowly"),
        pytest.param([6.0, 6.1, 6.0, 6.1, 9.3], {"loss_spike_at_1005"}, id="one-bad-record-is-a-spike"),
        pytest.param([4.0, 7.0, 4.4], {"loss_spike_at_1002"}, id="peak-of-three"),
        pytest.param([4.0, 5.6, 4.4], set(), id="27-percent-is-no-peak"),
        pytest.param(
            [*HEALTHY, 6.0, *HEALTHY, *HEALTHY, *HEALTHY, 4.6, 5.5, 6.0, 6.6, 7.1],
            {"loss_spike_at_1009", "divergence"},
            id="spike-before-the-divergence",
        ),
        pytest.param([*HEALTHY, 4.6, 5.5, 6.0, 5.0, 4.7], {"loss_spike_at_1009"}, id="falling-back-is-no-divergence"),
        pytest.param([*HEALTHY, None], {"loss_missing_at_1009"}, id="missing-after-others"),
        pytest.param([3.0, None, None, 3.0], {"loss_missing_at_1002"}, id="first-missing-is-named"),
        pytest.param([None, None], {"no_loss_in_log"}, id="never-a-loss"),
        pytest.param([3.0, 0.0], {"loss_zero_suspicious"}, id="zero"),
    ],
)
def test_losses(losses: list[float | None], flags: set[str]) -> None:
    assert flags_of(series(loss=losses)) == flags


def test_two_far_spikes_are_two_and_near_ones_are_one() -> None:
    losses = [3.0 + 0.01 * (place % 3) for place in range(60)]
    losses[10] = losses[12] = losses[45] = 6.0
    assert flags_of(series(loss=losses)) == {"loss_spike_at_1011", "loss_spike_at_1046"}


@pytest.mark.parametrize(
    ("records", "flags"),
    [
        pytest.param(series(loss=[3.0, None], loss_is_nan=[..., True]), {"nan_loss"}, id="printed-nan"),
        pytest.param(
            series(loss=[None, None], grad_norm=[None, None], grad_norm_is_nan=[True, True]),
            {"loss_missing_everywhere", "nan_grad_norm"},
            id="nan-gradients",
        ),
        pytest.param(
            series(loss=[None, None], skipped_iterations=[0, 0]), {"loss_missing_everywhere"}, id="steps-without-loss"
        ),
        pytest.param(
            series(loss=[None, None], skipped_iterations=[1, 1]),
            {"no_loss_in_log", "all_steps_skipped"},
            id="all-skipped",
        ),
        pytest.param(series(loss=[3.0] * 4, skipped_iterations=[1, 1, 0, 0]), set(), id="search-for-a-scale"),
        pytest.param(series(loss=[3.0] * 4, skipped_iterations=[1, 0, 1, 0]), {"skipped_iterations"}, id="skips-later"),
    ],
)
def test_nan_and_skips(records: list[dict[str, Any]], flags: set[str]) -> None:
    assert flags_of(records) == flags


@pytest.mark.parametrize(
    ("skipped", "flags"), [(100, {"overflow_skips"}), (99, set())], ids=["a-tenth-skipped", "less-than-a-tenth"]
)
def test_deepspeeds_total_of_skips(skipped: int, flags: set[str]) -> None:
    engine = [{"iteration": 500, "skipped_total": 20}, {"iteration": 1000, "skipped_total": skipped}]
    assert flags_of(engine=engine, system="deepspeed") == flags


@pytest.mark.parametrize(
    ("skipped", "flag"),
    [([0, 0], "overflow_lines_without_skip_counter"), ([1, 0], "overflow_lines"), ([..., ...], "overflow_lines")],
    ids=["silent-counter", "counter", "no-counter"],
)
def test_overflow_lines(skipped: list[Any], flag: str) -> None:
    records = series(loss=[3.0, 3.0], skipped_iterations=skipped)
    assert flags_of(records, facts={"overflow": [(9, {"loss_scale_before": 8.0})]}) == {flag}


def test_a_cut_record_whose_loss_had_its_place_is_missing_it() -> None:
    records = series(loss=[3.0, 3.0])
    assert flags_of(records, incomplete=[{"iteration": 1003, "loss": None}]) == {"loss_missing_at_1003"}
    assert flags_of(records, incomplete=[{"iteration": 1003}]) == set()


def test_a_loss_in_the_cut_record_says_that_not_all_is_lost() -> None:
    records = series(loss=[None], skipped_iterations=[1])
    assert flags_of(records, incomplete=[{"iteration": 1002, "loss": 9.5}]) == {"loss_missing_at_1001"}


def test_a_placeholder_in_all_records_is_a_loss_that_the_log_lacks() -> None:
    records = series(loss=[None, None])
    assert flags_of(records, system="torchtitan") == {"loss_missing_everywhere", "no_loss_in_log"}
