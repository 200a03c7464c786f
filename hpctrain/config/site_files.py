"""A site's own configuration files: what would silently be something else is refused before Hydra reads it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpctrain.errors import ConfigError

_YAML_TRAP = re.compile(r"\s*(-\s+)?(?P<key>[\w.-]+):\s+(?P<value>0\d+|\d[\d_]*_[\d_]*|\d+(:\d+)+)\s*(#.*)?$")


def check_site_files(folder: Path, shipped: Path) -> None:
    """Looks at every YAML file below a folder.

    Args:
        folder: of ``--config-dir``, with a folder for each group.
        shipped: the folder of the groups that come with the package.

    Raises:
        ConfigError: a file has the name of a shipped one, which Hydra would take instead; it is no YAML of keys and values; its
            keys stand below the group's name once more; or a number is in a form that YAML 1.1 reads as another (017 is 15, 1_28
            is 128, 4:00:00 is 14400).
    """
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        if (shipped / name).is_file():
            raise ConfigError(f"{path}: hpctrain ships a file of this name, which wins; give yours another name")
        try:
            text = path.read_text(encoding="utf-8")
            found = OmegaConf.create(text)
        except (OSError, UnicodeError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
        _check_keys(path, name.parts[0], text, found)
        for number, line in enumerate(text.splitlines(), start=1):
            if match := _YAML_TRAP.match(line):
                raise ConfigError(
                    f"{path}:{number}: {match['key']}: {match['value']}: YAML reads it as another number;"
                    f' write {match["key"]}: "{match["value"]}" for text, or the plain number'
                )


def _check_keys(path: Path, group: str, text: str, found: object) -> None:
    """Keys and values, one level deep; a file with a package line of its own says itself where its keys belong."""
    if not text.strip() or "@package" in text:
        return
    if not isinstance(found, DictConfig):
        raise ConfigError(f"{path}: is a list; write one key: value a line")
    if group in found:
        raise ConfigError(
            f"{path}: {group}: its keys stand below {group} by the folder's name; take this line out, and the blanks before"
            " the others"
        )
