"""The factors by which past runs differ from the predicted step: which are told apart, how large, how far runs are off.

Measured seconds are taken for a sum of the predicted seconds of each kind of parts, each times its factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpctrain.analysis.intervals import student_quantile
from hpctrain.config.calibration import PartKind
from hpctrain.plan.speed.calibration import KINDS, LARGEST_FACTOR, SMALLEST_FACTOR

Floats = NDArray[np.float64]
Partition = tuple[tuple[PartKind, ...], ...]
"""Kinds of parts by the factor that they share."""

CONFIGURATIONS_A_FACTOR = 2
"""Fewest different configurations for each factor: with fewer a factor is as good as its one run."""
FEWEST_FOR_SPREAD = 3
"""Configurations from which on their spread tells a range; from two, Student's interval is 12.7 sigmas wide."""
FEWEST_SHARE_APART = 0.1
"""Of the step, between the configurations with least and most of a kind: below it a factor of its own is mostly noise."""
FEWEST_GAIN = 0.1
"""Share by which a further factor must lower the error of configurations that it was not fitted on."""
_ROUNDS = 60
_SMALLEST_RESIDUAL = 1e-9


@dataclass(frozen=True)
class Observation:
    """One run: what the planner says of it, without any calibration, and what was measured."""

    run: str
    """Its folder."""
    parts_s: dict[PartKind, float]
    """Predicted seconds of a step by kind."""
    step_time_s: float
    """Measured, median of the steady steps."""

    @property
    def predicted_s(self) -> float:
        return sum(self.parts_s.values())


@dataclass(frozen=True)
class FittedConfiguration:
    """Runs that the planner cannot tell from one another."""

    runs: tuple[str, ...]
    """Their folders."""
    predicted_s: float
    measured_s: float
    """Median over the runs."""
    left_out_s: float | None
    """Predicted with factors of the other configurations alone; None: there are no others."""


@dataclass(frozen=True)
class Fit:
    """Factors and how they were found."""

    factors: dict[PartKind, float]
    errors: tuple[float, float] | None
    """Predicted over measured - 1, lowest and highest of 95 % of further configurations; None: too few to tell."""
    configurations: tuple[FittedConfiguration, ...]


def fit_factors(observations: Iterable[Observation]) -> Fit:
    """Factors of one kind of node.

    Repeated runs of one configuration count once, by their median. One common factor is the median of measured over predicted
    time. Communication and host get factors of their own where the configurations differ enough in them and that lowers, by
    ``FEWEST_GAIN``, the mean error of configurations that were left out of the fit one at a time; these factors minimise
    the sum of absolute relative errors, so that single odd runs hardly move them. The range is Student's 95 % interval for a
    further configuration, from the errors of those that were left out, on the logarithm.
    Source: Bloomfield and Steiger, Least Absolute Deviations (1983), for the sum; Stone, Journal of the Royal Statistical
    Society B 36 (1974), for leaving out; Student, Biometrika 6 (1908).
    Leaves out that a slower network also hides a smaller share of itself behind compute.

    Raises:
        ValueError: there are no observations.

    >>> fit = fit_factors([Observation("a", {"compute": 1.0}, 1.1), Observation("b", {"compute": 2.0}, 2.2)])
    >>> round(fit.factors["compute"], 6), fit.errors
    (1.1, None)
    """
    groups = _configurations(observations)
    if not groups:
        raise ValueError("a fit needs observations")
    kinds = tuple(kind for kind in KINDS if any(kind in group[0].parts_s for group in groups))
    measured = np.array([float(np.median([run.step_time_s for run in group])) for group in groups])
    parts = np.array([[group[0].parts_s.get(kind, 0.0) for kind in kinds] for group in groups])
    relative = parts / measured[:, None]
    partition, left_out = _chosen_partition(kinds, relative)
    found = _solved(_columns(partition, kinds, relative))
    factors = {kind: float(factor) for kinds_of, factor in zip(partition, found, strict=True) for kind in kinds_of}
    return Fit(
        factors={kind: factors[kind] for kind in kinds},
        errors=_errors(left_out, len(partition)),
        configurations=tuple(
            FittedConfiguration(
                runs=tuple(run.run for run in group),
                predicted_s=group[0].predicted_s,
                measured_s=float(measured[place]),
                left_out_s=None if left_out is None else float(measured[place] * left_out[place]),
            )
            for place, group in enumerate(groups)
        ),
    )


def _configurations(observations: Iterable[Observation]) -> list[list[Observation]]:
    """Runs with equal predictions, in their first order."""
    groups: dict[tuple[tuple[str, float], ...], list[Observation]] = {}
    for run in observations:
        groups.setdefault(tuple(sorted(run.parts_s.items())), []).append(run)
    return list(groups.values())


def _chosen_partition(kinds: Sequence[PartKind], relative: Floats) -> tuple[Partition, Floats | None]:
    """The partition, and predicted over measured time of each configuration by the others; None: there are no others."""
    common: Partition = (tuple(kinds),)
    if len(relative) == 1:
        return common, None
    best, best_left_out = common, _left_out(_columns(common, kinds, relative))
    for partition in _further_partitions(kinds, relative):
        columns = _columns(partition, kinds, relative)
        if not all(SMALLEST_FACTOR <= factor <= LARGEST_FACTOR for factor in _solved(columns)):
            continue
        left_out = _left_out(columns)
        if _score(left_out) < (1 - FEWEST_GAIN) * _score(best_left_out):
            best, best_left_out = partition, left_out
    return best, best_left_out


def _further_partitions(kinds: Sequence[PartKind], relative: Floats) -> list[Partition]:
    """Those with more than one factor that so many configurations can tell, fewest factors first."""
    shares = relative / relative.sum(axis=1, keepdims=True)
    apart = dict(zip(kinds, np.ptp(shares, axis=0).tolist(), strict=True))
    single = [kind for kind in kinds if kind != "compute" and apart[kind] >= FEWEST_SHARE_APART]
    found: list[Partition] = []
    for count in range(1, len(single) + 1):
        for chosen in itertools.combinations(single, count):
            rest = tuple(kind for kind in kinds if kind not in chosen)
            partition = (*([rest] if rest else []), *((kind,) for kind in chosen))
            if 1 < len(partition) <= len(relative) / CONFIGURATIONS_A_FACTOR:
                found.append(partition)
    return found


def _columns(partition: Partition, kinds: Sequence[PartKind], relative: Floats) -> Floats:
    """Predicted over measured time, (configurations, factors)."""
    return np.column_stack([relative[:, [kinds.index(kind) for kind in group]].sum(axis=1) for group in partition])


def _solved(columns: Floats) -> Floats:
    """Factors with the least sum of absolute relative errors; a single one is the median of measured over predicted."""
    if columns.shape[1] == 1:
        return np.array([np.median(1 / columns[:, 0])])
    weights = np.ones(len(columns))
    factors = np.ones(columns.shape[1])
    for _ in range(_ROUNDS):  # least squares, each weighted by the inverse of its last residual, come to absolute ones
        weighted, before = columns * weights[:, None], factors
        factors = np.linalg.lstsq(weighted.T @ columns, weighted.sum(axis=0), rcond=None)[0]
        if np.abs(factors - before).max() < _SMALLEST_RESIDUAL:
            break
        weights = 1 / np.maximum(np.abs(columns @ factors - 1), _SMALLEST_RESIDUAL)
    return np.asarray(factors)


def _left_out(columns: Floats) -> Floats:
    """Predicted over measured time of each configuration, with factors from all others."""
    places = np.arange(len(columns))
    ratios = [float(columns[place] @ _solved(columns[places != place])) for place in places]
    return np.array([max(ratio, _SMALLEST_RESIDUAL) for ratio in ratios])


def _score(left_out: Floats) -> float:
    return float(np.mean(np.abs(np.log(left_out))))


def _errors(left_out: Floats | None, num_factors: int) -> tuple[float, float] | None:
    """Predicted over measured - 1 of 95 % of further configurations."""
    if left_out is None or len(left_out) < FEWEST_FOR_SPREAD:
        return None
    spread = math.sqrt(float(np.mean(np.log(left_out) ** 2)))
    half = student_quantile(len(left_out) - num_factors) * spread
    return math.expm1(-half), math.expm1(half)
