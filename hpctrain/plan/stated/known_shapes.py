"""Shapes of public models by name, for rows that name a model and do not state its layers or width.

Source: config.json of each model on Hugging Face; GPT-3's table 2.1 (arXiv 2005.14165). Only models whose heads share the
width of the model are here, since a row has no column for another head size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hpctrain.plan.stated.known_vocabularies import is_look_alike


class KnownShape(NamedTuple):
    """The columns of a row that describe a model; parameters in billions."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocab: int
    params_b: float


_TABLE: tuple[tuple[str, KnownShape], ...] = (
    (r"tiny-?llama", KnownShape(22, 2048, 32, 4, 5632, 32000, 1.1)),
    (r"llama-?3\.2-1b", KnownShape(16, 2048, 32, 8, 8192, 128256, 1.236)),
    (r"llama-?3\.2-3b", KnownShape(28, 3072, 24, 8, 8192, 128256, 3.213)),
    (r"llama-?3(\.1)?-8b", KnownShape(32, 4096, 32, 8, 14336, 128256, 8.03)),
    (r"llama-?3(\.[13])?-70b", KnownShape(80, 8192, 64, 8, 28672, 128256, 70.55)),
    (r"llama-?3(\.1)?-405b", KnownShape(126, 16384, 128, 8, 53248, 128256, 405.9)),
    (r"llama-?2-70b", KnownShape(80, 8192, 64, 8, 28672, 32000, 68.98)),
    (r"llama(-?[12])?-7b", KnownShape(32, 4096, 32, 32, 11008, 32000, 6.738)),
    (r"llama(-?[12])?-13b", KnownShape(40, 5120, 40, 40, 13824, 32000, 13.02)),
    (r"llama(-?1)?-3[03]b", KnownShape(60, 6656, 52, 52, 17920, 32000, 32.53)),
    (r"llama(-?1)?-65b", KnownShape(80, 8192, 64, 64, 22016, 32000, 65.29)),
    (r"mistral-7b", KnownShape(32, 4096, 32, 8, 14336, 32000, 7.242)),
    (r"qwen-?2(\.5)?-0\.5b", KnownShape(24, 896, 14, 2, 4864, 151936, 0.494)),
    (r"qwen-?2(\.5)?-1\.5b", KnownShape(28, 1536, 12, 2, 8960, 151936, 1.544)),
    (r"qwen-?2\.5-3b", KnownShape(36, 2048, 16, 2, 11008, 151936, 3.086)),
    (r"qwen-?2(\.5)?-7b", KnownShape(28, 3584, 28, 4, 18944, 152064, 7.616)),
    (r"qwen-?2\.5-14b", KnownShape(48, 5120, 40, 8, 13824, 152064, 14.77)),
    (r"qwen-?2\.5-32b", KnownShape(64, 5120, 40, 8, 27648, 152064, 32.76)),
    (r"qwen-?2(\.5)?-72b", KnownShape(80, 8192, 64, 8, 29568, 152064, 72.71)),
    (r"qwen-?3-8b", KnownShape(36, 4096, 32, 8, 12288, 151936, 8.19)),
    (r"qwen-?3-14b", KnownShape(40, 5120, 40, 8, 17408, 151936, 14.77)),
    (r"gpt-?2-xl", KnownShape(48, 1600, 25, 25, 6400, 50257, 1.558)),
    (r"gpt-?2-large", KnownShape(36, 1280, 20, 20, 5120, 50257, 0.774)),
    (r"gpt-?2-medium", KnownShape(24, 1024, 16, 16, 4096, 50257, 0.355)),
    (r"gpt-?2$", KnownShape(12, 768, 12, 12, 3072, 50257, 0.124)),
    (r"gpt-?3-175b|opt-175b", KnownShape(96, 12288, 96, 96, 49152, 50272, 174.6)),
    (r"opt-1\.3b", KnownShape(24, 2048, 32, 32, 8192, 50272, 1.316)),
    (r"opt-6\.7b", KnownShape(32, 4096, 32, 32, 16384, 50272, 6.658)),
    (r"opt-13b", KnownShape(40, 5120, 40, 40, 20480, 50272, 12.85)),
    (r"opt-30b", KnownShape(48, 7168, 56, 56, 28672, 50272, 29.97)),
    (r"opt-66b", KnownShape(64, 9216, 72, 72, 36864, 50272, 65.72)),
    (r"bloom-560m", KnownShape(24, 1024, 16, 16, 4096, 250880, 0.559)),
    (r"bloom-1b1|bloom-1\.1b", KnownShape(24, 1536, 16, 16, 6144, 250880, 1.065)),
    (r"bloom-7b1|bloom-7\.1b", KnownShape(30, 4096, 32, 32, 16384, 250880, 7.069)),
    (r"bloom(-176b)?$", KnownShape(70, 14336, 112, 112, 57344, 250880, 176.2)),
    (r"falcon-40b", KnownShape(60, 8192, 128, 8, 32768, 65024, 41.3)),
    (r"pythia-6\.9b", KnownShape(32, 4096, 32, 32, 16384, 50432, 6.857)),
    (r"pythia-12b", KnownShape(36, 5120, 40, 40, 20480, 50688, 11.85)),
    (r"gpt-neox-20b", KnownShape(44, 6144, 64, 64, 24576, 50432, 20.55)),
    (r"gpt-j-6b", KnownShape(28, 4096, 16, 16, 16384, 50400, 6.053)),
    (r"phi-2$", KnownShape(32, 2560, 32, 32, 10240, 51200, 2.78)),
    (r"phi-3-mini", KnownShape(32, 3072, 32, 32, 8192, 32064, 3.821)),
    (r"gemma-2b", KnownShape(18, 2048, 8, 1, 16384, 256000, 2.506)),
)
_KNOWN = tuple((re.compile(rf"(?:^|[^a-z0-9.]){pattern}(?![0-9.])"), shape) for pattern, shape in _TABLE)
_POSITIONS = (
    (re.compile(r"\bgpt-?2(?![0-9.])", re.IGNORECASE), 1024),
    (re.compile(r"\bopt-\d|\bgpt-?neo-\d", re.IGNORECASE), 2048),
)
"""Of GPT-2 in all sizes, and what Megatron-LM and ZeRO's papers trained under that name; of OPT and GPT-Neo, whose tables are
learned too."""
_TOLERANCE = 0.1
"""Of stated parameters against the named model's: beyond it the name is only that of a family."""


def known_shape(model: str, params_b: float | None = None) -> KnownShape | None:
    """The shape of the public model that a name means; None: it is none that is known, or only one of its kind.

    Args:
        model: as a row names it, with blanks or dashes.
        params_b: parameters in billions, where the row states them.

    >>> shape = known_shape("meta-llama/Llama-3.1-8B-Instruct")
    >>> shape.layers, shape.hidden, shape.kv_heads
    (32, 4096, 8)
    >>> known_shape("Llama-7B class"), known_shape("Llama-2-7B", params_b=70.0), known_shape("GPT 13B")
    (None, None, None)
    """
    if is_look_alike(model):
        return None
    words = re.sub(r"\(.*?\)", "", model).strip().lower()
    words = re.sub(r"[\s_]+", "-", words)
    for pattern, shape in _KNOWN:
        if pattern.search(words):
            near = params_b is None or abs(params_b / shape.params_b - 1) <= _TOLERANCE
            return shape if near else None
    return None


def longest_sequence(model: str) -> int | None:
    """Tokens beyond which a model has no positions, so that no run has more; None: no bound is known.

    >>> longest_sequence("GPT-2-like 13B"), longest_sequence("gpt2-xl"), longest_sequence("GPT 20B")
    (1024, 1024, None)
    """
    return next((positions for words, positions in _POSITIONS if words.search(model)), None)


def named_columns(row: Mapping[str, str | float | None]) -> dict[str, float]:
    """Columns of the shape that a row leaves out, by its model's name; none where what it states is another model's.

    Vocabulary and parameters come only with a shape of which the row states neither layers nor width.

    >>> named_columns({"model": "Llama-3-8B", "layers": 32.0, "hidden": 4096.0, "heads": 32.0})
    {'kv_heads': 8, 'ffn_hidden': 14336}
    >>> named_columns({"model": "Llama-3-8B", "layers": 4.0})
    {}
    """
    params_b = row.get("params_b")
    shape = known_shape(str(row.get("model") or ""), None if params_b is None else float(params_b))
    if shape is None:
        return {}
    sides = {name: value for name, value in shape._asdict().items() if name not in ("vocab", "params_b")}
    if any(row.get(name) not in (None, value) for name, value in sides.items()):
        return {}
    is_silent = row.get("layers") is None and row.get("hidden") is None
    columns = shape._asdict() if is_silent else sides
    return {name: value for name, value in columns.items() if row.get(name) is None}
