"""Shapes that nobody trains."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpctrain.config.compose import compose_points, group_choices
from hpctrain.config.schema import ModelConfig
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.rules.shape import shape_warnings

MODEL = ModelConfig("site", "llama", 32, 4096, 32, 128_256, 8192, num_kv_heads=8, ffn_hidden_size=14_336)


def told(**changes: Any) -> list[str]:
    shape, problems = resolve_model_shape(dataclasses.replace(MODEL, **changes))
    assert problems == ()
    return shape_warnings(shape)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"head_dim": 4}, "model.head_dim=4 (of 32 heads at model.hidden_size=4096): usual", id="thin heads"
        ),
        pytest.param(
            {"num_heads": 2048}, "model.head_dim=2 (of 2048 heads at model.hidden_size=4096)", id="many heads"
        ),
        pytest.param(
            {"head_dim": 1024}, "x model.head_dim=1024 = 32,768 is 8 x model.hidden_size=4096", id="wide heads"
        ),
        pytest.param({"ffn_hidden_size": 14}, "model.ffn_hidden_size=14 is 0.0034 x model.hidden_size=4096", id="ffn"),
    ],
)
def test_a_slip_in_a_shape_is_told(changes: dict[str, int], expected: str) -> None:
    (warning,) = told(**changes)
    assert expected in warning


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"hidden_size": 1024, "num_heads": 16, "head_dim": 128, "ffn_hidden_size": 3072}, id="Qwen3-0.6B"),
        pytest.param({"hidden_size": 1024, "num_heads": 128, "head_dim": 128, "ffn_hidden_size": 65_536}, id="T5-11B"),
    ],
)
def test_published_shapes(changes: dict[str, int]) -> None:
    # T5-11B: 128 heads of 128 are 16 x its hidden size, which no later model repeats.
    assert [text for text in told(**changes) if "num_heads=128 x" not in text] == []


@pytest.mark.parametrize("name", group_choices("model"))
def test_shipped_models_are_usual(name: str) -> None:
    (point,) = compose_points([f"model={name}", "parallelism=zero3"], multirun=False)
    assert shape_warnings(resolve_model_shape(point.config.model)[0]) == []
