"""Overrides on a configuration that is resolved already: that of an earlier run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hpctrain.config.build import build_config
from hpctrain.config.compose import check_overrides, compose_points, config_dir, parse_override
from hpctrain.config.open_keys import AUTO, NEUTRAL, close_open_keys
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class ChangedConfig:
    """A configuration with overrides on it."""

    config: Config
    changed: tuple[str, ...]
    """Dotted keys whose values are others now."""
    open_keys: tuple[str, ...] = ()
    """Keys that the overrides opened (``parallelism=auto``), to be chosen anew; until then they have their plainest value."""


def change_config(config: Config, words: Sequence[str], extra_dirs: Sequence[Path] = ()) -> ChangedConfig:
    """The configuration with Hydra overrides applied; a group's name replaces the whole group.

    What ``parallelism=auto`` chose before stays as it is; asked for again, it opens what it had chosen in ``training``, too.

    Raises:
        ConfigError: an override is wrong, or the values do not fit the schema.
    """
    overrides = [parse_override(word) for word in words]
    check_overrides(overrides, words, False, extra_dirs)
    groups = {path.name for path in config_dir().iterdir() if path.is_dir()}
    values = _plain(dataclasses.asdict(config))
    before = _flat(values)
    typed = {override.key_or_group for override in overrides}
    for override, word in zip(overrides, words, strict=True):
        key = override.key_or_group
        if key == "experiment":
            raise ConfigError(f"{word}: an experiment is a sweep of its own; submit it, or name single keys here")
        if key in groups:
            needed = () if key == "model" else ("model=tiny",)
            (point,) = compose_points((*needed, word), False, extra_dirs)
            values[key] = _plain(dataclasses.asdict(getattr(point.config, key)))
            for name in point.open_keys if key == "parallelism" else ():
                if name.startswith(f"{key}."):
                    _set(values, name, False, None, word)
        else:
            _set(values, key, override.is_delete(), override.value(), word)
    _open_what_was_chosen(values, typed)
    closed, open_keys = close_open_keys(values)
    changed = build_config(closed)
    after = _flat(_plain(dataclasses.asdict(changed)))
    keys = [key for key in dict.fromkeys((*before, *after)) if before.get(key, ...) != after.get(key, ...)]
    return ChangedConfig(changed, tuple(key for key in keys if key != "run.chosen"), open_keys)


def _open_what_was_chosen(values: dict[str, Any], typed: Collection[str]) -> None:
    """``parallelism=auto``, asked for again, opens what it had chosen in ``training``; what is typed is chosen no more."""
    kept = [key for key in values["run"]["chosen"] if key not in typed and key.partition(".")[0] not in typed]
    values["run"]["chosen"] = kept
    if values["parallelism"]["name"] == AUTO:
        for key in kept:
            if key.startswith("training.") and key in NEUTRAL:
                _set(values, key, False, None, key)


def _set(values: dict[str, Any], key: str, is_delete: bool, value: Any, word: str) -> None:
    *sections, name = key.split(".")
    place = values
    for section in sections:
        place = place[section]
    if not is_delete:
        place[name] = value
    elif name in place and sections and sections[-1] in ("env", "extra", "azureml"):
        del place[name]
    else:
        raise ConfigError(f"{word}: only entries of env and cluster.extra can be removed; set {key}=null")


def _plain(value: Any) -> Any:
    """Tuples as lists, which JSON can say."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
