"""Shapes from the few numbers that publications state."""

from __future__ import annotations

import pytest

from hpctrain.errors import ConfigError
from hpctrain.plan.stated.plain_shape import plain_shape


def test_what_is_not_given_is_derived() -> None:
    shape = plain_shape(26, 8192, 50304)
    assert (shape.num_heads, shape.head_dim, shape.num_kv_heads, shape.ffn_hidden_size) == (64, 128, 64, 32768)
    # 14,400 has no heads of 128: 100 of 144 are the nearest wider ones.
    assert plain_shape(2, 14400, 50304).num_heads == 100
    assert plain_shape(2, 64, 100).num_heads == 1
    assert plain_shape(2, 64, 100, head_dim=16).num_heads == 4


def test_wide_attention() -> None:
    # AngelPTM's 28B: 128 heads of 128 over a hidden size of 8,192, so 16·h² a block: 26·16·8192² = 27.92e9 without tables.
    shape = plain_shape(26, 8192, 50304, num_heads=128, head_dim=128)
    assert shape.num_layers * shape.block_matmul_parameters == 26 * 16 * 8192**2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_heads": 7}, r"model.num_heads=7: must divide model.hidden_size=64 \(64 mod 7 = 1\); nearest: 4, 8"),
        ({"num_heads": 8, "num_kv_heads": 3}, r"model.num_kv_heads=3: must divide model.num_heads=8"),
    ],
)
def test_shapes_that_cannot_be(kwargs: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain_shape(2, 64, 100, **kwargs)  # type: ignore[arg-type]
