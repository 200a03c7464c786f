"""The group ``experiment``: files that state a whole study, the axes of its sweep included.

Hydra composes such a file like any other. Its top-level key ``sweep`` holds what Hydra calls ``hydra.sweeper.params``: a mapping
of override keys to the values of an axis, or a list of such mappings where the points are no single grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hpctrain.errors import ConfigError

GROUP = "experiment"
SWEEP_KEY = "sweep"
_OVERRIDES_GROUP = "override /"


def experiment_file(name: str, folders: Sequence[Path]) -> Path:
    """Its file, in the first of the folders that has one.

    Raises:
        ConfigError: none has.
    """
    for folder in folders:
        path = folder / GROUP / f"{name}.yaml"
        if path.is_file():
            return path
    raise ConfigError(f"{GROUP}={name}: there is no such {GROUP}")


def stated_groups(path: Path) -> set[str]:
    """The groups that an experiment chooses in its ``defaults``."""
    entries = _content(path).get("defaults") or []
    names = [name for entry in entries if isinstance(entry, dict) for name in entry]
    return {name.removeprefix(_OVERRIDES_GROUP) for name in names if name.startswith(_OVERRIDES_GROUP)}


def sweep_blocks(path: Path) -> list[list[str]]:
    """The axes of an experiment as overrides, a list for each grid; one empty list where it has no sweep.

    Raises:
        ConfigError: ``sweep`` is no mapping of keys to values, nor a list of such mappings.
    """
    sweep = _content(path).get(SWEEP_KEY)
    if sweep is None:
        return [[]]
    grids = sweep if isinstance(sweep, list) else [sweep]
    if not grids or not all(isinstance(grid, dict) and grid for grid in grids):
        raise ConfigError(f"{path}: {SWEEP_KEY}: must be a mapping such as nodes: 16,32, or a list of such mappings")
    return [[f"{key}={_values_text(path, key, values)}" for key, values in grid.items()] for grid in grids]


def _values_text(path: Path, key: Any, values: Any) -> str:
    if isinstance(values, list) and values and not any(isinstance(value, (list, dict)) for value in values):
        return ",".join(map(_scalar_text, values))
    if isinstance(values, (list, dict)) or values is None:
        raise ConfigError(f"{path}: {SWEEP_KEY}.{key}: must be a value, a comma list or a list of values")
    return _scalar_text(values)


def _scalar_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold a mapping")
    return content
