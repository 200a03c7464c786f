"""The calibration of predicted steps that a configuration is planned with: its file is looked for, read once, and told."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hpctrain.config.calibration import Calibration
from hpctrain.config.compose import Point
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, RecordError
from hpctrain.plan.speed.calibration import CALIBRATION_FILE


class CalibrationWords(NamedTuple):
    """What a command line says of it."""

    file: str | None = None
    """``--calibration FILE``; None: the one in ``run.root``, where there is one."""
    is_left_out: bool = False
    """``--no-calibration``."""


NOTHING_SAID = CalibrationWords()


def with_calibrations(points: Iterable[Point], words: CalibrationWords = NOTHING_SAID) -> list[Point]:
    """Each point with the calibration for it in its configuration; why a file that is there has none is among its assumptions.

    Args:
        points: open or not: a choice of parallelism changes nothing here.
        words: of the command line.

    Raises:
        ConfigError: the file was asked for by name, and cannot be read or has no calibration for a point.
    """
    known: dict[Path, tuple[Calibration, ...] | RecordError] = {}
    found = []
    for point in points:
        calibration, why = _calibration(point.config, words, known)
        if why and words.file is not None:
            raise ConfigError(f"--calibration {why}")
        told = (f"calibration: left out, {why}",) if why else ()
        config = dataclasses.replace(point.config, calibration=calibration)
        found.append(dataclasses.replace(point, config=config, assumptions=(*point.assumptions, *told)))
    return found


def _calibration(
    config: Config, words: CalibrationWords, known: dict[Path, tuple[Calibration, ...] | RecordError]
) -> tuple[Calibration | None, str]:
    """The calibration, or None and why a file that is there, or was asked for, gives none."""
    if words.is_left_out:
        return None, ""
    if config.hardware.device != "cuda":  # no step is predicted
        gap = f"hardware={config.hardware.name} has device={config.hardware.device}: step times are predicted for GPUs"
        return None, "" if words.file is None else f"{words.file}: {gap}"
    typed = os.path.join(config.run.root, CALIBRATION_FILE) if words.file is None else words.file
    path = Path(os.path.expanduser(typed))
    if not os.path.lexists(path):
        return None, "" if words.file is None else f"{path}: no such file; plan --calibrate RUNS -o FILE writes one"
    if path not in known:
        known[path] = _read(path)
    calibrations = known[path]
    if isinstance(calibrations, RecordError):
        return None, str(calibrations)
    from hpctrain.plan.speed.calibration_choice import calibration_for

    calibration, why = calibration_for(calibrations, config)
    return calibration, why and f"{path}: {why}"


def _read(path: Path) -> tuple[Calibration, ...] | RecordError:
    from hpctrain.plan.speed.calibration_choice import step_model_mark
    from hpctrain.record.calibration_file import read_calibrations

    try:
        return read_calibrations(path, step_model_mark())
    except RecordError as error:
        return error
