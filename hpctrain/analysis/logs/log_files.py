"""Which files below a folder are logs of other systems, and all of them read, each by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.analysis.logs.log_runs import LogRun, log_runs
from hpctrain.analysis.logs.reading import read_log
from hpctrain.errors import RecordError
from hpctrain.record.files import plain_text

LOG_NAME = re.compile(r".+\.(log|out|err|txt)(\.\d+)?(\.gz)?|.+\.[oe]\d+", re.IGNORECASE)
"""Names that logs have: ``train.log``, ``slurm-123.out``, ``rank0.err.gz``, rotated ``train.log.1``, and ``name.o123`` of PBS."""


@dataclass(frozen=True)
class LogFiles:
    """What the logs of some places give."""

    runs: tuple[LogRun, ...]
    problems: tuple[str, ...]
    """One text for each file that is no log of a known system or cannot be read."""


def find_logs(root: Path, run_folders: Collection[Path] = ()) -> Iterator[Path]:
    """The logs at ``root`` or below it, by name; a file that is named itself counts whatever its name is.

    Args:
        root: a file or a folder; links to folders are not followed.
        run_folders: folders of our own runs, resolved; what lies in them is no log of another system.
    """
    if not root.is_dir():
        yield root
        return
    for folder, subfolders, names in os.walk(root):
        place = Path(folder)
        subfolders[:] = sorted(name for name in subfolders if _real(place / name) not in run_folders)
        if _real(place) in run_folders:
            subfolders.clear()
            continue
        yield from (place / name for name in sorted(names) if LOG_NAME.fullmatch(name))


def _real(path: Path) -> Path:
    """Links followed, as far as they do not lead in a circle."""
    return Path(os.path.realpath(path))


def load_logs(paths: Iterable[Path]) -> LogFiles:
    """All these logs; a file that cannot be read is told and stops nothing."""
    runs: list[LogRun] = []
    problems = []
    for path in paths:
        try:
            runs += log_runs(read_log(path), path)
        except RecordError as error:
            problems.append(plain_text(str(error)))
    return LogFiles(tuple(runs), tuple(problems))
