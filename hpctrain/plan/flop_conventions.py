"""The FLOP ledger: the same step counted in every convention that is published, and conversion between them.

A rate in TFLOP/s means nothing without its convention: one run is 204 in one and 153 in another. Counts by terms come from
``hpctrain.plan.flops``; the closed forms of papers are here, each with its source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from hpctrain.errors import ConfigError, Problem, known_names_hint
from hpctrain.plan.flops import block_forward_flops, megatron_flops, step_flops, tflops_per_gpu
from hpctrain.plan.model_shape import ModelShape

FlopConvention = Literal[
    "model",
    "model_causal",
    "hardware_full",
    "hardware_selective",
    "hardware_none",
    "megatron",
    "megatron_model",
    "megatron_selective",
    "6n",
    "8n",
    "palm",
    "palm_causal",
    "palm_recompute",
]
"""Counts by terms: ``model`` (attention full, every score) and ``model_causal`` (half of the scores), ``hardware_*`` (attention
full; full, selective or no recomputation, whether or not the run did it). Closed forms: ``megatron`` (96-form, attention full,
full recomputation), ``megatron_model`` (72-form, attention full), ``megatron_selective`` (attention full, twice), ``6n`` and
``8n`` (no attention; no and full recomputation), ``palm`` (6N + 12Lhs, attention full), ``palm_causal`` (6N + 6Lhs),
``palm_recompute`` (8N + 16Lhs, attention full, full recomputation)."""

HARDWARE_SPELLING = "hardware incl. recompute"
"""What ``analysis/published`` writes for counts that hold recomputation."""
FLOPS_PER_PARAMETER = 6
"""Of one token, forward and backward: a multiply-add each, backward twice.

Source: Kaplan et al. 2020 (arXiv 2001.08361), table 1."""


def convention_flops(
    convention: FlopConvention,
    shape: ModelShape,
    seq_len: int,
    num_sequences: int = 1,
    num_parameters: float | None = None,
) -> float:
    """FLOPs of one optimizer step of all GPUs together, in ``convention``.

    Args:
        convention: one of ``FlopConvention``.
        shape: with its grouped queries, head width and gated feed-forward; closed forms of Megatron ignore them.
        seq_len: tokens of a sequence.
        num_sequences: sequences of a step.
        num_parameters: N of the forms with N, where a publication states it; None: that of the shape, each table counted once.

    Raises:
        ConfigError: the convention is unknown; the message lists the known ones.

    175B at 2,048 tokens, in 1e15 FLOPs a sequence:

    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> shape = plain_shape(96, 12288, 51200)
    >>> [round(convention_flops(name, shape, 2048) / 1e15, 3) for name in ("megatron", "megatron_model", "palm", "6n")]
    [2.937, 2.205, 2.205, 2.146]
    """
    if convention in _FORMS_WITH_N:
        per_token, attention = _FORMS_WITH_N[convention]
        parameters = shape.num_parameters if num_parameters is None else num_parameters
        scores = attention * shape.num_layers * shape.attention_width * seq_len
        return (per_token * parameters + scores) * seq_len * num_sequences
    if convention in _COUNTS:
        return _COUNTS[convention](shape, seq_len) * num_sequences
    rule = "is no FLOP convention"
    raise ConfigError(
        [Problem("convention", str(convention), rule, known_names_hint(convention, get_args(FlopConvention)))]
    )


_FORMS_WITH_N: dict[str, tuple[float, float]] = {
    "6n": (FLOPS_PER_PARAMETER, 0),
    "8n": (8, 0),
    "palm": (FLOPS_PER_PARAMETER, 12),
    "palm_causal": (FLOPS_PER_PARAMETER, 6),
    "palm_recompute": (8, 16),
}
"""FLOPs a token: so many times N, and so many times layers x attention width x sequence.

Source: 6N see ``FLOPS_PER_PARAMETER``; 6N + 12Lhs Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B;
half of its scores: Megatron-Bridge 25.09; 8N the same with the forward pass twice (BigScience's V100 tables); 8N + 16Lhs ALST
(arXiv 2506.13996). N holds tables that are only looked up, so it is more than a count by terms where they are not tied.
"""


def _attention_forward(shape: ModelShape, seq_len: int) -> float:
    """Scores and values of all blocks for one sequence, every score counted."""
    terms = block_forward_flops(shape, seq_len)
    return float(shape.num_layers * (terms["scores"] + terms["values"]))


def _model(shape: ModelShape, seq_len: int) -> float:
    return step_flops(shape, seq_len, 1, "none", zero_stage=3).model_flops


def _model_causal(shape: ModelShape, seq_len: int) -> float:
    """Half of the scores lie behind the mask; kernels that skip them execute this."""
    return _model(shape, seq_len) - 1.5 * _attention_forward(shape, seq_len)


def _hardware_full(shape: ModelShape, seq_len: int) -> float:
    return step_flops(shape, seq_len, 1, "full", zero_stage=3).hardware_flops


def _hardware_selective(shape: ModelShape, seq_len: int) -> float:
    """Scores and values of each block run again. Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 5."""
    return _model(shape, seq_len) + _attention_forward(shape, seq_len)


def _megatron(shape: ModelShape, seq_len: int) -> float:
    return megatron_flops(1, seq_len, shape.num_layers, shape.hidden_size, shape.vocab_size)


def _megatron_model(shape: ModelShape, seq_len: int) -> float:
    """72·s·l·h²·(1 + s/6h + V/12lh): the 96-form without the second forward pass, which has no logits."""
    return _korthikanti(shape, seq_len, attention_share=1 / 6)


def _megatron_selective(shape: ModelShape, seq_len: int) -> float:
    """72·s·l·h²·(1 + s/3h + V/12lh), as printed; it counts attention's forward pass three more times, not once."""
    return _korthikanti(shape, seq_len, attention_share=1 / 3)


def _korthikanti(shape: ModelShape, seq_len: int, attention_share: float) -> float:
    """Source: Korthikanti et al. 2022 (arXiv 2205.05198), appendix A, equations 7 and 8."""
    layers, h = shape.num_layers, shape.hidden_size
    inner = 1 + attention_share * seq_len / h + shape.vocab_size / (12 * layers * h)
    return 72.0 * seq_len * layers * h * h * inner


_COUNTS: dict[str, Callable[[ModelShape, int], float]] = {
    "model": _model,
    "model_causal": _model_causal,
    "hardware_full": _hardware_full,
    "hardware_selective": _hardware_selective,
    "hardware_none": _model,
    "megatron": _megatron,
    "megatron_model": _megatron_model,
    "megatron_selective": _megatron_selective,
}


def convert(
    value_tflops: float,
    from_convention: FlopConvention,
    to_convention: FlopConvention,
    shape: ModelShape,
    seq_len: int,
    num_parameters: float | None = None,
) -> float:
    """The same speed in another convention: TFLOP/s, or a fraction of peak.

    The published 175B point is 65.5 % of peak as hardware FLOPs and 49 % as model FLOPs:

    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> shape = plain_shape(96, 12288, 50304)
    >>> round(convert(204.49, "megatron", "model", shape, 512), 2)
    153.5
    """
    there = convention_flops(to_convention, shape, seq_len, num_parameters=num_parameters)
    return value_tflops * there / convention_flops(from_convention, shape, seq_len, num_parameters=num_parameters)


def utilisation(flops: float, step_time_s: float, num_gpus: int, peak_tflops: float) -> float:
    """Fraction of peak: MFU for a count without recomputation, HFU for one of what the run executes.

    Args:
        flops: of one step of all GPUs together.
        step_time_s: seconds of that step.
        num_gpus: GPUs that take part.
        peak_tflops: dense peak of one GPU in the data type of the matrix products, 1e12 FLOP/s.

    >>> utilisation(312e12, 2.0, 1, 312.0)
    0.5
    """
    return tflops_per_gpu(flops, step_time_s, num_gpus) / peak_tflops


_PUBLISHED: dict[str, FlopConvention | None] = {
    HARDWARE_SPELLING: "megatron",
    "model flops": "palm",
    "unknown": None,
}
"""The column ``tflops_convention`` of ``analysis/published``, where the source has no other form."""

_PUBLISHED_BY_SOURCE: dict[tuple[str, str], FlopConvention] = {
    ("BigScience", "unknown"): "8n",
    ("ALST", "model flops"): "palm_recompute",
    ("ArcticTraining", "model flops"): "palm_recompute",
    ("Reducing Activation Recomputation", "model flops"): "megatron_model",
}
"""First words of ``source``. BigScience says in its notes that its first tables are 8 x parameters x tokens."""


def published_convention(spelling: str | None, source: str) -> FlopConvention | None:
    """The convention of a row of the published files; None: the publication does not say which.

    >>> published_convention("model flops", "mosaicml/llm-foundry"), published_convention("unknown", "ZeRO++")
    ('palm', None)

    Raises:
        ConfigError: a spelling that the files do not use.
    """
    if not spelling:
        return None
    for (first_words, known), convention in _PUBLISHED_BY_SOURCE.items():
        if known == spelling and source.startswith(first_words):
            return convention
    if spelling not in _PUBLISHED:
        hint = known_names_hint(spelling, _PUBLISHED)
        raise ConfigError([Problem("tflops_convention", spelling, "is no convention of the published files", hint)])
    return _PUBLISHED[spelling]
