"""Hardware and model files with nonsense in any one key: one message that names the key and its value, whatever the nonsense."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpctrain.config.build import config_fields
from hpctrain.config.compose import config_dir
from hpctrain.config.schema import HardwareConfig, ModelConfig
from hpctrain.config.strict_values import read_strictly, type_hints
from hpctrain.errors import ConfigError

NONSENSE = [-1, 0, "abc", "12 GB", math.nan, math.inf, -math.inf, True, [1], {"a": 1}, 1e30, ""]


def shipped(group: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(config_dir(), group, f"{name}.yaml").read_text())
    return found


HARDWARE, MODEL = shipped("hardware", "ndm_a100_v4"), shipped("model", "llama3_8b")


def number_keys(cls: type) -> list[str]:
    """Keys whose value is one number."""
    return [name for name, hint in type_hints(cls).items() if "int" in str(hint) or "float" in str(hint)]


HARDWARE_KEYS = [name for name in number_keys(HardwareConfig) if not name.endswith("_tflops")]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("key", HARDWARE_KEYS)
def test_a_number_of_a_hardware_file(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        read_strictly(HardwareConfig, HARDWARE | {key: value})
    (problem,) = refused.value.problems
    assert problem.key == key
    assert problem.value
    assert problem.fix, str(problem)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("key", ["peak_tflops", "achievable_tflops"])
def test_a_rate_of_a_hardware_file(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        read_strictly(HardwareConfig, HARDWARE | {key: {"bf16": value}})
    (problem,) = refused.value.problems
    assert problem.key == f"{key}.bf16"
    assert problem.fix, str(problem)


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("key", number_keys(ModelConfig))
def test_a_number_of_a_model_file(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        read_strictly(ModelConfig, MODEL | {key: value})
    (problem,) = refused.value.problems
    assert problem.key == key
    assert problem.value


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(("hardware", key) for key in ("name", "gpu", "cpu", "device", "default_precision")),
        *(("model", key) for key in ("name", "architecture")),
    ],
)
@pytest.mark.parametrize("value", [-1, 0, math.nan, True, None, [1], {"a": 1}, ""], ids=repr)
def test_a_word_of_a_file(section: str, key: str, value: Any) -> None:
    cls, file = {"hardware": (HardwareConfig, HARDWARE), "model": (ModelConfig, MODEL)}[section]
    assert key in config_fields((section,))
    with pytest.raises(ConfigError) as refused:
        read_strictly(cls, file | {key: value})
    (problem,) = refused.value.problems
    assert problem.key == key


@pytest.mark.parametrize("key", sorted(HARDWARE.keys() - {"sources"}))
def test_a_key_that_is_misspelt_is_told_with_the_nearest(key: str) -> None:
    misspelt = key.replace("_", "") + "s"
    values = {name: value for name, value in HARDWARE.items() if name != key} | {misspelt: HARDWARE[key]}
    with pytest.raises(ConfigError) as refused:
        read_strictly(HardwareConfig, values)
    (told,) = (problem for problem in refused.value.problems if problem.key == misspelt)
    assert key in told.fix.partition("; known")[0]
