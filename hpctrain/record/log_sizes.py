"""Where the output of an attempt begins in logs that all attempts append to: their sizes when it was opened."""

from __future__ import annotations

import os

from hpctrain.errors import RecordError
from hpctrain.record.files import checked_json, write_json
from hpctrain.record.paths import RunPaths


def note_log_sizes(run: RunPaths, attempt: int) -> None:
    """Keeps the size of each log at the beginning of an attempt; of the first one, where all are empty, nothing.

    Raises:
        OSError: the folder of the logs cannot be listed, or the note cannot be written.
    """
    if attempt == 1:
        return
    with os.scandir(run.logs) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".log")}
    write_json(run.log_sizes(attempt), sizes)


def log_sizes(run: RunPaths, attempt: int) -> dict[str, int] | None:
    """Sizes by the log's name at the beginning of ``attempt``; None: nobody noted them.

    Raises:
        RecordError: the note is damaged.
    """
    path = run.log_sizes(attempt)
    if not path.exists():
        return {} if attempt == 1 else None
    raw = checked_json(path)
    if not isinstance(raw, dict) or not all(type(size) is int and size >= 0 for size in raw.values()):
        raise RecordError(f"{path}: must hold a size for each log")
    return raw
