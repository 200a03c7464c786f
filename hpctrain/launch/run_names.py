"""Runs by what a user types: a folder, a name in ``./runs``, or a job id."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpctrain.errors import ConfigError, RecordError, nearest_names
from hpctrain.launch.slurm_states import array_base
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_submission, search_runs
from hpctrain.text_table import printable

DEFAULT_ROOT = Path("runs")
_JOB_ID = re.compile(r"\d+(_\d+)?")


def runs_in(folders: Iterable[Path]) -> list[RunPaths]:
    """The runs at or below the folders, each once; folders that cannot be opened are told."""
    found: dict[Path, RunPaths] = {}
    for folder in folders:
        runs, not_opened = search_runs(folder.absolute())
        found |= {run.root: run for run in runs}
        for problem in not_opened:
            print(printable(f"hpctrain: {problem}"), file=sys.stderr)
    return list(found.values())


def runs_named(words: Sequence[str]) -> list[RunPaths]:
    """The runs that the words name, each once; a folder stands for all runs in it, an array's id for all its tasks.

    Raises:
        ConfigError: a word names no run.
    """
    found: dict[Path, RunPaths] = {}
    for word in words:
        found |= {run.root: run for run in _runs_of(word)}
    return list(found.values())


def find_run(word: str) -> RunPaths:
    """The one run that a word names.

    Raises:
        ConfigError: it names none, or several.
    """
    runs = _runs_of(word)
    if len(runs) > 1:
        names = ", ".join(run.root.name for run in runs[:5])
        raise ConfigError(f"{word}: {len(runs)} runs ({names}{', ...' if len(runs) > 5 else ''}); name one of them")
    return runs[0]


def _runs_of(word: str) -> list[RunPaths]:
    for folder in (Path(word), DEFAULT_ROOT / word):
        if folder.is_dir():
            if runs := runs_in([folder]):
                return runs
            raise ConfigError(f"{word}: no run in this folder; a run folder holds plan.json")
    known = search_runs(DEFAULT_ROOT.absolute())[0] if DEFAULT_ROOT.is_dir() else []
    if _JOB_ID.fullmatch(word):
        if runs := [run for run in known if _has_job(run, word)]:
            return runs
        raise ConfigError(f"{word}: no run in ./{DEFAULT_ROOT} has this job id; name the run folder")
    close = nearest_names(word, [run.root.name for run in known])
    hint = f"nearest in ./{DEFAULT_ROOT}: {', '.join(close)}" if close else "name a run folder, or a job id"
    raise ConfigError(f"{word}: no such folder; {hint}")


def _has_job(run: RunPaths, job_id: str) -> bool:
    try:
        submission = read_submission(run)
    except RecordError:
        return False  # a damaged record names no job
    own = (submission.job_id, *submission.chain)
    return job_id in own or ("_" not in job_id and job_id in map(array_base, own))
