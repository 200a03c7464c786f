"""Runs against a baseline of equal configuration: what changed, how surely, and whether training became slower."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpctrain.analysis.configuration import CONFIGURATION, configuration_label, is_known, unknown_texts
from hpctrain.analysis.frames import Frames
from hpctrain.analysis.intervals import RatioInterval, block_length, ratio_between_runs, ratio_of_medians
from hpctrain.analysis.loss_gap import loss_gap
from hpctrain.analysis.name_lists import joined_names
from hpctrain.errors import EXIT_OK, EXIT_REGRESSION, ConfigError, Problem, RecordError

DEFAULT_TOLERANCE = 0.05

Judgement = Literal["worse", "better", "equal", "unclear", "not judged"]


@dataclass(frozen=True)
class Metric:
    """One measured quantity, a column of ``runs`` or ``attempts``; ``higher_is_worse`` says which way is bad."""

    key: str
    unit: str
    higher_is_worse: bool
    worse: str
    better: str


STEP_TIME = Metric("step_time_s", "s", True, "slower", "faster")
METRICS = (
    STEP_TIME,
    Metric("tokens_per_s", "", False, "slower", "faster"),
    Metric("wall_tokens_per_s", "", False, "slower", "faster"),
    Metric("setup_time_s", "s", True, "slower", "faster"),
    Metric("peak_memory_bytes", "B", True, "more", "less"),
    Metric("final_loss", "", True, "higher", "lower"),
)


@dataclass(frozen=True)
class Change:
    """One metric of one configuration."""

    metric: str
    unit: str
    base: float | None
    """Geometric mean over the runs of the side; for one run its value (a median over its steady steps, if of steps)."""
    new: float | None
    ratio: float | None
    """new / base."""
    low: float | None
    high: float | None
    """95 % interval of ``ratio``."""
    judgement: Judgement
    verdict: str
    noise: str
    """What the interval was taken from, or why there is none."""


@dataclass(frozen=True)
class Pair:
    """One configuration that has valid runs on both sides."""

    configuration: str
    base_runs: tuple[str, ...]
    new_runs: tuple[str, ...]
    changes: tuple[Change, ...]

    @property
    def step_time(self) -> Change:
        return next(change for change in self.changes if change.metric == STEP_TIME.key)

    @property
    def is_slower(self) -> bool:
        return self.step_time.judgement == "worse"

    @property
    def is_judged(self) -> bool:
        """Its step time has an interval; without one it shows nothing, also not that no step became slower."""
        return self.step_time.judgement != "not judged"


@dataclass(frozen=True)
class Comparison:
    """All configurations of both sides."""

    tolerance: float
    pairs: tuple[Pair, ...]
    broken: tuple[str, ...]
    """Valid in the base, and now none is that ended, or a larger share of those that ended is not."""
    not_compared: tuple[str, ...]
    """Missing or unfinished on one side, with the reason."""

    @property
    def slower(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.is_slower)

    @property
    def not_judged(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if not pair.is_judged)

    @property
    def exit_code(self) -> int:
        """``EXIT_REGRESSION`` if a step became slower, a run stopped working or more runs fail, else ``EXIT_OK``."""
        return EXIT_REGRESSION if self.slower or self.broken else EXIT_OK


def compare(frames: Frames, base_frames: Frames, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
    """Every configuration of the runs against the same configuration of the base.

    A configuration is slower if its step time grew by more than ``tolerance`` and the 95 % interval of the ratio lies above
    1. With three runs or more on both sides together the interval is of the differences between runs; with one run a side
    it is of its steady steps, in blocks since neighbours are not independent, and knows nothing of differences between runs.

    Args:
        frames: the runs in question; those that are also in the base are left out.
        base_frames: the baseline.
        tolerance: share of the step time, 0 or above.

    Raises:
        ConfigError: the tolerance is negative or no number.
        RecordError: no configuration has valid runs on both sides, or the step time of none could be judged, and none
            stopped working.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        rule = "must be a share of the step time, 0 or above"
        raise ConfigError((Problem("--tolerance", f"{tolerance:g}", rule, "0.05 is 5 %"),))
    base_folders = set(map(os.path.realpath, base_frames.runs["folder"]))
    in_base = np.array([os.path.realpath(folder) in base_folders for folder in frames.runs["folder"]], dtype=bool)
    new_runs = frames.runs[~in_base]
    new, base = _sides(frames, new_runs), _sides(base_frames, base_frames.runs)
    result = _matched(new, base, tolerance)
    apart = (*unknown_texts(base_frames.runs), *unknown_texts(new_runs), *base_frames.problems, *frames.problems)
    result = replace(result, not_compared=(*result.not_compared, *apart))
    if not result.pairs and not result.broken:
        raise RecordError(
            _nothing_matches(new, base, result.not_compared, all_in_base=bool(in_base.size and in_base.all()))
        )
    if not result.broken and len(result.not_judged) == len(result.pairs):
        raise RecordError(_nothing_judged(result))
    return result


@dataclass(frozen=True)
class _Run:
    name: str
    values: Mapping[str, float | None]
    step_times_s: tuple[float, ...]
    folder: str
    loss_of: tuple[Any, ...]
    """Data and recorded steps, which must be equal for a loss to be compared; so must the settings in the run's folder."""


@dataclass(frozen=True)
class _Side:
    label: str
    configuration: Mapping[str, Any]
    valid: tuple[_Run, ...]
    reasons: str
    is_unfinished: bool
    num_failed: int
    """Ended and not valid."""

    @property
    def num_ended(self) -> int:
        return len(self.valid) + self.num_failed

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.valid]


def _matched(
    new: Mapping[tuple[Any, ...], _Side], base: Mapping[tuple[Any, ...], _Side], tolerance: float
) -> Comparison:
    """Each configuration is compared, broken, or not compared with its reason."""
    pairs: list[Pair] = []
    broken: list[str] = []
    not_compared: list[str] = []
    for key, side in base.items():
        other = new.get(key)
        if not side.valid:
            not_compared.append(f"{side.label}: no valid run in the base: {side.reasons}")
        elif other is None:
            not_compared.append(f"{side.label}: no run to compare with {', '.join(side.names)} of the base")
        elif not other.valid and other.is_unfinished:
            not_compared.append(f"{side.label}: not finished: {other.reasons}")
        elif not other.valid:
            broken.append(f"{side.label}: valid in the base ({', '.join(side.names)}), not now: {other.reasons}")
        else:
            pairs.append(_pair(side, other, tolerance))
            if _fails_more(side, other):
                broken.append(
                    f"{side.label}: {other.num_failed} of {other.num_ended} run(s) failed now,"
                    f" {side.num_failed} of {side.num_ended} in the base: {other.reasons}"
                )
    not_compared += [f"{side.label}: no such run in the base" for key, side in new.items() if key not in base]
    for side in (*base.values(), *new.values()):
        if side.valid and side.reasons:
            not_compared.append(f"{side.label}: left out: {side.reasons}")
    return Comparison(tolerance, tuple(pairs), tuple(broken), tuple(not_compared))


def _fails_more(base: _Side, new: _Side) -> bool:
    """A larger share of the runs that ended is not valid."""
    return new.num_failed * base.num_ended > base.num_failed * new.num_ended


def _sides(frames: Frames, runs: pd.DataFrame) -> dict[tuple[Any, ...], _Side]:
    """The runs of one side by configuration; those of which too little is known have none."""
    known = runs[is_known(runs)]
    columns = [[None if value is pd.NA else value for value in known[key].tolist()] for key in known.columns]
    groups: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for values in zip(*columns, strict=True):
        row = dict(zip(known.columns, values, strict=True))
        groups.setdefault(tuple(row[key] for key in CONFIGURATION), []).append(row)
    steady = frames.steps[frames.steps["steady"]]
    times = {str(folder): tuple(part) for folder, part in steady.groupby("folder")["step_time_s"]}
    setups = {str(folder): float(part) for folder, part in _setup_times(frames.attempts).items()}
    return {key: _side(members, times, setups) for key, members in groups.items()}


def _setup_times(attempts: pd.DataFrame) -> pd.Series:
    """Median over the attempts of each folder."""
    return attempts.dropna(subset=["setup_time_s"]).groupby("folder")["setup_time_s"].median()


def _side(
    rows: Sequence[Mapping[Any, Any]], times: Mapping[str, tuple[float, ...]], setups: Mapping[str, float]
) -> _Side:
    first = rows[0]
    valid = tuple(
        _Run(
            row["run"],
            {metric.key: row.get(metric.key) for metric in METRICS} | {"setup_time_s": setups.get(row["folder"])},
            times.get(row["folder"], ()),
            row["folder"],
            (row["data"], row["num_recorded_steps"]),
        )
        for row in rows
        if row["valid"]
    )
    reasons = "; ".join(f"{row['run']}: {row['reason']}" for row in rows if not row["valid"])
    num_unfinished = sum(row["state"] in ("running", "not started") for row in rows if not row["valid"])
    return _Side(
        label=configuration_label(first),
        configuration={key: first[key] for key in CONFIGURATION},
        valid=valid,
        reasons=reasons,
        is_unfinished=num_unfinished > 0,
        num_failed=len(rows) - len(valid) - num_unfinished,
    )


def _pair(base: _Side, new: _Side, tolerance: float) -> Pair:
    changes = tuple(_change(metric, base.valid, new.valid, tolerance) for metric in METRICS)
    return Pair(base.label, tuple(base.names), tuple(new.names), changes)


def _change(metric: Metric, base: Sequence[_Run], new: Sequence[_Run], tolerance: float) -> Change:
    first, second = _values(metric, base), _values(metric, new)
    old, now = _geometric_mean(first), _geometric_mean(second)
    gap = _gap(metric, base, new)
    if gap:
        return Change(metric.key, metric.unit, old, now, None, None, None, "not judged", "not judged", gap)
    interval, noise = _interval(metric, base, new, first, second)
    judgement = _judgement(interval, tolerance, metric.higher_is_worse)
    words = {"worse": metric.worse, "better": metric.better, "equal": f"within {100 * tolerance:.3g} %"}
    verdict = words.get(judgement, judgement)
    return Change(
        metric.key, metric.unit, old, now, interval.ratio, interval.low, interval.high, judgement, verdict, noise
    )


def _gap(metric: Metric, base: Sequence[_Run], new: Sequence[_Run]) -> str:
    """Why the metric of both sides has no ratio; empty if it has one."""
    first, second = _values(metric, base), _values(metric, new)
    if not first or not second:
        return "not measured " + ("in the base" if second else "now" if first else "on either side")
    if metric.key == "final_loss" and (gap := loss_gap([(run.folder, run.loss_of) for run in (*base, *new)])):
        return gap
    not_positive = [
        f"{run.name} ({value:.4g})"
        for run in (*base, *new)
        if (value := run.values[metric.key]) is not None and value <= 0
    ]
    return f"not above 0, so no ratio: {joined_names(not_positive, 2)}" if not_positive else ""


def _values(metric: Metric, runs: Sequence[_Run]) -> list[float]:
    return [float(value) for run in runs if (value := run.values[metric.key]) is not None]


def _geometric_mean(values: Sequence[float]) -> float | None:
    """None of no values, and of several that are not all above zero."""
    if len(values) == 1:
        return values[0]
    if not values or min(values) <= 0:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def _interval(
    metric: Metric, base: Sequence[_Run], new: Sequence[_Run], first: Sequence[float], second: Sequence[float]
) -> tuple[RatioInterval, str]:
    """Between runs where they are repeated, else within the two runs for what is measured in each step."""
    if len(first) + len(second) >= 3:
        return ratio_between_runs(first, second), f"between runs ({len(first)} in the base, {len(second)} now)"
    plain = RatioInterval(second[0] / first[0], None, None)
    if metric.key not in ("step_time_s", "tokens_per_s"):
        return plain, "one run a side: repeat runs for an interval"
    times = base[0].step_times_s, new[0].step_times_s
    if not all(times):
        return plain, "no steady step times"
    interval = ratio_of_medians(*times)
    if interval.low is None or interval.high is None:
        counts = f"{len(times[0])} in the base, {len(times[1])} now"
        return plain, f"too few steady steps for an interval ({counts}): more steps are needed, or repeated runs"
    noise = f"within one run a side, blocks of {block_length(len(times[0]))} and {block_length(len(times[1]))} steps"
    if metric.key == "tokens_per_s":  # the tokens of a step are equal, so it is the inverse
        return RatioInterval(plain.ratio, 1 / interval.high, 1 / interval.low), noise
    return interval, noise


def _judgement(interval: RatioInterval, tolerance: float, higher_is_worse: bool) -> Judgement:
    """By the ratio turned so that above 1 is worse; ``equal`` only if the whole interval is within the tolerance."""
    ratio, low, high = interval.ratio, interval.low, interval.high
    if low is None or high is None:
        return "not judged"
    if not higher_is_worse:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    limit = 1 + tolerance
    if ratio > limit and low > 1:
        return "worse"
    if ratio < 1 / limit and high < 1:
        return "better"
    return "equal" if low >= 1 / limit and high <= limit else "unclear"


def _nothing_matches(
    new: Mapping[tuple[Any, ...], _Side],
    base: Mapping[tuple[Any, ...], _Side],
    not_compared: Sequence[str],
    all_in_base: bool,
) -> str:
    head = "--against: no run here has a valid run of equal configuration in the base, so nothing was compared"
    if all_in_base:
        return f"{head}: every run is also in the base; give other folders"
    lines = [head, *(f"  {text}" for text in not_compared)]
    pairs = [(one, other) for one in base.values() for other in new.values()]
    if pairs:
        one, other = min(pairs, key=lambda pair: len(_differences(*pair)))
        if differences := _differences(one, other):
            lines.append(f"  nearest: {one.label}: the base has {', '.join(differences)}")
    return "\n".join(lines)


def _nothing_judged(comparison: Comparison) -> str:
    lines = ["--against: no step time could be judged, so nothing was compared: more steps or repeated runs are needed"]
    for pair in comparison.pairs:
        step = pair.step_time
        change = "" if step.ratio is None else f" ({100 * (step.ratio - 1):+.1f} %)"
        values = ["not measured" if value is None else f"{value:,.4g} s" for value in (step.base, step.new)]
        lines.append(
            f"  {pair.configuration}: step time {values[0]} in the base, {values[1]} now{change}: {step.noise}"
        )
    return "\n".join([*lines, *(f"  {text}" for text in comparison.not_compared)])


def _differences(base: _Side, new: _Side) -> list[str]:
    pairs = {key: (base.configuration[key], new.configuration[key]) for key in CONFIGURATION}
    return [
        _differing_settings(old, now) if key == "zero_settings" else f"{key}={old} instead of {now}"
        for key, (old, now) in pairs.items()
        if old != now
    ]


def _differing_settings(base: str | None, new: str | None) -> str:
    """The keys of two ``zero_settings`` that are not equal: whole, the settings are a page of text."""
    if base is None or new is None:
        return f"zero_settings {'known' if new is None else 'not known'} instead of {'known' if base is None else 'not known'}"
    old, now = json.loads(base), json.loads(new)
    keys = [key for key in sorted({*old, *now}) if old.get(key) != now.get(key)]
    texts = [f"{key}={_setting(old, key)} instead of {_setting(now, key)}" for key in keys]
    return f"zero_settings with {' and '.join(texts)}"


def _setting(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key]) if key in settings else "unset"
