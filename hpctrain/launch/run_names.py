"""Runs by what a user types: a folder, a name in ``./runs`` (of a point alone, or begun), or a job id, also a former one."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpctrain.errors import ConfigError, RecordError, nearest_names
from hpctrain.launch.slurm.states import array_base
from hpctrain.record.files import read_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_submission, search_runs
from hpctrain.record.schema import SubmissionRecord
from hpctrain.text_table import printable

DEFAULT_ROOT = Path("runs")
_MAX_NAMES = 5
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
        raise ConfigError(f"{word}: {len(runs)} runs ({_listed([_typed(run) for run in runs])}); name one of them")
    return runs[0]


def folders_named(word: str) -> list[Path]:
    """The folders that a word names, also such as hold runs; none if it names nothing.

    Raises:
        ConfigError: several runs of different sweeps have this name.
    """
    folder = _folder_of(word)
    return [folder] if folder is not None else [run.root for run in _known_by(word, _known_runs())]


def unknown_run(word: str) -> ConfigError:
    """What to say of a word that names nothing, with the nearest that would."""
    if _JOB_ID.fullmatch(word):
        return ConfigError(f"{word}: no run in ./{DEFAULT_ROOT} has this job id; name the run folder")
    if not DEFAULT_ROOT.is_dir():
        return ConfigError(f"{word}: no such folder; runs are kept in run.root (default: {DEFAULT_ROOT})")
    names = {name: _typed(run) for run in reversed(_known_runs()) for name in (run.root.name, _typed(run))}
    close = list(dict.fromkeys(names[name] for name in nearest_names(word, names)))
    begun = [typed for typed in dict.fromkeys(names.values()) if word and typed.startswith(word)]
    near = _listed(begun or close)
    hint = f"nearest in ./{DEFAULT_ROOT}: {near}" if near else "name a run folder, or a job id"
    return ConfigError(f"{word}: no such folder; {hint}")


def _runs_of(word: str) -> list[RunPaths]:
    folder = _folder_of(word)
    if folder is None:
        if runs := _known_by(word, _known_runs()):
            return runs
        raise unknown_run(word)
    if runs := runs_in([folder]):
        return runs
    raise ConfigError(f"{word}: no run in this folder; a run folder holds plan.json")


def _folder_of(word: str) -> Path | None:
    # Unlike Path.is_dir no error where it may not be looked at.
    return next((folder for folder in (Path(word), DEFAULT_ROOT / word) if os.path.isdir(folder)), None)


def _known_runs() -> list[RunPaths]:
    return search_runs(DEFAULT_ROOT.absolute())[0] if DEFAULT_ROOT.is_dir() else []


def _known_by(word: str, known: Sequence[RunPaths]) -> list[RunPaths]:
    """Runs in ``./runs`` by job id, by the name of a point, or by how the name of a run or sweep begins."""
    if _JOB_ID.fullmatch(word):
        now = [run for run in known if _has_job(_submission(run), word)]
        return now or [run for run in known if any(_has_job(former, word) for former in _earlier(run))]
    points = [run for run in known if run.root.name == word]
    if len(points) > 1:
        raise ConfigError(f"{word}: {len(points)} runs have this name: {_listed([_typed(run) for run in points])}")
    if points:
        return points
    begun = [run for run in known if _typed(run).startswith(f"{word}-")]
    names = list(dict.fromkeys(_typed(run).partition("/")[0] for run in begun))
    if len(names) > 1:
        raise ConfigError(f"{word}: {len(names)} names in ./{DEFAULT_ROOT} begin so: {_listed(names)}")
    return begun


def _typed(run: RunPaths) -> str:
    """What to type for a run: its path in ``./runs``; elsewhere its name."""
    root = DEFAULT_ROOT.absolute()
    return str(run.root.relative_to(root) if run.root.is_relative_to(root) else run.root.name)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")


def _submission(run: RunPaths) -> SubmissionRecord | None:
    try:
        return read_submission(run)
    except RecordError:
        return None  # a damaged record names no job


def _earlier(run: RunPaths) -> Iterator[SubmissionRecord]:
    """The submissions before the newest; other records of theirs have a second dot in their names."""
    for path in sorted(run.earlier_submissions.glob("*.json")):
        if path.name.count(".") == 1:
            with contextlib.suppress(RecordError):  # a damaged record names no job
                yield read_record(path, SubmissionRecord)


def _has_job(submission: SubmissionRecord | None, job_id: str) -> bool:
    if submission is None:
        return False
    own = (submission.job_id, *submission.chain)
    return job_id in own or ("_" not in job_id and job_id in map(array_base, own))
