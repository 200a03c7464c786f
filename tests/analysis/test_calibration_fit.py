"""Factors come back from runs that were made with them, with noise and odd runs; and the range holds what it says."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from hpctrain.analysis.calibration_fit import Observation, fit_factors
from hpctrain.config.calibration import PartKind


def observed(
    factors: Mapping[PartKind, float],
    count: int,
    sigma: float = 0.0,
    seed: int = 0,
    shares: tuple[float, float] = (0.02, 0.5),
) -> list[Observation]:
    """Configurations whose kinds but compute take each a random share of ``shares``, measured with the factors and noise."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        step_s = random.uniform(0.5, 60.0)
        others: dict[PartKind, float] = {
            kind: step_s * random.uniform(*shares) / (len(factors) - 1) for kind in factors if kind != "compute"
        }
        parts_s: dict[PartKind, float] = {"compute": step_s - sum(others.values()), **others}
        measured_s = sum(factors[kind] * seconds for kind, seconds in parts_s.items()) * random.lognormal(0, sigma)
        found.append(Observation(f"run-{number}", parts_s, measured_s))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_one_factor_comes_back(factor: float, count: int) -> None:
    fit = fit_factors(observed({"compute": factor, "communication": factor}, count))
    assert fit.factors == pytest.approx({"compute": factor, "communication": factor})
    assert len(set(fit.factors.values())) == 1
    assert (fit.errors is None) == (count < 3)
    if fit.errors is not None:
        assert fit.errors == pytest.approx((0, 0), abs=1e-9)


@pytest.mark.parametrize(
    "factors",
    [
        {"compute": 1.05, "communication": 1.4},
        {"compute": 1.2, "communication": 0.7},
        {"compute": 1.0, "communication": 1.5, "host": 0.8},
        {"compute": 1.1, "host": 2.0},
    ],
    ids=["slow network", "fast network", "three", "host"],
)
def test_factors_of_their_own_come_back(factors: dict[PartKind, float]) -> None:
    assert fit_factors(observed(factors, 12)).factors == pytest.approx(factors, rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_they_come_back_from_noisy_runs(seed: int) -> None:
    """2 % of noise from run to run; communication is a quarter of the step, so its factor is known to some 5 %."""
    fit = fit_factors(observed({"compute": 1.05, "communication": 1.5}, 24, 0.02, seed))
    assert fit.factors["compute"] == pytest.approx(1.05, rel=0.03)
    assert fit.factors["communication"] == pytest.approx(1.5, rel=0.1)
    assert fit.errors is not None
    assert 0.02 < fit.errors[1] < 0.07, "some 2 sigmas"


def test_a_few_odd_runs_hardly_move_the_factors() -> None:
    """Two of twelve runs three times as slow; their spread is told all the same."""
    runs = observed({"compute": 1.05, "communication": 1.5}, 12, 0.01)
    odd = [Observation(run.run, run.parts_s, 3 * run.step_time_s) for run in runs[:2]]
    fit = fit_factors([*odd, *runs[2:]])
    assert fit.factors["compute"] == pytest.approx(1.05, rel=0.03)
    assert fit.errors is not None
    assert fit.errors[0] < -0.4


def test_what_the_runs_cannot_tell_apart_shares_a_factor() -> None:
    """Communication is 10 to 15 % of each step: its own factor would be noise."""
    alike = observed({"compute": 1.05, "communication": 1.5}, 12, 0.02, shares=(0.1, 0.15))
    assert len(set(fit_factors(alike).factors.values())) == 1
    few = observed({"compute": 1.05, "communication": 1.5}, 3)
    assert len(set(fit_factors(few).factors.values())) == 1, "three configurations are too few for two factors"


def test_runs_of_one_configuration_count_once() -> None:
    """By hand: 20 runs of one configuration at 1.5, two others at 1.1 and 1.2; the median of 1.1, 1.2 and 1.5."""
    many = [Observation(f"a{number}", {"compute": 2.0}, 3.0) for number in range(20)]
    others = [Observation("b", {"compute": 1.0}, 1.1), Observation("c", {"compute": 4.0}, 4.8)]
    fit = fit_factors([*many, *others])
    assert fit.factors == {"compute": pytest.approx(1.2)}
    assert [len(found.runs) for found in fit.configurations] == [20, 1, 1]
    assert fit.configurations[0].measured_s == 3.0
    assert fit.configurations[0].left_out_s == pytest.approx(2.0 * 1.15), "the median of the two others"


def test_errors_by_hand() -> None:
    """Ratios 1.0, 1.1 and 1.21 of three configurations: by the others, factors of 1.155, 1.105 and 1.05."""
    fit = fit_factors(
        Observation(str(number), {"compute": 1.0 + number}, (1.0 + number) * 1.1**number) for number in range(3)
    )
    logs = [math.log(1.155), math.log(1.105 / 1.1), math.log(1.05 / 1.21)]
    half = 4.30265 * math.sqrt(sum(log**2 for log in logs) / 3)  # Student's 97.5 % at 2 degrees of freedom
    assert fit.factors == {"compute": pytest.approx(1.1)}
    assert fit.errors == pytest.approx((math.exp(-half) - 1, math.exp(half) - 1), rel=1e-3)


def test_the_range_holds_further_configurations_as_often_as_it_says() -> None:
    inside = []
    for seed in range(40):
        runs = observed({"compute": 1.1, "communication": 1.1}, 7, 0.05, seed)
        fit = fit_factors(runs[:6])
        assert fit.errors is not None
        predicted_s = sum(fit.factors[kind] * seconds for kind, seconds in runs[6].parts_s.items())
        inside.append(fit.errors[0] <= predicted_s / runs[6].step_time_s - 1 <= fit.errors[1])
    assert 0.88 <= np.mean(inside) <= 1.0, "95 % of 40, give or take two deviations"


def test_a_fit_needs_a_run() -> None:
    with pytest.raises(ValueError, match="needs observations"):
        fit_factors([])
