"""Parameter counts against the published sizes; the built model is held against them in tests/worker."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import ModelConfig
from hpctrain.plan.divisors import nearest_divisors
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape

PUBLISHED = {
    # Source: DeepSpeed on Azure (2022), whose sizes the published README recomputes as 174.6, 529.6, 1008 and 2063 billion.
    "175b": (174.6e9, 0.001),
    "530b": (529.6e9, 0.001),
    "1t": (1008e9, 0.001),
    "2t": (2063e9, 0.001),
    # Source: AngelPTM best practice; without embeddings 27.9 and 54.8 billion.
    "28b": (27.9e9, 0.02),
    "55b": (54.8e9, 0.02),
    # Source: the models' public names; Llama 3 (arXiv 2407.21783) counts 8.03, 70.6 and 405.9 billion.
    "125m": (125e6, 0.01),
    "350m": (355e6, 0.01),
    "760m": (760e6, 0.01),
    "1.3b": (1.316e9, 0.01),
    "2.7b": (2.65e9, 0.01),
    "6.7b": (6.66e9, 0.01),
    "13b": (12.85e9, 0.01),
    "llama3_8b": (8.03e9, 0.001),
    "llama3_70b": (70.55e9, 0.001),
    "llama3_405b": (405.85e9, 0.001),
}


def shape_of(name: str) -> ModelShape:
    return resolve_model_shape(compose_points([f"model={name}"], multirun=False)[0].config.model)[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_size(name: str) -> None:
    count, tolerance = PUBLISHED[name]
    assert shape_of(name).num_parameters == pytest.approx(count, rel=tolerance)


def test_gpt_count_by_hand() -> None:
    # h=4, 2 layers: blocks 12·16 + 13·4 = 244 each; token table 10·4, positions 8·4, final norm 8.
    model = ModelConfig("x", "gpt", num_layers=2, hidden_size=4, num_heads=2, vocab_size=10, max_seq_len=8)
    assert resolve_model_shape(model)[0].num_parameters == 2 * 244 + 40 + 32 + 8


def test_llama_count_by_hand() -> None:
    # h=4, 2 query heads of 2, 1 key head: q 16, k 8, v 8, o 16, three 4x6 matrices 72, two norms 8; two tables 80, norm 4.
    model = ModelConfig(
        "x", "llama", 1, 4, 2, vocab_size=10, max_seq_len=8, num_kv_heads=1, ffn_hidden_size=6, tie_embeddings=False
    )
    assert resolve_model_shape(model)[0].num_parameters == 16 + 8 + 8 + 16 + 72 + 8 + 80 + 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_heads": 100, "hidden_size": 12288}, "12288 mod 100 = 88); nearest: 96, 128"),
        ({"num_heads": 8, "hidden_size": 64, "num_kv_heads": 3}, "must divide model.num_heads=8; nearest: 2, 4"),
        ({"architecture": "llama", "num_heads": 4, "hidden_size": 64, "head_dim": 15}, "even; nearest: 16"),
    ],
    ids=["heads", "kv-heads", "odd-rotary"],
)
def test_shapes_that_do_not_divide(changes: dict[str, object], expected: str) -> None:
    values: dict[str, object] = {"name": "x", "architecture": "gpt", "num_layers": 1, "vocab_size": 8, "max_seq_len": 8}
    _, problems = resolve_model_shape(ModelConfig(**(values | changes)))  # type: ignore[arg-type]
    assert expected in str(problems[0])


def test_nearest_divisors_at_the_ends() -> None:
    assert nearest_divisors(12, 1) == [2]
    assert nearest_divisors(12, 50) == [12]
