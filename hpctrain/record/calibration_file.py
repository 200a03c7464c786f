"""``calibration.json``: what past runs make of predicted steps, in the folder that holds the runs."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.config.calibration import Calibration
from hpctrain.config.strict_values import read_strictly
from hpctrain.errors import ConfigError, RecordError
from hpctrain.plan.speed.calibration import LARGEST_FACTOR, SMALLEST_FACTOR
from hpctrain.record.files import checked_json, path_text, write_json

CALIBRATION_SCHEMA_VERSION = 1
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class _Content:
    """The whole file."""

    schema_version: int
    hpctrain: str
    """Version that wrote it."""
    step_model: str
    """See ``plan.calibration_choice.step_model_mark``."""
    calibrations: tuple[Calibration, ...]


def write_calibrations(path: Path, calibrations: Sequence[Calibration], step_model: str, version: str) -> None:
    """Replaces ``path``; readers see the old or the new file.

    Args:
        path: the file.
        calibrations: at least one.
        step_model: mark of the predictions that they correct.
        version: of hpctrain.

    Raises:
        OSError: it cannot be written.
    """
    content = dataclasses.asdict(_Content(CALIBRATION_SCHEMA_VERSION, version, step_model, tuple(calibrations)))
    for entry in content["calibrations"]:
        del entry["source"]
    write_json(path, content)


def read_calibrations(path: Path, step_model: str) -> tuple[Calibration, ...]:
    """What ``write_calibrations`` wrote, each with the file's path as its source.

    Args:
        path: the file.
        step_model: mark of the predictions at hand.

    Raises:
        RecordError: it is missing, damaged, of another version, or corrects the predictions of another planner.
    """
    raw = checked_json(path)
    place = path_text(path)
    again = f"fit it again: python -m hpctrain plan --calibrate RUNS -o {place}"
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != CALIBRATION_SCHEMA_VERSION:
        raise RecordError(
            f"{place}: schema_version={version}, this hpctrain reads {CALIBRATION_SCHEMA_VERSION}; {again}"
        )
    try:
        content = read_strictly(_Content, raw)
    except ConfigError as error:
        raise RecordError(f"{place}: {'; '.join(map(str, error.problems))}; {again}") from None
    problem = next((text for entry in content.calibrations if (text := _problem(entry))), "")
    if not content.calibrations:
        problem = "calibrations: must not be empty"
    if problem:
        raise RecordError(f"{place}: {problem}; {again}")
    if content.step_model != step_model:
        raise RecordError(
            f"{place}: step_model={content.step_model}, this planner's is {step_model}: it corrects the predictions of other"
            f" formulas or constants (hpctrain {content.hpctrain}); {again}"
        )
    return tuple(dataclasses.replace(entry, source=place) for entry in content.calibrations)


def is_calibration_file(path: Path) -> bool:
    """Whether it looks like one, whatever its version."""
    try:
        raw = checked_json(path)
    except RecordError:
        return False
    return isinstance(raw, dict) and {"step_model", "calibrations"} <= raw.keys()


def _problem(entry: Calibration) -> str:
    """What is wrong with the numbers of one entry; empty: nothing."""
    for kind, factor in entry.factors.items():
        if not SMALLEST_FACTOR <= factor <= LARGEST_FACTOR:
            return f"factors.{kind}={factor:g}: must be {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}"
    if not entry.factors:
        return "factors: must not be empty"
    if not _DATE.fullmatch(entry.fitted_on):
        return f"fitted_on={entry.fitted_on!r}: must be a date, such as 2026-11-29"
    pairs: dict[str, tuple[float, ...]] = {"seen.nodes": entry.seen.nodes, "seen.parameters": entry.seen.parameters}
    pairs |= {f"seen.shares.{kind}": pair for kind, pair in entry.seen.shares.items()}
    if entry.errors is not None:
        pairs["errors"] = entry.errors
    for key, pair in pairs.items():
        if len(pair) != 2 or not all(map(math.isfinite, pair)) or pair[0] > pair[1]:
            return f"{key}={list(pair)}: must be the lowest and the highest value"
    if entry.errors is not None and not -1 < entry.errors[0] <= 0 <= entry.errors[1]:
        return f"errors={list(entry.errors)}: must lie below and above 0, and above -1"
    counts = {"num_runs": entry.num_runs, "num_configurations": entry.num_configurations}
    return next((f"{key}={count}: must be above 0" for key, count in counts.items() if count < 1), "")
