"""Where Hugging Face's Llama and GPT-2 keep each of the decoder's parameters; pure.

Llama's queries, keys and values are tensors of their own, and so are its gate and its inner matrix. GPT-2's are together as ours
are, none shared by several heads, and its matrices are written as (in, out). Rotary pairs are (i, i + head_dim / 2) in both.
Source: transformers, models/llama/modeling_llama.py, models/gpt2/modeling_gpt2.py (Conv1D in pytorch_utils.py).
"""

from __future__ import annotations

from typing import NamedTuple

from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.parameters import HEAD, POSITION_TABLE, TOKEN_TABLE, Parameter

GPT2_PREFIX = "transformer."
"""Of the model inside GPT2LMHeadModel; files of the bare GPT2Model have none."""
_LLAMA = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "projection": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "ffn_in": ("mlp.gate_proj", "mlp.up_proj"),
    "ffn_out": ("mlp.down_proj",),
}
_GPT2 = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "projection": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_in": "mlp.c_fc",
    "ffn_out": "mlp.c_proj",
}
_TOP = {
    "llama": {
        TOKEN_TABLE: "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        HEAD: "lm_head.weight",
    },
    "gpt": {
        TOKEN_TABLE: "transformer.wte.weight",
        POSITION_TABLE: "transformer.wpe.weight",
        "final_norm.weight": "transformer.ln_f.weight",
        "final_norm.bias": "transformer.ln_f.bias",
        HEAD: "lm_head.weight",
    },
}


class FileTensor(NamedTuple):
    """One tensor of a Hugging Face folder: rows ``start`` to ``stop`` of a parameter of ours."""

    name: str
    start: int
    stop: int
    is_transposed: bool
    """Written as (in, out), our (out, in)."""
    num_copies: int = 1
    """Of each key and value head, one behind the other: of heads that share one, the file has it for each of them."""

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """As it stands in the file."""
        own = (self.stop - self.start + (self.num_copies - 1) * sum(parameter.parts[1:]), *parameter.shape[1:])
        return own[::-1] if self.is_transposed else own


def file_tensors(shape: ModelShape, parameter: Parameter) -> list[FileTensor]:
    """The tensors that hold a parameter, in the order of its rows.

    >>> parameter = Parameter("blocks.0.qkv.weight", (8, 4), 0, (4, 2, 2))
    >>> from hpctrain.config.schema import ModelConfig
    >>> from hpctrain.plan.model_shape import resolve_model_shape
    >>> shape, _ = resolve_model_shape(ModelConfig("m", "llama", 1, 4, 2, 16, 8, num_kv_heads=1))
    >>> [(each.name.split(".")[-2], each.start, each.stop) for each in file_tensors(shape, parameter)]
    [('q_proj', 0, 4), ('k_proj', 4, 6), ('v_proj', 6, 8)]
    """
    rows = parameter.shape[0]
    if not parameter.name.startswith("blocks."):
        return [FileTensor(_TOP[shape.architecture][parameter.name], 0, rows, False)]
    _, number, part, ending = parameter.name.split(".")
    if shape.architecture == "gpt":
        is_matrix = len(parameter.shape) == 2
        num_copies = shape.num_heads // shape.num_kv_heads if part == "qkv" else 1
        return [FileTensor(f"transformer.h.{number}.{_GPT2[part]}.{ending}", 0, rows, is_matrix, num_copies)]
    names = _LLAMA[part]
    sizes = parameter.parts if len(names) > 1 else (rows,)
    found, start = [], 0
    for name, size in zip(names, sizes, strict=True):
        found.append(FileTensor(f"model.layers.{number}.{name}.{ending}", start, start + size, False))
        start += size
    return found
