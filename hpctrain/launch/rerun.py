"""A new run with the configuration of an old one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hpctrain.config.changes import change_config
from hpctrain.config.compose import Point
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config, read_overrides, runs_folder
from hpctrain.user_path import user_path


def rerun_point(run: RunPaths, words: Sequence[str]) -> tuple[Point, Path]:
    """The old run's configuration with overrides, and the folder that will hold the new run.

    Raises:
        HpctrainError: the old run cannot be read, or an override is wrong.
    """
    config = read_config(run)
    changed = change_config(config, words)
    root = user_path(changed.config.run.root) if "run.root" in changed.changed else runs_folder(run).absolute()
    config = dataclasses.replace(changed.config, run=dataclasses.replace(changed.config.run, root=str(root)))
    return Point((*read_overrides(run), *words), config, (), str(run.root)), root
