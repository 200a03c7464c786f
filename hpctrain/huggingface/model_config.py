"""config.json of Hugging Face's Llama and GPT-2, and which of our shapes is exactly the same function; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.plan.model_shape import ModelShape

_GELU_TANH = ("gelu_new", "gelu_pytorch_tanh")
"""Names of the tanh form of GELU. Source: transformers, activations.py ACT2FN."""


def inexpressible(shape: ModelShape) -> str:
    """Why Hugging Face has no model that computes what this shape does; empty: it has one.

    Llama's class states head_dim, key and value heads, feed-forward width and tying each for itself. GPT-2's has one head width,
    hidden / heads; shared key and value heads it has as copies, see ``copied_heads``.
    """
    if shape.architecture == "llama" or shape.num_heads * shape.head_dim == shape.hidden_size:
        return ""
    return (
        f"model.head_dim={shape.head_dim}: GPT2LMHeadModel has heads of hidden_size / num_heads = {shape.hidden_size} /"
        f" {shape.num_heads}, no other width"
    )


def copied_heads(shape: ModelShape) -> str:
    """What to know of a file in which key and value heads stand several times; empty: it has none.

    Hugging Face has no class with learned positions, LayerNorm, biases and grouped heads (GPTBigCode's has one pair for all query
    heads or one for each), and a copy for each query head is the same function.
    """
    if shape.architecture == "llama" or shape.num_kv_heads == shape.num_heads:
        return ""
    num_copies = shape.num_heads // shape.num_kv_heads
    return (
        f"model.num_kv_heads={shape.num_kv_heads}: GPT2LMHeadModel has a key and value head for each of the {shape.num_heads}"
        f" query heads, so each of ours is written {num_copies} times: the same logits from more weights; a run begins with"
        f" them as model.num_kv_heads={shape.num_heads}"
    )


def config_values(shape: ModelShape, dtype: str, eos_token_id: int | None) -> dict[str, Any]:
    """What config.json says of the shape.

    Args:
        shape: one for which ``inexpressible`` has nothing to say.
        dtype: of the weights beside it, by torch's name.
        eos_token_id: token that ends a document; None: not known.
    """
    common = {
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "torch_dtype": dtype,
    }
    if shape.architecture == "llama":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.ffn_hidden_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": shape.max_seq_len,
            "rms_norm_eps": shape.norm_eps,
            "rope_theta": shape.rope_theta,
            "rope_scaling": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            **common,
        }
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": shape.hidden_size,
        "n_inner": shape.ffn_hidden_size,
        "n_layer": shape.num_layers,
        "n_head": shape.num_heads,
        "n_positions": shape.max_seq_len,
        "layer_norm_epsilon": shape.norm_eps,
        "activation_function": "gelu_pytorch_tanh",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        **common,
    }


def model_values(raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Our ``model`` values of a config.json, by key.

    Left out is the vocabulary's padding: ``vocab_size`` is the file's own.

    Args:
        raw: decoded config.json.
        place: its path, for messages.

    Raises:
        ConfigError: another model type, a value is missing, or one that makes it another function than ours.
    """
    if quantized := raw.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise ConfigError(
            f"{place}: quantization_config.quant_method={method}: the weights are quantized; take the model's folder in bf16,"
            " fp16 or fp32"
        )
    kind = raw.get("model_type")
    if kind == "llama":
        return _llama_values(raw, place)
    if kind == "gpt2":
        return _gpt2_values(raw, place)
    raise ConfigError(f"{place}: model_type={kind}: hpctrain knows llama and gpt2")


def _llama_values(raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    _demand(raw, place, {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)})
    rope_key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    rope = raw.get(rope_key) or {}
    if not isinstance(rope, dict):
        raise ConfigError(f"{place}: {rope_key}={rope}: must be an object or null")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ConfigError(
            f"{place}: rope_type={rope_type}: hpctrain turns by position x rope_theta^(-2i / head_dim), rope_type=default"
        )
    heads, hidden = _whole(raw, place, "num_attention_heads"), _whole(raw, place, "hidden_size")
    rope_theta = rope if rope.get("rope_theta") is not None else raw
    return {
        "architecture": "llama",
        "num_layers": _whole(raw, place, "num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": _whole(raw, place, "num_key_value_heads", heads),
        "head_dim": _whole(raw, place, "head_dim", hidden // heads),
        "ffn_hidden_size": _whole(raw, place, "intermediate_size"),
        "vocab_size": _whole(raw, place, "vocab_size"),
        "max_seq_len": _whole(raw, place, "max_position_embeddings"),
        "tie_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "norm_eps": _number(raw, place, "rms_norm_eps", 1e-6),
        "rope_theta": _number(rope_theta, place, "rope_theta", 10000.0),
    }


def _gpt2_values(raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    demanded = {"activation_function": _GELU_TANH, "scale_attn_weights": (True,), "add_cross_attention": (False,)}
    _demand(raw, place, demanded | {"scale_attn_by_inverse_layer_idx": (False,)})
    heads, hidden = _whole(raw, place, "n_head"), _whole(raw, place, "n_embd")
    return {
        "architecture": "gpt",
        "num_layers": _whole(raw, place, "n_layer"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden_size": _whole(raw, place, "n_inner", 4 * hidden),
        "vocab_size": _whole(raw, place, "vocab_size"),
        "max_seq_len": _whole(raw, place, "n_positions"),
        "tie_embeddings": bool(raw.get("tie_word_embeddings", True)),
        "norm_eps": _number(raw, place, "layer_norm_epsilon", 1e-5),
    }


def _demand(raw: Mapping[str, Any], place: str, demanded: Mapping[str, tuple[Any, ...]]) -> None:
    """A value that the file leaves out has the class's own default, the first one here or one like it."""
    for key, values in demanded.items():
        if key in raw and raw[key] not in values:
            known = " or ".join(str(value) for value in values)
            raise ConfigError(f"{place}: {key}={raw[key]}: hpctrain's model is that of {key}={known}")


def _whole(raw: Mapping[str, Any], place: str, key: str, default: int | None = None) -> int:
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{place}: {key}={value}: must be a whole number above 0")
    return value


def _number(raw: Mapping[str, Any], place: str, key: str, default: float) -> float:
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{place}: {key}={value}: must be a number above 0")
    return float(value)
