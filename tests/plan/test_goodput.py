"""Goodput under failures: by hand, against numeric search, against a simulation, against published runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from hpctrain.plan.cost.cost import steps_for_tokens
from hpctrain.plan.cost.goodput import (
    FIRST_ORDER_LIMIT,
    PUBLISHED_NODE_MTBF_HOURS,
    Failures,
    best_interval_s,
    daly_interval_s,
    first_order_goodput,
    goodput_shares,
    job_mtbf_s,
    planned_goodput,
    young_interval_s,
)
from hpctrain.plan.layout import Batch

RATIOS = [1e-6, 1e-4, 1 / 200, 0.05, 0.5, 1.0]
"""Save time over mean time between failures."""


def minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Place of the minimum of a function with one valley, by golden section."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


def test_intervals_by_hand() -> None:
    # 20,000 h a node on 128 nodes: 562,500 s. sqrt(2 x 60 x 562,500) = 8,215.838; sqrt(60 / 1,125,000) = 0.00730297:
    # 8,215.838 x (1 + 0.00243432 + 0.00000593) - 60 = 8,175.887.
    mtbf_s = job_mtbf_s(20_000, 128)
    assert mtbf_s == 562_500
    assert young_interval_s(60, mtbf_s) == pytest.approx(8215.838, abs=1e-3)
    assert daly_interval_s(60, mtbf_s) == pytest.approx(8175.887, abs=1e-3)


@pytest.mark.parametrize("ratio", RATIOS)
def test_youngs_interval_minimises_the_first_order_waste(ratio: float) -> None:
    found = minimum(lambda interval_s: -first_order_goodput(interval_s, ratio, 1.0, 0.01), 1e-6, 10.0)
    assert young_interval_s(ratio, 1.0) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("ratio", [*RATIOS, 3.0])
@pytest.mark.parametrize("restart_s", [0.001, 1.0])
def test_the_best_interval_minimises_dalys_wall_clock(ratio: float, restart_s: float) -> None:
    found = minimum(lambda interval_s: -goodput_shares(interval_s, ratio, 1.0, restart_s)[0], 1e-6, 10.0)
    assert best_interval_s(ratio, 1.0) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize(
    ("form", "ratio", "largest"),
    [
        *[pytest.param(daly_interval_s, ratio, 0.02, id=f"daly-{ratio:g}") for ratio in RATIOS],
        *[pytest.param(daly_interval_s, ratio, 0.07, id=f"daly-{ratio:g}") for ratio in (1.5, 1.999, 2.0, 2.001, 5.0)],
        *[pytest.param(young_interval_s, ratio, 0.04, id=f"young-{ratio:g}") for ratio in (1e-6, 1e-4, 1 / 200)],
    ],
)
def test_closed_forms_hold_in_their_stated_range(
    form: Callable[[float, float], float], ratio: float, largest: float
) -> None:
    assert form(ratio * 3600, 3600) == pytest.approx(best_interval_s(ratio * 3600, 3600), rel=largest)


def test_daly_saves_once_in_a_mean_time_between_failures_where_a_save_takes_two() -> None:
    assert daly_interval_s(20.0, 10.0) == 10.0
    assert daly_interval_s(19.999, 10.0) < 10.0


@pytest.mark.parametrize("interval", [1e-4, 1e-3, 0.01, 0.05, 0.0999])
@pytest.mark.parametrize("save_share", [1e-3, 0.03, 0.1])
@pytest.mark.parametrize("restart_share", [0.0, 0.5, 1.0])
def test_the_first_order_form_is_close_within_its_limit(
    interval: float, save_share: float, restart_share: float
) -> None:
    restart = restart_share * (FIRST_ORDER_LIMIT - interval)
    model = goodput_shares(interval, save_share * interval, 1.0, restart)[0]
    assert abs(first_order_goodput(interval, save_share * interval, 1.0, restart) - model) < 0.015


def simulated_shares(interval: float, save: float, restart: float, num_intervals: int) -> list[float]:
    """Training, saving, repeating and restarting of a run that fails at a rate of one, failure by failure."""
    draw = random.Random(20061).expovariate
    saved, restarting, clock = 0, 0.0, 0.0
    next_failure = draw(1.0)
    while saved < num_intervals:
        if clock + interval + save <= next_failure:
            clock += interval + save
            saved += 1
            continue
        clock, started = next_failure, next_failure
        next_failure = clock + draw(1.0)
        while clock + restart > next_failure:  # fails again while it starts
            clock = next_failure
            next_failure = clock + draw(1.0)
        clock += restart
        restarting += clock - started
    training, saving = saved * interval / clock, saved * save / clock
    return [training, saving, 1 - training - saving - restarting / clock, restarting / clock]


@pytest.mark.parametrize(
    ("interval", "save", "restart"),
    [(0.1, 0.005, 0.01), (0.5, 0.1, 0.3), (1.5, 0.5, 1.0)],
    ids=["rare-failures", "often", "hardly-alive"],
)
def test_shares_are_those_of_a_simulated_run(interval: float, save: float, restart: float) -> None:
    shares = goodput_shares(interval, save, 1.0, restart)
    assert sum(shares) == pytest.approx(1.0)
    assert shares == pytest.approx(simulated_shares(interval, save, restart, 40_000), abs=0.01)


def training_share(
    mtbf_hours: float = 5000, write_s: float = 60, restart_s: float = 600, num_nodes: int = 128, step_time_s: float = 30
) -> float:
    return planned_goodput(Failures(mtbf_hours, write_s, restart_s), num_nodes, step_time_s).training


@pytest.mark.parametrize("step_time_s", [0.2, 30.0, 900.0])
def test_more_trouble_never_gives_more_goodput(step_time_s: float) -> None:
    grid = [2.0**power for power in range(-6, 24)]
    by_mtbf = [training_share(mtbf_hours=hours, step_time_s=step_time_s) for hours in grid]
    assert by_mtbf == sorted(by_mtbf)
    assert by_mtbf[0] < 0.01 < 0.99 < by_mtbf[-1]
    for by_trouble in (
        [training_share(write_s=seconds, step_time_s=step_time_s) for seconds in grid],
        [training_share(restart_s=seconds, step_time_s=step_time_s) for seconds in grid],
        [training_share(num_nodes=2**power, step_time_s=step_time_s) for power in range(16)],
    ):
        assert by_trouble == sorted(by_trouble, reverse=True)


@pytest.mark.parametrize("step_time_s", [7.0, 400.0, 5000.0])
def test_the_interval_is_the_best_whole_number_of_steps(step_time_s: float) -> None:
    failures = Failures(node_mtbf_hours=6000, write_s=90, restart_s=700)
    chosen = planned_goodput(failures, 100, step_time_s)
    mtbf_s = job_mtbf_s(6000, 100)
    best = max(range(1, 2000), key=lambda steps: goodput_shares(steps * step_time_s, 90, mtbf_s, 700)[0])
    assert chosen.interval_steps == best
    assert chosen.interval_s == best * step_time_s
    total = chosen.training + chosen.saving + chosen.repeating + chosen.restarting
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize(("stated_s", "steps"), [(3600, 12), (3700, 12), (3800, 13), (10, 1)])
def test_a_stated_interval_is_brought_to_whole_steps(stated_s: float, steps: int) -> None:
    failures = Failures(node_mtbf_hours=6000, write_s=90, restart_s=700)
    goodput = planned_goodput(failures, 100, 300, stated_s)
    assert goodput.interval_steps == steps
    assert goodput.training <= planned_goodput(failures, 100, 300).training


def test_the_first_order_form_is_told_only_within_its_range() -> None:
    calm = planned_goodput(Failures(50_000, 30, 300), 64, 20)
    assert calm.first_order_training == pytest.approx(calm.training, abs=0.015)
    # One node that fails each 36,000 s: interval and restart may be 3,600 s, and a save a tenth of the interval.
    for write_s, restart_s, is_told in ((300, 600, True), (300, 601, False), (301, 600, False)):
        edge = planned_goodput(Failures(10, write_s, restart_s), 1, 100, interval_s=3000)
        assert (edge.first_order_training is not None) == is_told


def test_a_job_that_never_gets_on_has_no_goodput_and_no_overflow() -> None:
    goodput = planned_goodput(Failures(node_mtbf_hours=1e-9, write_s=1e7, restart_s=1e7), 1000, 1e6)
    assert goodput.training == 0.0
    assert goodput.restarting == 1.0


PUBLISHED = [
    pytest.param("Llama 3 (8 H100 a node)", 2048, 3.09, id="llama-3-419-in-54-days"),
    pytest.param("RSC-1 (8 A100 a node)", 2048, 1.8, id="rsc-1-16384-gpus"),
    pytest.param("RSC-1 (8 A100 a node)", 131_072 // 8, 0.23, id="rsc-1-131072-gpus"),
    pytest.param("BLOOM (8 A100 a node)", 48, 112.0, id="bloom-three-in-two-weeks"),
]


@pytest.mark.parametrize(("where", "num_nodes", "hours"), PUBLISHED)
def test_published_hours_between_failures_of_a_job(where: str, num_nodes: int, hours: float) -> None:
    node_hours, source = PUBLISHED_NODE_MTBF_HOURS[where]
    assert source
    assert job_mtbf_s(node_hours, num_nodes) / 3600 == pytest.approx(hours, rel=0.03)


def test_bloom_needed_about_the_gpu_hours_that_its_steps_and_failures_ask() -> None:
    # 366e9 tokens in batches of 2,048 x 2,048; 100 steps in 3 h between checkpoints, 40 s a save; restart assumed 30 min.
    # Published: 1,082,990 GPU-hours on 384 GPUs, planned stops and tests with them.
    num_steps = steps_for_tokens(366e9, Batch(1, 1, 2048, 2048))
    failures = Failures(PUBLISHED_NODE_MTBF_HOURS["BLOOM (8 A100 a node)"][0], write_s=40, restart_s=1800)
    goodput = planned_goodput(failures, 48, step_time_s=108, interval_s=3 * 3600)
    assert goodput.interval_steps == 100
    gpu_hours = num_steps * 108 / 3600 * 384 / goodput.training
    assert 0.9 * 1_082_990 < gpu_hours < 1_082_990
