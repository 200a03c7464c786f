"""The FLOP ledger: hand-worked counts, and what publications print computed again from their shapes and times."""

from __future__ import annotations

from typing import get_args

import pandas as pd
import pytest

from hpctrain.analysis.published import load_published
from hpctrain.errors import ConfigError
from hpctrain.plan.flop_conventions import (
    FlopConvention,
    convention_flops,
    convert,
    published_convention,
    utilisation,
)
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.stated.plain_shape import plain_shape

CONVENTIONS: tuple[FlopConvention, ...] = get_args(FlopConvention)
SMALL = plain_shape(2, 8, 10, num_heads=2)
"""By hand for one sequence of 4 tokens. A block: queries, keys, values 2·4·8·24 = 1536, scores and values 2·4·4·8 = 256 each,
projection 2·4·8·8 = 512, feed-forward 2·4·2·8·32 = 4096; 6656 in all, of which attention's products are 512. Logits
2·4·8·10 = 640. Forward 2·6656 + 640 = 13952."""
GROUPED = plain_shape(2, 8, 10, num_heads=4, num_kv_heads=1, head_dim=4, ffn_hidden_size=20, gated=True)
"""A block: 2·4·8·(16 + 8) = 1536, scores and values 2·4·4·16 = 512 each, projection 2·4·16·8 = 1024, three matrices
2·4·3·8·20 = 3840; 7424. Forward 2·7424 + 640 = 15488."""

BY_HAND: list[tuple[FlopConvention, ModelShape, float]] = [
    ("model", SMALL, 3 * 13952),
    ("hardware_none", SMALL, 3 * 13952),
    ("model_causal", SMALL, 3 * (13952 - 512)),
    ("hardware_full", SMALL, 3 * 13952 + 2 * 6656),
    ("hardware_selective", SMALL, 3 * 13952 + 2 * 512),
    ("megatron", SMALL, 96 * 4 * 2 * 64 * (1 + 4 / 48 + 10 / 256)),
    ("megatron_model", SMALL, 72 * 4 * 2 * 64 * (1 + 4 / 48 + 10 / 192)),
    ("megatron_selective", SMALL, 72 * 4 * 2 * 64 * (1 + 4 / 24 + 10 / 192)),
    ("model", GROUPED, 3 * 15488),
    ("model_causal", GROUPED, 3 * (15488 - 1024)),
    ("hardware_full", GROUPED, 3 * 15488 + 2 * 7424),
    ("hardware_selective", GROUPED, 3 * 15488 + 2 * 1024),
]


@pytest.mark.parametrize(("convention", "shape", "expected"), BY_HAND)
def test_counts_by_hand(convention: FlopConvention, shape: ModelShape, expected: float) -> None:
    assert convention_flops(convention, shape, 4) == pytest.approx(expected, rel=1e-12)
    assert convention_flops(convention, shape, 4, num_sequences=3) == pytest.approx(3 * expected, rel=1e-12)


@pytest.mark.parametrize(
    ("convention", "per_token"),
    [
        ("6n", 6 * 1000),
        ("8n", 8 * 1000),
        ("palm", 6 * 1000 + 12 * 2 * 16 * 4),
        ("palm_causal", 6 * 1000 + 6 * 2 * 16 * 4),
        ("palm_recompute", 8 * 1000 + 16 * 2 * 16 * 4),
    ],
)
def test_forms_with_n_by_hand(convention: FlopConvention, per_token: float) -> None:
    # The attention's width is 16 here and not the hidden size of 8.
    assert convention_flops(convention, GROUPED, 4, num_parameters=1000) == 4 * per_token
    expected = 4 * (per_token + (8 if convention in ("8n", "palm_recompute") else 6) * (GROUPED.num_parameters - 1000))
    assert convention_flops(convention, GROUPED, 4) == expected


def test_forms_agree_where_they_must() -> None:
    """For a GPT with a feed-forward of 4h the forms of Megatron are the counts by terms."""
    shape = plain_shape(96, 12288, 51200)
    assert convention_flops("megatron", shape, 2048) == pytest.approx(convention_flops("hardware_full", shape, 2048))
    assert convention_flops("megatron_model", shape, 2048) == pytest.approx(convention_flops("model", shape, 2048))
    # N also holds biases, norms and positions: 0.1 % at this size.
    assert convention_flops("palm", shape, 2048) == pytest.approx(convention_flops("model", shape, 2048), rel=1e-3)


PASSES_OF_ATTENTION: dict[FlopConvention, float] = {
    "model": 1,
    "model_causal": 1 / 2,
    "hardware_full": 4 / 3,
    "hardware_selective": 4 / 3,
    "hardware_none": 1,
    "megatron": 4 / 3,
    "megatron_model": 1,
    "megatron_selective": 2,  # as printed in the paper
    "6n": 0,
    "8n": 0,
    "palm": 1,
    "palm_causal": 1 / 2,
    "palm_recompute": 4 / 3,
}
"""Attention's products over those of forward and backward once, every score counted, as the conventions' names say."""


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_attention_and_recomputation_are_as_the_name_says(convention: FlopConvention) -> None:
    shape = plain_shape(4, 64, 100)
    # Per token only attention grows with the sequence: 12·l·h a token, forward and backward.
    growth = convention_flops(convention, shape, 128) / 128 - convention_flops(convention, shape, 64) / 64
    assert growth == pytest.approx(PASSES_OF_ATTENTION[convention] * 12 * 4 * 64 * (128 - 64))


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        # Of ``SMALL``: model 41,856, full recomputation 55,168, 6N 24,000 with N = 1,000.
        pytest.param("model", "hardware_full", 131.804, id="model-to-hardware"),
        pytest.param("hardware_full", "model", 75.870, id="hardware-to-model"),
        pytest.param("model", "6n", 57.339, id="model-to-6n"),
        pytest.param("6n", "8n", 133.333, id="6n-to-8n"),
        pytest.param("model", "model", 100.0, id="same"),
    ],
)
def test_conversion_by_hand(here: FlopConvention, there: FlopConvention, expected: float) -> None:
    assert convert(100.0, here, there, SMALL, 4, num_parameters=1000) == pytest.approx(expected, abs=1e-3)


def test_attention_conventions_differ_as_the_collection_says() -> None:
    # Llama-3-8B at 8,192 tokens: causal attention counts 12.5 % less than full.
    shape = plain_shape(
        32, 4096, 128256, num_heads=32, num_kv_heads=8, ffn_hidden_size=14336, gated=True, tie_embeddings=False
    )
    assert convert(100.0, "palm_causal", "palm", shape, 8192) == pytest.approx(112.5, abs=1.0)


def test_utilisation_by_hand() -> None:
    # 1.56e15 FLOPs in 10 s on 2 GPUs are 78 TFLOP/s each: a quarter of 312.
    assert utilisation(1.56e15, 10.0, 2, 312.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("spelling", "source", "expected"),
    [
        ("hardware incl. recompute", "DeepSpeed on Azure (2022-07-26)", "megatron"),
        ("model flops", "mosaicml/llm-foundry", "palm"),
        ("model flops", "Reducing Activation Recomputation (Korthikanti 2022)", "megatron_model"),
        ("unknown", "BigScience (V100 experiments)", "8n"),
        ("unknown", "ZeRO++ blog (2023-06)", None),
        (None, "mosaicml/llm-foundry", None),
    ],
)
def test_spellings_of_the_published_files(spelling: str | None, source: str, expected: str | None) -> None:
    assert published_convention(spelling, source) == expected


def test_what_is_not_known() -> None:
    with pytest.raises(ConfigError, match="convention=megatorn: is no FLOP convention; nearest: megatron"):
        convention_flops("megatorn", SMALL, 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"tflops_convention=model: is no convention of the .*nearest: model flops"):
        published_convention("model", "x")


def rows_of(file: str) -> pd.DataFrame:
    table = load_published(files=(file,))
    return table[table["step_time_s"].notna() & table["layers"].notna() & table["flag"].isna()]


def printed_over_counted(rows: pd.DataFrame, convention: FlopConvention, vocab: int | None = None) -> pd.Series:
    """TFLOP/s as printed over those of the shape and step time."""

    def ratio(row: pd.Series) -> float:
        shape = plain_shape(
            row["layers"],
            row["hidden"],
            vocab or row["vocab"],
            num_heads=None if pd.isna(row["heads"]) else row["heads"],
            ffn_hidden_size=None if pd.isna(row["ffn_hidden"]) else row["ffn_hidden"],
        )
        stated = row["params_b"] * 1e9
        flops = convention_flops(convention, shape, row["seq_len"], row["global_batch"], stated)
        return float(row["tflops_per_gpu"] * 1e12 * row["step_time_s"] * row["num_gpus"] / flops)

    return rows.apply(ratio, axis=1)


def test_llm_foundry_all_rows_within_2_percent() -> None:
    ratios = printed_over_counted(rows_of("llm-foundry.csv"), "palm")
    assert len(ratios) == 191
    assert ratios.between(0.98, 1.02).all()


def test_llm_foundry_recomputation_is_a_third_more() -> None:
    rows = rows_of("llm-foundry.csv")
    full = rows[rows["activation_ckpt"] == "full"]
    assert len(full) == 69
    assert (full["hfu"] / full["mfu"]).between(1.333, 1.334).all()


def test_bigscience_rows_in_the_megatron_form_within_1_2_percent() -> None:
    rows = rows_of("bigscience.csv")
    later = rows[rows["tflops_convention"] == "hardware incl. recompute"]
    ratios = printed_over_counted(later[later["layers"] > 10], "megatron")
    assert len(ratios) > 50
    assert ratios.between(0.988, 1.012).all()


def test_bigscience_first_rows_are_8n() -> None:
    rows = rows_of("bigscience.csv")
    first = rows[(rows["tflops_convention"] == "unknown") & rows["gpu"].str.startswith("A100")]
    ratios = printed_over_counted(first, "8n", vocab=51200)
    assert len(ratios) > 15
    # N is printed in whole billions.
    assert ratios.between(0.95, 1.05).all()


def test_megatron_turing_rows() -> None:
    rows = rows_of("megatron.csv")
    ratios = printed_over_counted(rows[rows["source"].str.startswith("MT-NLG")], "megatron")
    assert len(ratios) == 3
    assert ratios.between(0.985, 1.015).all()


def test_nanotron_per_token() -> None:
    # 25.67e9 FLOPs a token for the 3.57B model at 4,096 tokens, as its authors print.
    shape = plain_shape(28, 3072, 131072, num_heads=32, ffn_hidden_size=8192, gated=True)
    assert convention_flops("palm", shape, 4096) / 4096 == pytest.approx(25.67e9, rel=2e-3)


def test_korthikanti_forms_worked_by_hand() -> None:
    # 72·105·2,048·20,480² = 6.4938e15; s/6h = 1/60, s/3h = 1/30, V/12lh = 51,200/25,804,800 = 0.0019841.
    shape = plain_shape(105, 20480, 51200, num_heads=128)
    assert convention_flops("megatron_model", shape, 2048) == pytest.approx(6.4938e15 * 1.0186508, rel=1e-4)
    assert convention_flops("megatron_selective", shape, 2048) == pytest.approx(6.4938e15 * 1.0353175, rel=1e-4)


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "tokens_per_s", "mfu"),
    [(32, 4096, 14336, 2904, 0.568), (32, 4096, 14336, 2973, 0.582), (80, 8192, 28672, 331, 0.517)],
)
def test_torchtitan_llama_3(layers: int, hidden: int, ffn: int, tokens_per_s: float, mfu: float) -> None:
    # docs/performance.md of pytorch/torchtitan (2024): 64 A100, 8,192 tokens, tokens/s a GPU and MFU of 312.
    shape = plain_shape(layers, hidden, 128256, num_kv_heads=8, ffn_hidden_size=ffn, gated=True, tie_embeddings=False)
    per_token = convention_flops("palm", shape, 8192) / 8192
    assert utilisation(per_token, 1 / tokens_per_s, 1, 312.0) == pytest.approx(mfu, abs=1e-3)
