"""Of how many tokens the loss has scores at a time: all of a micro batch, or chunks of it."""

from __future__ import annotations

from hpctrain.config.schema import TrainingConfig
from hpctrain.plan.model_shape import ModelShape
from hpctrain.units import next_power_of_two

_FEWEST = 1024
"""Tokens below which a product with the output matrix does not fill a GPU."""


def loss_chunk_size(stated: int | None, shape: ModelShape, num_tokens: int) -> int:
    """Tokens of a chunk; 0: all at once, since there are no more.

    Not stated it is the largest power of two up to half of the hidden size, at least 1,024. The gradient of the output matrix
    is in fp32 while chunks are added to it, 4 x vocabulary x hidden bytes; scores of so many tokens, in 16 bits and in fp32, take
    at most 3, and a smaller chunk spares little beside it.

    Args:
        stated: ``training.loss_chunk_size``.
        shape: of the model.
        num_tokens: of one micro batch on one rank.

    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> shape = plain_shape(40, 5120, 50304)
    >>> [loss_chunk_size(stated, shape, 4096) for stated in (None, 512, 0, 4096)]
    [2048, 512, 0, 0]
    """
    size = max(_FEWEST, next_power_of_two(shape.hidden_size // 4 + 1)) if stated is None else stated
    return size if size < num_tokens else 0


def loss_chunk_notes(training: TrainingConfig, chosen: int, num_tokens: int) -> tuple[str, ...]:
    """What the plan chose where nobody stated it, and it is not simply all."""
    if training.loss_chunk_size is not None or not chosen:
        return ()
    text = f"training.loss_chunk_size not stated: {chosen:,} of the {num_tokens:,} tokens of a micro batch have scores at a time"
    return (text,)
