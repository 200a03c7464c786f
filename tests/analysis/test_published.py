"""The published files against the formulas of the plan, and in the shape of our own runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hpctrain.analysis.published import PUBLISHED_DIR, as_runs, load_published
from hpctrain.analysis.scaling import scaling_efficiency
from hpctrain.errors import ConfigError, RecordError
from hpctrain.plan.devices import find_device
from hpctrain.plan.flops import megatron_flops

ASSUMED_VOCAB = 50304
HEADER = (PUBLISHED_DIR / "angelptm.csv").read_text(encoding="utf-8").splitlines()[0]


@pytest.fixture(scope="module")
def azure() -> pd.DataFrame:
    table = load_published()
    return table[(table["file"] == "azure-deepspeed.csv") & table["step_time_s"].notna()]


def test_what_is_there() -> None:
    table = load_published()
    assert table.groupby("file").size().to_dict() == {
        "angelptm.csv": 9,
        "azure-deepspeed.csv": 56,
        "bigscience.csv": 235,
        "field-reports.csv": 25,
        "fms-fsdp.csv": 27,
        "llm-foundry.csv": 191,
        "megatron.csv": 33,
        "memory-peaks.csv": 35,
        "nanotron.csv": 32,
        "nemo.csv": 102,
        "zero-family.csv": 245,
    }
    assert table.groupby("flag").size().to_dict() == {"CHECK": 13, "STATUS=OOM": 28}
    figures = load_published(files=("angelptm.csv", "azure-deepspeed.csv"))
    assert figures.groupby("evidence").size().to_dict() == {"DIGITISED": 49, "EXACT": 8, "QUOTED": 4, "RELATIVE": 4}
    assert table["ref"].notna().all()


def test_every_gpu_is_known() -> None:
    unknown = set()
    for gpu, memory_gb in load_published()[["gpu", "gpu_mem_gb"]].dropna(subset="gpu").itertuples(index=False):
        try:
            find_device(gpu, None if pd.isna(memory_gb) else memory_gb)
        except ConfigError:
            unknown.add(gpu)
    assert not unknown


def test_degrees_are_part_of_what_is_compared() -> None:
    runs = as_runs(load_published(files=("megatron.csv",)))
    assert {"zero0", "zero0 tp2", "zero0 tp8 pp64"} <= set(runs["parallelism"].dropna())


def test_the_headline_numbers(azure: pd.DataFrame) -> None:
    """As printed in the post: TFLOP/s per GPU by model, GPUs and micro batch."""
    exact = azure[azure["evidence"] == "EXACT"]
    columns = ["model", "num_gpus", "micro_batch_per_gpu", "tflops_per_gpu"]
    assert [tuple(row) for row in exact[columns].itertuples(index=False)] == [
        ("GPT 175B", 256, 32, 204.49),
        ("GPT 530B", 512, 8, 170.42),
        ("GPT 530B", 1024, 8, 171.37),
        ("GPT 1T", 1024, 8, 165.36),
        ("GPT 2T", 1024, 8, 157.0),
    ]


def test_derived_columns_against_the_plan(azure: pd.DataFrame) -> None:
    """TFLOP/s, step time, tokens/s and fraction of peak are one measurement: each follows from the first."""
    assert len(azure) == 54
    for row in azure.to_dict("records"):
        flops = megatron_flops(row["global_batch"], row["seq_len"], row["layers"], row["hidden"], ASSUMED_VOCAB)
        gpu_seconds = row["step_time_s"] * row["num_gpus"]
        assert flops / gpu_seconds / 1e12 == pytest.approx(row["tflops_per_gpu"], rel=5e-4)
        tokens_per_s_per_gpu = row["global_batch"] * row["seq_len"] / gpu_seconds
        assert tokens_per_s_per_gpu == pytest.approx(row["tokens_per_s_per_gpu"], abs=0.07), (
            "rounded to a tenth, from a rounded time"
        )
        assert row["tflops_per_gpu"] / 312 == pytest.approx(row["hfu"], abs=5.1e-5)
        assert row["global_batch"] == row["micro_batch_per_gpu"] * row["dp"]


def test_digitised_rows_state_their_error(azure: pd.DataFrame) -> None:
    errors = azure.groupby(["model", "evidence"])["tflops_error"].unique().map(list).to_dict()
    assert errors["GPT 175B", "DIGITISED"] == [1.3]
    assert errors["GPT 530B", "DIGITISED"] == [0.4]
    assert azure.loc[azure["evidence"] == "EXACT", "tflops_error"].isna().all()


def test_published_efficiencies_by_hand(azure: pd.DataFrame) -> None:
    """Weak scaling keeps the batch of a GPU, so an efficiency is a ratio of step times read from the file."""
    scaling = scaling_efficiency(as_runs(azure[azure["seq_len"] == 1024]), "weak")
    points = scaling.points.set_index(["group", "gpus"])["efficiency"]
    assert points["GPT 530B, micro batch 8", 1024] == pytest.approx(205.22 / 204.08)
    assert points["GPT 175B, micro batch 1", 1024] == pytest.approx(15.23 / 29.50)
    assert points["GPT 175B, micro batch 8", 1024] == pytest.approx(63.64 / 69.85)
    assert points["GPT 175B, micro batch 16", 256] == pytest.approx(119.16 / 114.06)
    assert scaling.common == (
        "1024 tokens a sequence, fp16, A100-SXM-80GB (ND A100 v4), checkpointing full, zero3, accumulation 1"
    )


def test_rows_without_step_time_or_with_another_count_stay_out() -> None:
    reasons = as_runs(load_published())["reason"].value_counts().to_dict()
    assert reasons.pop("") == 650
    assert reasons == {"no step time published": 299, "out of memory": 28, "the source contradicts itself": 13}
    runs = as_runs(load_published(files=("azure-deepspeed.csv", "angelptm.csv")))
    assert set(runs.loc[~runs["valid"], "reason"]) == {"no step time published"}
    assert runs["valid"].sum() == 54
    fsdp = runs[runs["model"] == "GPT 1T (PyTorch FSDP, AWS)"]
    assert fsdp["megatron_tflops_per_gpu"].isna().all(), "its convention is not known"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "no published results here; a source checkout keeps them in analysis/published", id="none"),
        pytest.param(
            HEADER.replace("peak_mem_gb", "memory") + "\n",
            "x.csv: the header must be that of the other files; different: memory, peak_mem_gb",
            id="header",
        ),
        pytest.param(HEADER + "\nA,ref,m,many" + "," * 31 + "EXACT\n", "x.csv: .*many", id="number"),
        pytest.param(
            HEADER + "\nA,ref,m" + "," * 32 + "seen somewhere\n",
            "x.csv: notes=seen somewhere: must start with one of EXACT, DIGITISED, DERIVED, RELATIVE, QUOTED",
            id="evidence",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=message):
        load_published(tmp_path)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(RecordError, match=r"azure.csv: is not there; nearest: .*azure-deepspeed.csv"):
        load_published(files=("azure.csv",))
