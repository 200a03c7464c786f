"""A new run with the configuration of an old one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hpctrain.config.changes import change_config
from hpctrain.config.compose import Point
from hpctrain.errors import RecordError
from hpctrain.record.files import read_json
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config


def rerun_point(run: RunPaths, words: Sequence[str]) -> tuple[Point, Path]:
    """The old run's configuration with overrides, and the folder that will hold the new run.

    Raises:
        HpctrainError: the old run cannot be read, or an override is wrong.
    """
    config = read_config(run)
    changed = change_config(config, words)
    parent = run.root.parent
    home = parent.parent if (parent / "sweep.json").exists() else parent
    root = Path(changed.config.run.root) if "run.root" in changed.changed else home
    root = root.expanduser().absolute()
    config = dataclasses.replace(changed.config, run=dataclasses.replace(changed.config.run, root=str(root)))
    return Point((*_typed(run), *words), config, (), str(run.root)), root


def _typed(run: RunPaths) -> list[str]:
    try:
        return [str(word) for word in read_json(run.overrides)]
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{run.overrides}: {error}") from error
