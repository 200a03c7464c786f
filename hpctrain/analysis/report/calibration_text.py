"""What ``plan --calibrate`` prints: the factors, how far off they leave the runs, what was seen, what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hpctrain.analysis.calibration_fit import FittedConfiguration
from hpctrain.analysis.calibration_runs import CalibrationResult, FittedCalibration, UsableRun
from hpctrain.analysis.name_lists import joined_names, short_name
from hpctrain.config.calibration import Seen
from hpctrain.plan.speed.calibration import factors_text
from hpctrain.text_table import MISSING, aligned, wrapped
from hpctrain.units import counted

_NAME_WIDTH = 48
_MOST_NAMES = 3


def render_calibration(result: CalibrationResult) -> str:
    """All of it.

    Args:
        result: with at least one calibration.
    """
    parts = [_one(fitted) for fitted in result.fitted]
    return "\n\n".join(filter(None, (*parts, left_out_text(result))))


def left_out_text(result: CalibrationResult) -> str:
    """Runs that calibrate nothing, a line each reason; empty: there are none."""
    if not result.left_out:
        return ""
    by_reason: dict[str, list[str]] = {}
    for name, why in result.left_out:
        by_reason.setdefault(why, []).append(name)
    lines = [wrapped(f"{joined_names(names, _MOST_NAMES)}: {why}", "  ") for why, names in by_reason.items()]
    return "\n".join([f"left out, {len(result.left_out)}:", *lines])


def _one(fitted: FittedCalibration) -> str:
    found, fit = fitted.calibration, fitted.fit
    compiled = ", compiled" if found.compiled else ""
    title = f"{found.hardware} in {found.precision}{compiled}: step time {factors_text(found.factors)}"
    rows = [["CONFIGURATION", "RUNS", "PREDICTED S", "MEASURED S", "OFF %", "BY OTHERS %"]]
    rows += [_row(configuration, fitted.runs) for configuration in fit.configurations]
    if found.errors is None:
        spread = "too few configurations to tell a range; plans keep that of the planner's constants"
    else:
        low, high = found.errors
        spread = f"95 % of further configurations: {low:+.1%} to {high:+.1%} off"
    lines = [
        title,
        aligned(rows),
        wrapped("OFF: predicted over measured, less 1, without a calibration; BY OTHERS: with factors from all others"),
        spread,
        wrapped(f"seen: {_seen_text(found.seen)}; plans beyond that get the wider range"),
        *(wrapped(line) for line in _memory_lines(fitted.runs)),
    ]
    return "\n".join(lines)


def _row(configuration: FittedConfiguration, runs: Sequence[UsableRun]) -> list[str]:
    first = next(run for run in runs if run.summary.folder == configuration.runs[0])
    plan = first.plan
    size = f"{plan.layout.num_nodes} x {plan.layout.gpus_per_node} GPUs"
    name = f"{plan.model.name}, {size}, {plan.parallelism_name}, micro batch {plan.batch.micro_batch_size}"
    left_out = configuration.left_out_s
    return [
        short_name(name, _NAME_WIDTH),
        str(len(configuration.runs)),
        f"{configuration.predicted_s:.4g}",
        f"{configuration.measured_s:.4g}",
        _percent(configuration.predicted_s / configuration.measured_s - 1),
        MISSING if left_out is None else _percent(left_out / configuration.measured_s - 1),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}"


def _seen_text(seen: Seen) -> str:
    fewest, most = seen.nodes
    nodes = counted(most) if fewest == most else f"{fewest:,} to {counted(most)}"
    parameters = _between(f"{count / 1e9:.3g}" for count in seen.parameters)
    stages = ", ".join(map(str, seen.zero_stages))
    shares = [
        f"{_between(f'{share:.0%}' for share in pair)} of the step in {kind}" for kind, pair in seen.shares.items()
    ]
    ways = [f"{way} parallelism" for way in seen.model_parallel]
    return "; ".join((nodes, f"{parameters} B parameters", f"ZeRO stages {stages}", *ways, *shares))


def _between(texts: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(texts))


def _memory_lines(runs: Sequence[UsableRun]) -> list[str]:
    """How far off the predicted memory was: told and not corrected, since rules that are wrong are to be mended."""
    errors = [run.summary.memory_error for run in runs if run.summary.memory_error is not None]
    if not errors:
        return []
    return [
        f"memory, not calibrated: the predicted peak of rank 0's GPU allocator is {_percent(float(np.median(errors)))} % off in"
        f" the median, {_percent(min(errors))} to {_percent(max(errors))} %, in {len(errors)} run{'s' if len(errors) > 1 else ''}"
    ]
