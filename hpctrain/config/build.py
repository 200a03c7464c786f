"""Plain values (as decoded from YAML) to the typed configuration, and what keys it has."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, get_args

import yaml

from hpctrain.config.schema import Config
from hpctrain.config.strict_values import read_strictly, type_hints
from hpctrain.errors import ConfigError, Problem


def build_config(values: Mapping[str, Any]) -> Config:
    """The typed configuration.

    Args:
        values: fully resolved, made of dicts, lists and scalars only.

    Raises:
        ConfigError: unknown keys (with the nearest known ones), wrong types, values out of range; all of them at once.
    """
    if values.get(_NOT_TYPED) is not None:
        rule, fix = "is no key of hpctrain", "plan --calibration FILE names a file of factors"
        raise ConfigError((Problem(_NOT_TYPED, str(values[_NOT_TYPED]), rule, fix),))
    return read_strictly(Config, _with_spelled_blend(values))


_NOT_TYPED = "calibration"
"""Put into the configuration by the program, see ``Config``."""


def _with_spelled_blend(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hydra has no keys for paths with some signs; in quotes they arrive as text that spells a mapping."""
    data = values.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("blend"), str):
        return values
    try:
        spelled = yaml.safe_load(data["blend"])
    except yaml.YAMLError:
        return values
    return {**values, "data": {**data, "blend": spelled}} if isinstance(spelled, Mapping) else values


@functools.cache
def config_fields(section: tuple[str, ...] = ()) -> dict[str, Any]:
    """Names and types of the keys of one section, ``()`` for the top level.

    >>> "num_layers" in config_fields(("model",)), "project" in config_fields(("track", "wandb"))
    (True, True)
    """
    cls: Any = Config
    for name in section:
        hint = type_hints(cls)[name]
        # A section that may be left out is a union with None.
        cls = next((part for part in get_args(hint) if isinstance(part, type) and dataclasses.is_dataclass(part)), hint)
    is_section: bool = dataclasses.is_dataclass(cls)
    return {name: hint for name, hint in type_hints(cls).items() if section or name != _NOT_TYPED} if is_section else {}


def takes_text(key: str) -> bool:
    """Whether a dotted key takes text and no number.

    >>> takes_text("cluster.account"), takes_text("nodes"), takes_text("cluster.extra.x"), takes_text("no.such")
    (True, False, False, False)
    """
    section, _, name = key.rpartition(".")
    try:
        hint = config_fields(tuple(section.split(".")) if section else ())[name]
    except (KeyError, TypeError):
        return False
    alternatives = {str in get_args(part) or part is str for part in (hint, *get_args(hint))}
    return True in alternatives and not {int, float}.intersection(_plain_types(hint))


def _plain_types(hint: Any) -> set[Any]:
    """The types at the bottom of unions and annotations."""
    parts = get_args(hint)
    return (
        {hint}
        if not parts
        else set().union(*(_plain_types(part) for part in parts if isinstance(part, type) or get_args(part)))
    )
