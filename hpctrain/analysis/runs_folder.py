"""What a notebook says first: which folder of runs it reads when nobody states one, and what it found there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

VARIABLE = "HPCTRAIN_RUNS"
OWN_RUNS = Path("runs")
RECORDED_RUNS = Path("tests/data/runs")
"""Runs that travel with a source checkout, so that the notebooks show something before the first own run."""


def runs_folder(environment: Mapping[str, str], checkout: Path = Path("..")) -> Path:
    """The folder that ``HPCTRAIN_RUNS`` names, else the checkout's own runs, else its recorded ones.

    A folder that the variable names is returned whether it exists or not: a mistyped one shall be told, not replaced.

    Args:
        environment: usually ``os.environ``.
        checkout: root of the source checkout; as seen from ``analysis/``, where notebooks run.

    >>> runs_folder({"HPCTRAIN_RUNS": "/data/my runs"}).as_posix()
    '/data/my runs'
    """
    stated = environment.get(VARIABLE)
    if stated:
        return Path(stated)
    own = checkout / OWN_RUNS
    return own if own.is_dir() else checkout / RECORDED_RUNS


def describe_folder(folder: Path, environment: Mapping[str, str]) -> str:
    """One line for the head of a notebook: which folder is read, and why this one."""
    if environment.get(VARIABLE):
        return f"{folder}, from {VARIABLE}"
    if folder.parts[-len(RECORDED_RUNS.parts) :] == RECORDED_RUNS.parts:
        return f"{folder}: recorded runs of the project, since {VARIABLE} is not set and there is no folder runs"
    return f"{folder}, since {VARIABLE} is not set"


def describe_runs(runs: pd.DataFrame, problems: Sequence[str]) -> str:
    """How many runs there are and how many of them may be compared, then the places in which none was found.

    Args:
        runs: frame ``runs``.
        problems: ``Frames.problems``.
    """
    counted = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {int(runs['valid'].sum())} of them valid"
    return "\n".join([counted, *problems])
