"""Which past runs calibrate predicted steps, and the calibrations that come out, one a kind of node and data type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.analysis.calibration_fit import Fit, Observation, fit_factors
from hpctrain.analysis.run_row import OWN_SOURCE, RunSummary
from hpctrain.config.calibration import Calibration, PartKind, Seen
from hpctrain.config.schema import Config
from hpctrain.errors import RecordError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.speed.calibration import LARGEST_FACTOR, SMALLEST_FACTOR, seconds_by_kind
from hpctrain.plan.speed.calibration_choice import prediction_of_run, rates_of, stated_rates
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config, read_plan, runs_folder

FEWEST_STEADY_STEPS = 8
"""As many as a 95 % interval of the median needs at least, see ``intervals.dependent_median_interval``."""

MOST_DATA_WAIT = 0.05
"""Share of a step: what waits longer is bound by its input, which no part of the predicted step stands for."""


@dataclass(frozen=True)
class UsableRun:
    """A run with everything that a calibration takes from it."""

    summary: RunSummary
    plan: RunPlan
    config: Config
    observation: Observation

    @property
    def key(self) -> tuple[str, str, bool, tuple[tuple[str, float | None], ...]]:
        """Runs with equal keys share a calibration."""
        rates = rates_of(self.config.hardware, self.plan.precision)
        return (self.plan.hardware_name, self.plan.precision, self.plan.compile, tuple(rates.items()))


@dataclass(frozen=True)
class FittedCalibration:
    """A calibration with what it was found from."""

    calibration: Calibration
    fit: Fit
    runs: tuple[UsableRun, ...]


@dataclass(frozen=True)
class CalibrationResult:
    """All that the runs give."""

    fitted: tuple[FittedCalibration, ...]
    left_out: tuple[tuple[str, str], ...]
    """Name of each other run or log, and why it is left out."""
    folders: tuple[Path, ...]
    """Those that hold the used runs, each once: their ``run.root``."""


def calibrate(summaries: Iterable[RunSummary], today: str) -> CalibrationResult:
    """The calibrations of all usable runs; reads their plans and configurations.

    Args:
        summaries: rows of the frame ``runs``.
        today: date of the fit, such as 2026-11-29.
    """
    groups: dict[object, list[UsableRun]] = {}
    left_out: list[tuple[str, str]] = []
    for summary in summaries:
        found = usable_run(summary)
        if isinstance(found, str):
            left_out.append((summary.run, found))
        else:
            groups.setdefault(found.key, []).append(found)
    fitted = []
    for runs in groups.values():
        one = _fitted(runs, today)
        if isinstance(one, str):
            left_out += [(run.summary.run, one) for run in runs]
        else:
            fitted.append(one)
    folders = dict.fromkeys(runs_folder(RunPaths(Path(run.summary.folder))) for one in fitted for run in one.runs)
    return CalibrationResult(tuple(fitted), tuple(left_out), tuple(folders))


def usable_run(summary: RunSummary) -> UsableRun | str:
    """The run, or why it calibrates nothing."""
    if summary.source != OWN_SOURCE:
        return f"a log of {summary.source}: it has no plan of ours"
    if not summary.valid:
        return summary.reason
    if summary.device != "cuda":
        return f"hardware={summary.hardware} has device={summary.device}: step times are predicted for GPUs"
    if summary.num_steady_steps < FEWEST_STEADY_STEPS or summary.step_time_s is None:
        return f"{summary.num_steady_steps} steady steps, fewer than {FEWEST_STEADY_STEPS}"
    if summary.data_time_s is not None and summary.data_time_s > MOST_DATA_WAIT * summary.step_time_s:
        return f"{summary.data_time_s / summary.step_time_s:.0%} of a step is waiting for data, more than {MOST_DATA_WAIT:.0%}"
    run = RunPaths(Path(summary.folder))
    try:
        plan, config = read_plan(run), read_config(run)
    except RecordError as error:
        return str(error)
    if difference := _difference(plan, config):
        return f"its plan.json and config.yaml are of different runs: {difference}"
    prediction, gap = prediction_of_run(plan, config)
    if prediction is None:
        return gap
    parts_s = seconds_by_kind(prediction.parts_s)
    return UsableRun(summary, plan, config, Observation(summary.folder, parts_s, summary.step_time_s))


def _difference(plan: RunPlan, config: Config) -> str:
    """What the two files say differently; empty: nothing that a prediction depends on."""
    pairs = {
        "hardware": (plan.hardware_name, config.hardware.name),
        "nodes": (plan.layout.num_nodes, config.nodes),
        "gpus_per_node": (plan.layout.gpus_per_node, config.hardware.gpus_per_node),
        "zero_stage": (plan.zero_stage, config.parallelism.zero_stage),
        "precision": (plan.precision, config.precision),
        "model": (plan.model.name, config.model.name),
    }
    return ", ".join(f"{key} {planned} and {frozen}" for key, (planned, frozen) in pairs.items() if planned != frozen)


def _fitted(runs: Sequence[UsableRun], today: str) -> FittedCalibration | str:
    """The calibration of runs with one key, or why there is none."""
    fit = fit_factors(run.observation for run in runs)
    first = runs[0]
    for kind, factor in fit.factors.items():
        if not SMALLEST_FACTOR <= factor <= LARGEST_FACTOR:
            return (
                f"measured is {factor:.3g} times the predicted time ({kind}), outside {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}:"
                f" the rates of hardware={first.plan.hardware_name} are wrong, or the runs are not what their plans say"
            )
    calibration = Calibration(
        hardware=first.plan.hardware_name,
        precision=first.plan.precision,
        compiled=first.plan.compile,
        rates=stated_rates(rates_of(first.config.hardware, first.plan.precision), fit.factors),
        factors=fit.factors,
        errors=fit.errors,
        num_runs=len(runs),
        num_configurations=len(fit.configurations),
        fitted_on=today,
        seen=_seen(runs),
        runs=tuple(run.summary.run for run in runs),
    )
    return FittedCalibration(calibration, fit, tuple(runs))


def _seen(runs: Sequence[UsableRun]) -> Seen:
    nodes = [run.plan.layout.num_nodes for run in runs]
    parameters = [run.plan.num_parameters for run in runs]
    shares: dict[PartKind, list[float]] = {}
    for run in runs:
        for kind, seconds in run.observation.parts_s.items():
            shares.setdefault(kind, []).append(seconds / run.observation.predicted_s)
    for found in shares.values():
        found += [0.0] * (len(found) < len(runs))  # some runs had none of it
    return Seen(
        nodes=(min(nodes), max(nodes)),
        parameters=(min(parameters), max(parameters)),
        zero_stages=tuple(sorted({run.plan.zero_stage for run in runs})),
        model_parallel=tuple(dict.fromkeys(way for run in runs for way in run.plan.layout.model_parallel_degrees)),
        shares={kind: (min(found), max(found)) for kind, found in shares.items()},
    )
