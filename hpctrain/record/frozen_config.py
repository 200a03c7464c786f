"""The configuration of a run as YAML, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from hpctrain.config.build import build_config
from hpctrain.config.schema import Config


def config_text(config: Config) -> str:
    """All values, nothing left to resolve."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def parse_config(text: str) -> Config:
    """The configuration that ``config_text`` wrote.

    Raises:
        ConfigError: it is not of this version's schema.
    """
    return build_config(yaml.safe_load(text))


def _plain(value: Any) -> Any:
    """Tuples as lists, which YAML can say."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
