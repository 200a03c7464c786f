"""A decoder's shape from the few numbers that publications state."""

from __future__ import annotations

from hpctrain.config.schema import ModelConfig
from hpctrain.errors import ConfigError
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape

_USUAL_HEAD_DIM = 128


def plain_shape(
    num_layers: int,
    hidden_size: int,
    vocab_size: int,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn_hidden_size: int | None = None,
    gated: bool = False,
    tie_embeddings: bool = True,
    max_seq_len: int = 2048,
    name: str = "plain",
) -> ModelShape:
    """The shape, with what is not given derived.

    Args:
        num_layers: decoder blocks.
        hidden_size: width of the residual stream.
        vocab_size: rows of the token table.
        num_heads: query heads; None: of ``head_dim``, or of about 128 where that is not given either.
        num_kv_heads: key and value heads; None: as many as query heads.
        head_dim: width of a head; None: hidden size over heads.
        ffn_hidden_size: inner width of the feed-forward; None: four times the hidden size.
        gated: the feed-forward has three matrices (SwiGLU) instead of two.
        tie_embeddings: the output matrix is the token table.
        max_seq_len: learned positions of a model that is not gated.
        name: told in messages.

    Raises:
        ConfigError: the heads do not divide the width, or the key heads the heads.

    >>> shape = plain_shape(96, 12288, 50304, num_heads=96)
    >>> shape.num_parameters, shape.ffn_hidden_size, shape.head_dim
    (174604836864, 49152, 128)
    """
    shape, problems = resolve_model_shape(
        ModelConfig(
            name=name,
            architecture="llama" if gated else "gpt",
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads or _usual_heads(hidden_size, head_dim),
            vocab_size=vocab_size,
            max_seq_len=max_seq_len,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            ffn_hidden_size=ffn_hidden_size,
            tie_embeddings=tie_embeddings,
        )
    )
    if problems:
        raise ConfigError(problems)
    return shape


def _usual_heads(hidden_size: int, head_dim: int | None) -> int:
    """Heads that fill the hidden size, of the stated width or of the least one from 128 up that divides it."""
    if head_dim is not None:
        return max(1, hidden_size // head_dim)
    return max(count for count in range(1, max(1, hidden_size // _USUAL_HEAD_DIM) + 1) if hidden_size % count == 0)
