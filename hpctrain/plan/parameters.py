"""The decoder's parameters by name: whole shapes, how tensor-parallel ranks cut them, and what pipeline stages call them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctrain.plan.model_shape import ModelShape

TOKEN_TABLE, POSITION_TABLE, HEAD = "token_table.weight", "position_table.weight", "head.weight"
_TIED = "tied_modules.token_table.weight"
"""DeepSpeed's name of the table that the first and the last stage share, see ``worker.pipeline``."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of the whole decoder."""

    name: str
    """As in ``Decoder.named_parameters``."""
    shape: tuple[int, ...]
    split_dim: int | None = None
    """Dimension along which tensor-parallel ranks cut it; None: each holds all of it."""
    parts: tuple[int, ...] = ()
    """Sizes along ``split_dim`` of what is cut evenly by itself, such as queries, keys and values."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def piece_shape(self, num_ranks: int) -> tuple[int, ...]:
        """Of one tensor-parallel rank.

        >>> Parameter("qkv", (12, 4), 0, (6, 3, 3)).piece_shape(3)
        (4, 4)
        """
        if self.split_dim is None:
            return self.shape
        return tuple(length // num_ranks if dim == self.split_dim else length for dim, length in enumerate(self.shape))


def decoder_parameters(shape: ModelShape) -> tuple[Parameter, ...]:
    """All parameters in the decoder's order; a tied output matrix is the token table and not named again.

    Source: hpctrain/worker/model/decoder.py, layers.py; held against the built model in tests/worker/test_saved_state.py.
    """
    is_gpt, hidden, vocab = shape.architecture == "gpt", shape.hidden_size, shape.vocab_size
    table = Parameter(TOKEN_TABLE, (vocab, hidden), 0, (vocab,))
    positions = [Parameter(POSITION_TABLE, (shape.max_seq_len, hidden))] if is_gpt else []
    blocks = [parameter for number in range(shape.num_layers) for parameter in _block(shape, f"blocks.{number}.")]
    head = [] if shape.tie_embeddings else [Parameter(HEAD, (vocab, hidden), 0, (vocab,))]
    return (table, *positions, *blocks, *_norm(shape, "final_norm"), *head)


def _block(shape: ModelShape, prefix: str) -> list[Parameter]:
    hidden, ffn, has_bias = shape.hidden_size, shape.ffn_hidden_size, shape.architecture == "gpt"
    attention_parts = (shape.attention_width, shape.kv_width, shape.kv_width)
    ffn_parts = (ffn,) if has_bias else (ffn, ffn)

    def column(name: str, parts: tuple[int, ...]) -> list[Parameter]:
        bias = [Parameter(f"{prefix}{name}.bias", (sum(parts),), 0, parts)] if has_bias else []
        return [Parameter(f"{prefix}{name}.weight", (sum(parts), hidden), 0, parts), *bias]

    def row(name: str, width: int) -> list[Parameter]:
        bias = [Parameter(f"{prefix}{name}.bias", (hidden,))] if has_bias else []
        return [Parameter(f"{prefix}{name}.weight", (hidden, width), 1, (width,)), *bias]

    return [
        *_norm(shape, f"{prefix}attention_norm"),
        *column("qkv", attention_parts),
        *row("projection", shape.attention_width),
        *_norm(shape, f"{prefix}ffn_norm"),
        *column("ffn_in", ffn_parts),
        *row("ffn_out", ffn),
    ]


def _norm(shape: ModelShape, name: str) -> list[Parameter]:
    parts = ("weight", "bias") if shape.architecture == "gpt" else ("weight",)
    return [Parameter(f"{name}.{part}", (shape.hidden_size,)) for part in parts]


def stage_names(shape: ModelShape, num_stages: int, stage: int) -> dict[str, str]:
    """What one pipeline stage calls the parameters that it holds: the decoder's name by the stage's.

    A tied table is in the first and in the last stage. One stage has the decoder's own names.
    Source: hpctrain/worker/pipeline.py _layers; DeepSpeed 0.19.8, runtime/pipe/module.py _build.

    >>> from hpctrain.config.schema import ModelConfig
    >>> from hpctrain.plan.model_shape import resolve_model_shape
    >>> shape, _ = resolve_model_shape(ModelConfig("m", "llama", 4, 8, 2, 16, 8))
    >>> stage_names(shape, 2, 1)["2.1.qkv.weight"], stage_names(shape, 2, 1)["tied_modules.token_table.weight"]
    ('blocks.3.qkv.weight', 'token_table.weight')
    """
    names = [parameter.name for parameter in decoder_parameters(shape)]
    if num_stages == 1:
        return {name: name for name in names}
    per_stage = shape.num_layers // num_stages
    first_stage_layer = 1 + (shape.architecture == "gpt")
    norm_layer = first_stage_layer + num_stages
    is_first, is_last = stage == 0, stage == num_stages - 1
    found = {}
    for name in names:
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            own_stage, place = divmod(int(number), per_stage)
            if own_stage == stage:
                found[f"{first_stage_layer + stage}.{place}.{rest}"] = name
        elif name == TOKEN_TABLE and (is_first or (is_last and shape.tie_embeddings)):
            found[_TIED if shape.tie_embeddings else "0.weight"] = name
        elif name == POSITION_TABLE and is_first:
            found["1.table.weight"] = name
        elif name.startswith("final_norm.") and is_last:
            found[f"{norm_layer}.norm.{name.removeprefix('final_norm.')}"] = name
        elif name == HEAD and is_last:
            found[f"{norm_layer + 1}.weight"] = name
    return found
