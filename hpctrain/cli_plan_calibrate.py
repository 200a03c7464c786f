"""``plan --calibrate RUNS... [-o FILE]``: reads past runs, fits what they say of predicted steps, writes and tells it."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hpctrain
from hpctrain.cli_records import require_analysis, sources_named
from hpctrain.errors import EXIT_OK, ConfigError
from hpctrain.plan.speed.calibration import CALIBRATION_FILE
from hpctrain.plan.speed.calibration_choice import step_model_mark
from hpctrain.record.calibration_file import is_calibration_file, write_calibrations
from hpctrain.text_table import printable

if TYPE_CHECKING:
    from hpctrain.analysis.calibration_runs import CalibrationResult


def plan_calibrate_words(words: Sequence[str]) -> int:
    """Runs ``plan --calibrate RUNS... [-o FILE]``, given the words after ``plan``.

    Raises:
        ConfigError: no run is named or can be used, or the file cannot be written.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--calibrate", nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path)
    try:
        known, others = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    if others:
        raise ConfigError(f"{' '.join(others)}: past runs are read as they are, without further words")
    if not known.calibrate:
        raise ConfigError("plan --calibrate RUNS [-o FILE]: name run folders, or a folder that holds runs")
    require_analysis("plan --calibrate")
    return plan_calibrate(known.calibrate, known.output)


def plan_calibrate(names: Sequence[str], output: Path | None) -> int:
    """Fits the factors of past runs and writes them to ``output``.

    Args:
        names: of runs, of folders that hold runs, or job ids.
        output: None: ``calibration.json`` in the folder that holds the runs that are used.

    Returns:
        The exit code.

    Raises:
        ConfigError: as ``plan_calibrate_words``.
    """
    from hpctrain.analysis.calibration_runs import calibrate
    from hpctrain.analysis.frames import load_frames, run_summaries
    from hpctrain.analysis.report.calibration_text import left_out_text, render_calibration

    frames = load_frames([folder for name in names for folder in sources_named(name)], steps=False, samples=False)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = calibrate(run_summaries(frames.runs), today)
    if not result.fitted:
        told = [left_out_text(result), *frames.problems]
        nothing = (
            "plan --calibrate: no run can be used; wanted are completed runs on GPUs with 8 steady steps or more, on hardware"
            " whose rates are stated"
        )
        raise ConfigError(printable("\n".join([nothing, *filter(None, told)])))
    path = output or _place(result)
    _check_place(path)
    try:
        write_calibrations(path, [one.calibration for one in result.fitted], step_model_mark(), hpctrain.__version__)
    except OSError as error:
        raise ConfigError(f"-o {path}: cannot be written: {error.strerror}") from error
    print(printable(render_calibration(result)))
    for problem in frames.problems:
        print(printable(problem))
    print(printable(f"\ncalibration {path}; {_who_uses(path)}"))
    return EXIT_OK


def _place(result: CalibrationResult) -> Path:
    if len(result.folders) > 1:
        folders = ", ".join(map(str, result.folders))
        raise ConfigError(f"plan --calibrate: the runs are in several folders ({folders}); name the file with -o FILE")
    return result.folders[0] / CALIBRATION_FILE


def _check_place(path: Path) -> None:
    """Refuses to replace what is no calibration: the name of a run's record is soon typed."""
    if os.path.lexists(path) and not is_calibration_file(path):
        raise ConfigError(f"-o {path}: is there and is no calibration; remove it, or name another file")


def _who_uses(path: Path) -> str:
    """How plans come to use the file."""
    if path.name == CALIBRATION_FILE:
        return f"plan and submit use it where run.root is {path.parent}; --no-calibration leaves it out"
    return f"plan and submit use it with --calibration {path}"
