"""The predicted memory against published rows: the bars that hold, and the rows that break them by name."""

from __future__ import annotations

import pandas as pd
import pytest

from hpctrain.analysis.memory_validation import (
    FALSE_FIT,
    FALSE_REFUSAL,
    RIGHT,
    UNDECIDED,
    memory_row_name,
    memory_rows,
    memory_table,
)
from hpctrain.analysis.published import load_published
from hpctrain.analysis.validation import CALIBRATION, VALIDATION


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return memory_rows(load_published())


@pytest.fixture(scope="module")
def judged(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["role"] == VALIDATION) & (rows["stated"] == "")]


@pytest.mark.parametrize(
    ("source", "peaks", "median", "within_10"),
    [
        ("BigScience (BLOOM tuning)", 56, 0.05, 0.92),
        ("BigScience (V100 experiments)", 27, 0.115, 0.4),
        ("DeepSpeed low-precision master weights example", 2, 0.07, 1.0),
        ("Megatron-DeepSpeed READMEs", 2, 0.1, 0.5),
    ],
)
def test_peaks_that_were_not_used_for_fitting(
    judged: pd.DataFrame, source: str, peaks: int, median: float, within_10: float
) -> None:
    distance = judged.loc[judged["source"] == source, "memory_error"].dropna().abs()
    assert len(distance) == peaks
    assert distance.median() <= median
    assert (distance <= 0.1).mean() >= within_10


def test_fitted_peaks_are_no_better_than_twice_the_others(rows: pd.DataFrame) -> None:
    """One constant moves all rows together; it cannot follow single ones."""
    bloom = rows[rows["source"] == "BigScience (BLOOM tuning)"]
    medians = (
        bloom.dropna(subset="memory_error").groupby("role")["memory_error"].apply(lambda part: part.abs().median())
    )
    assert medians[VALIDATION] < 2 * medians[CALIBRATION]


def test_wrong_fits_by_name(rows: pd.DataFrame) -> None:
    stated = rows[rows["stated"] == ""]
    assert [memory_row_name(row) for _, row in stated[stated["verdict"] == FALSE_FIT].iterrows()] == [
        "GPT 52B, 64 V100-SXM2-32GB, tp 1, pp 1, stage 3, micro batch 22: 31.7 GiB, out of memory"
    ]
    refused = stated[stated["verdict"] == FALSE_REFUSAL]
    assert [(row["model"], row["micro_batch_per_gpu"]) for _, row in refused.iterrows()] == [
        ("GPT 52B", 16),
        ("GPT 52B", 10),
    ]
    # Both say that nothing is offloaded, though 52B states of 16 bytes and the block inputs alone take 22 and 28 of 32 GiB.
    assert set(refused["offload_optimizer"]) == {"none"}


def test_runs_out_of_memory_are_foreseen(rows: pd.DataFrame) -> None:
    out_of_memory = rows[(rows["flag"] == "STATUS=OOM") & (rows["stated"] == "")]
    assert out_of_memory["verdict"].value_counts().to_dict() == {RIGHT: 7, FALSE_FIT: 1}


def test_no_row_of_the_large_tables_is_refused(rows: pd.DataFrame) -> None:
    for file in ("azure-deepspeed.csv", "llm-foundry.csv", "fms-fsdp.csv", "megatron.csv", "nanotron.csv"):
        assert (rows.loc[rows["file"] == file, "verdict"] != FALSE_REFUSAL).all(), file


def test_the_table_counts_every_row_once(rows: pd.DataFrame) -> None:
    table = memory_table(rows)
    assert table["rows"].sum() == len(rows)
    assert table["peaks"].sum() == rows["memory_error"].notna().sum()
    assert table[UNDECIDED].sum() == (rows["verdict"] == UNDECIDED).sum()
    (line,) = table[(table["source"] == "BigScience (BLOOM tuning)") & (table["role"] == CALIBRATION)].to_dict(
        "records"
    )
    assert (line["rows"], line["peaks"], line[FALSE_FIT], line[FALSE_REFUSAL]) == (14, 14, 0, 0)
    assert line["median"] <= line["largest"]


def test_error_and_name_of_a_row(rows: pd.DataFrame) -> None:
    row = rows[(rows["model"] == "GPT 177B") & rows["peak_mem_gb"].notna()].iloc[0]
    assert row["memory_error"] == pytest.approx(row["predicted_peak_gib"] / 58 - 1)
    assert memory_row_name(row) == (
        f"GPT 177B, 384 A100-SXM-80GB, tp 1, pp 48, stage 1, micro batch 1: {row['predicted_peak_gib']:.1f} GiB,"
        " 58.0 GB measured"
    )
