"""The configuration of a run as YAML, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from hpctrain.config.build import build_config
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError
from hpctrain.secret_text import redact_value

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's, where PyYAML was built with it: four times as fast, which counts in a sweep of 1,000 points."""
_LONGEST_LINE = 2**16
"""The two dumpers fold differently."""


def config_text(config: Config) -> str:
    """All values, nothing left to resolve; secrets are left out, ranks have them from their environment.

    Left out is the calibration too, which is of the predicted step alone: what was used is in the plan.
    """
    plain = _plain(dataclasses.asdict(config))
    del plain["calibration"]
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_LONGEST_LINE)


def parse_config(text: str) -> Config:
    """The configuration that ``config_text`` wrote.

    Raises:
        ConfigError: it is no YAML, or not of this version's schema.
    """
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError("is no mapping of keys")
    return build_config(raw)


def _plain(value: Any, name: str = "") -> Any:
    """Tuples as lists, which YAML can say, and texts without secrets."""
    if isinstance(value, dict):
        return {key: _plain(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, name) for item in value]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return value
    shown = redact_value(name, str(value))
    return value if shown == str(value) else shown
