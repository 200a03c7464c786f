"""Cells as people write them, put into the words and numbers of their column; what is not sure stays as it was typed.

So that ``1,024``, ``80 GB``, ``2 x 8``, ``ZeRO-3`` and ``selective op`` are read, and a slip is still told.
"""

from __future__ import annotations

import math
import re

from hpctrain.plan.flop_conventions import HARDWARE_SPELLING

_BLANK = re.compile(
    r"(?:n/?a|nan|null|nil|-+|\N{EN DASH}|\N{EM DASH}|\?+|unknown|unspecified|not (?:stated|given|known)|tbd)",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"^(?:~|\N{ALMOST EQUAL TO}|about |approx\.? |ca\.? )\s*", re.IGNORECASE)
_REMARK = re.compile(r"\s*\([^()]*\)\s*$")
_GROUPS = re.compile(r"\d{1,3}(?:[,_' ]\d{3})+(?:\.\d+)?")
_PRODUCT = re.compile(r"(\d+)\s*(?:x|\*|\N{MULTIPLICATION SIGN})\s*(\d+)(?:\s*gpus?)?", re.IGNORECASE)
_PRODUCTS = ("num_gpus", "global_batch")
"""Columns in which a product is meant to be worked out: nodes times GPUs, micro batches times ranks."""
_UNITS: dict[str, dict[str, float]] = {
    "gpu_mem_gb": {"g": 1, "gb": 1, "gib": 1},
    "peak_mem_gb": {"g": 1, "gb": 1, "gib": 1, "mb": 1e-3, "mib": 1 / 1024},
    "params_b": {"b": 1, "bn": 1, "billion": 1, "m": 1e-3, "million": 1e-3, "t": 1e3, "trillion": 1e3},
    "max_model_b": {"b": 1, "billion": 1, "m": 1e-3, "t": 1e3},
    "seq_len": {"k": 1024, "m": 1024**2, "tokens": 1},
    "vocab": {"k": 1000},
    "step_time_s": {"s": 1, "sec": 1, "secs": 1, "seconds": 1, "ms": 1e-3, "min": 60},
    "mfu": {"%": 0.01},
    "hfu": {"%": 0.01},
    "tflops_per_gpu": {"tf": 1, "tflops": 1, "tflop/s": 1},
    "num_gpus": {"gpu": 1, "gpus": 1},
    "nodes": {"node": 1, "nodes": 1},
    "layers": {"layer": 1, "layers": 1},
}
"""What may stand behind a number, and what it multiplies it by."""
_WITH_UNIT = re.compile(r"([\d.]+)\s*([a-z%/]+)", re.IGNORECASE)

_NO = r"none|no|off|false|0|n|without|disabled|no_?recompute"
_CHOICES = {
    "activation_ckpt": (
        (rf"(?:{_NO})", "none"),
        (r"sel\w*\b.*|selective.*|partial\b.*|(?:core[_ -])?att(?:ention|n)\b.*|every (?:other|2).*", "selective"),
        (
            r"full\b.*|yes|on|true|1|y|all|blocks?|layers?|uniform|enabled|(?:activation|gradient)[ _-]checkpoint\w*",
            "full",
        ),
    ),
    "offload_optimizer": (
        (rf"(?:{_NO})", "none"),
        (r".*(?:nvme|ssd|disk).*", "nvme"),
        (r"cpu\b.*|host\b.*|d?ram|yes|on|true|1|y", "cpu"),
    ),
}
_CHOICES["offload_param"] = _CHOICES["offload_optimizer"]
_STAGES = (
    (r"hsdp|hybrid|fsdp|full[_ -]?shard|zero[ _-]?(?:3|\+\+|infinity)|(?:zero )?stage[ _-]?3", "3"),
    (r"shard[_ -]?grad[_ -]?op|zero[ _-]?2|(?:zero )?stage[ _-]?2", "2"),
    (r"zero[ _-]?1|(?:zero )?stage[ _-]?1|dist\w*[ _-]opt\w*", "1"),
    (r"\bddp\b|no[_ -]?shard|zero[ _-]?0|(?:zero )?stage[ _-]?0|\bnone\b|\bno\b|megatron|data parallel", "0"),
)
_CONVENTIONS = (
    (r"(?:model|mfu|palm|6nd?)\b.*", "model flops"),
    (r".*\b(?:without|excl\w*|no|not count\w*)\b.*\brecomput.*", "model flops"),
    (r"(?:hardware|hfu|8nd?)\b.*", HARDWARE_SPELLING),
    (r".*\brecomput\w* (?:incl|count).*|.*\b(?:incl\w*|with|counts?)\b.*\brecomput.*", HARDWARE_SPELLING),
)
"""Families of ``flop_conventions.published_convention``; other words stay, so that an unknown one is told."""
_DATA_TYPES = (
    (re.compile(r"\bbfloat16\b", re.IGNORECASE), "bf16"),
    (re.compile(r"\bfloat16\b|\bhalf\b", re.IGNORECASE), "fp16"),
)


def usual_spelling(column: str, text: str) -> str:
    """The cell in the words of its column; unchanged where nothing sure is meant, empty where it says that nothing is known.

    Args:
        column: its name; a column of free text stays as it is.
        text: without blanks around it.

    >>> [usual_spelling("num_gpus", text) for text in ("1,024", "2 x 8", "16 GPUs", "~64", "n/a")]
    ['1024', '16', '16', '64', '']
    >>> usual_spelling("gpu_mem_gb", "80GB"), usual_spelling("seq_len", "8k"), usual_spelling("params_b", "350M")
    ('80', '8192', '0.35')
    >>> usual_spelling("zero_stage", "FSDP"), usual_spelling("activation_ckpt", "selective op"), usual_spelling("layers", "many")
    ('3', 'selective', 'many')
    """
    if column == "precision":
        for words, meant in _DATA_TYPES:
            text = words.sub(meant, text)
        return text
    if column == "tflops_convention":
        return next((meant for words, meant in _CONVENTIONS if re.fullmatch(words, text, re.IGNORECASE)), text)
    if column == "zero_stage":
        return _stage(text)
    if column in _CHOICES:
        return _choice(column, text)
    return _number(column, text)


def _choice(column: str, text: str) -> str:
    if _BLANK.fullmatch(text):
        return ""
    for words, meant in _CHOICES[column]:
        if re.fullmatch(words, text, re.IGNORECASE):
            return meant
    return text


def _stage(text: str) -> str:
    if _BLANK.fullmatch(text):
        return ""
    for words, meant in _STAGES:
        if re.search(words, text, re.IGNORECASE):
            return meant
    return text


def _number(column: str, text: str) -> str:
    if _BLANK.fullmatch(text):
        return ""
    plain = _REMARK.sub("", _ABOUT.sub("", text)) or text
    if match := _PRODUCT.fullmatch(plain):
        return str(int(match[1]) * int(match[2])) if column in _PRODUCTS else text
    plain = _GROUPS.sub(lambda match: re.sub(r"[,_' ]", "", match[0]), plain)
    match = _WITH_UNIT.fullmatch(plain)
    if match is None:
        return plain
    factor = _UNITS.get(column, {}).get(match[2].lower())
    if factor is None:
        return text
    try:
        value = float(match[1]) * factor
    except ValueError:
        return text
    return repr(int(value)) if math.isclose(value, round(value)) else repr(round(value, 9))
