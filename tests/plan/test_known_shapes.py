"""Public models by name: their parameters come out of their shapes, and a name of a family is none."""

from __future__ import annotations

import pytest

from hpctrain.errors import ConfigError
from hpctrain.plan.stated.cells import COLUMNS
from hpctrain.plan.stated.known_shapes import _TABLE, KnownShape, known_shape
from hpctrain.plan.stated.run import derive, row_shape
from hpctrain.plan.stated.table import plan_row

GATED = ("llama", "mistral", "qwen", "gemma", "phi-3")


@pytest.mark.parametrize(("pattern", "shape"), _TABLE, ids=[pattern for pattern, _ in _TABLE])
def test_parameters_come_out_of_the_shape(pattern: str, shape: KnownShape) -> None:
    """Attention 2·h² and 2·h²·kv/heads, two or three matrices of h·f, a token table or two; no bias and no position counts."""
    h, kv = shape.hidden, shape.kv_heads / shape.heads
    matrices = 3 if any(name in pattern for name in GATED) else 2
    block = 2 * h**2 * (1 + kv) + matrices * h * shape.ffn_hidden
    counts = [(shape.layers * block + tables * shape.vocab * h) / 1e9 for tables in (1, 2)]
    assert min(abs(count / shape.params_b - 1) for count in counts) < 0.015
    assert h % shape.heads == shape.heads % shape.kv_heads == 0


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("meta-llama/Meta-Llama-3-70B", 80),
        ("Llama 3.1 405B", 126),
        ("LLaMA-7B", 32),
        ("llama2-13b-hf", 40),
        ("tiny-llama", 22),
        ("gpt2", 12),
        ("gpt2-medium", 24),
        ("Qwen2.5-0.5B", 24),
        ("Llama-2-7B (FMS)", 32),
    ],
)
def test_spellings(model: str, layers: int) -> None:
    shape = known_shape(model)
    assert shape is not None
    assert shape.layers == layers


@pytest.mark.parametrize(
    "model", ["GPT 13B", "Llama-like 8B", "CodeLlama-7B", "GPT-2-like", "Llama-2-7.5B", "Llama2-0.3B", ""]
)
def test_other_names_are_none_of_them(model: str) -> None:
    assert known_shape(model) is None


def test_a_row_that_names_its_model_needs_no_shape() -> None:
    row: dict[str, str | float | None] = {
        "model": "Llama-3.1-8B",
        "num_gpus": 8,
        "seq_len": 8192,
        "micro_batch_per_gpu": 1,
        "global_batch": 8,
    }
    full, told = derive(row)
    assert told == ("layers, hidden, heads, kv_heads, ffn_hidden, vocab, params_b of the public model",)
    assert row_shape(full)[0].num_parameters == pytest.approx(8.03e9, rel=0.001)
    assert derive(row | {"vocab": 128000})[0]["vocab"] == 128000
    cells = dict.fromkeys(COLUMNS, "") | {name: str(value) for name, value in row.items()}
    answer = plan_row(
        cells | {"gpu": "H100", "zero_stage": "3", "activation_ckpt": "full", "source": "torchtitan"}, "row 1"
    )
    assert (answer.fits, answer.problem) == (True, "")
    assert answer.step_time_s is not None


def test_what_a_row_states_wins_over_its_name() -> None:
    cut: dict[str, str | float | None] = {
        "model": "Llama-3.1-8B",
        "params_b": 2.0,
        "num_gpus": 8,
        "seq_len": 8192,
        "micro_batch_per_gpu": 1,
    }
    assert derive(cut)[1][0].startswith("layers ")
    partly: dict[str, str | float | None] = {
        "model": "Llama-3.1-8B",
        "layers": 32,
        "hidden": 4096,
        "num_gpus": 8,
        "seq_len": 8192,
        "global_batch": 8,
    }
    assert derive(partly)[1] == ("heads, kv_heads, ffn_hidden of the public model",)
    with pytest.raises(ConfigError, match="does not state hidden"):
        derive({"model": "Llama-3.1-8B", "layers": 4, "num_gpus": 8})
