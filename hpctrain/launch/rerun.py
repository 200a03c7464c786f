"""A new run with the configuration of an old one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hpctrain.config.changes import ChangedConfig, change_config
from hpctrain.config.compose import Point
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config, read_overrides, runs_folder
from hpctrain.user_path import user_path


def rerun_point(run: RunPaths, words: Sequence[str]) -> tuple[Point, Path]:
    """The old run's configuration with overrides, and the folder that will hold the new run.

    What ``parallelism=auto`` chose for the old run stays, on other nodes, too; ``parallelism=auto`` among the words chooses anew.

    Raises:
        HpctrainError: the old run cannot be read, or an override is wrong.
    """
    config = read_config(run)
    changed = change_config(config, words)
    root = user_path(changed.config.run.root) if "run.root" in changed.changed else runs_folder(run).absolute()
    config = dataclasses.replace(changed.config, run=dataclasses.replace(changed.config.run, root=str(root)))
    notes = _kept_choice(changed) if config.run.chosen and not changed.open_keys else ()
    return Point((*read_overrides(run), *words), config, notes, changed.open_keys, str(run.root)), root


def _kept_choice(changed: ChangedConfig) -> tuple[str, ...]:
    """Told where the choice was made for other nodes or another model."""
    others = [key for key in changed.changed if key.startswith(("nodes", "model.", "hardware."))]
    if not others:
        return ()
    named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    return (
        f"parallelism={changed.config.parallelism.name} stays, which parallelism=auto chose before {named} changed; add"
        " parallelism=auto to choose anew",
    )
