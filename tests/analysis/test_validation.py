"""The prediction against published rows: the bars, and that the stated uncertainty is what the rows show."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from hpctrain.analysis.published import load_published
from hpctrain.analysis.published_runs import published_run
from hpctrain.analysis.validation import CALIBRATION, VALIDATION, validation_rows, validation_table
from hpctrain.plan.devices import DEVICES
from hpctrain.plan.speed.software import SOFTWARE, sustained_rates
from hpctrain.plan.speed.step_parts import Machine, Recomputation, Setup, step_parts
from hpctrain.plan.stated.plain_shape import plain_shape
from hpctrain.plan.stated.trainer import find_trainer


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rows = validation_rows(load_published())
    generations = [published_run(row).software.name for row in rows.to_dict("records")]
    return rows.assign(generation=pd.array(generations, dtype="string"))


def test_the_bars_on_rows_that_were_not_fitted(rows: pd.DataFrame) -> None:
    judged = rows[(rows["role"] == VALIDATION) & (rows["stated"] == "")]
    assert len(judged) == 165
    assert judged["error"].abs().median() <= 0.08
    assert judged["error"].abs().max() <= 0.25
    for source, group in judged.groupby("source"):
        assert group["error"].abs().median() <= 0.08, source


def test_fitted_rows_are_no_better_than_twice_the_others(rows: pd.DataFrame) -> None:
    """Constants that followed single rows would fit these far better than rows they have not seen."""
    fitted = rows[rows["role"] == CALIBRATION]["error"].abs().median()
    judged = rows[(rows["role"] == VALIDATION) & (rows["stated"] == "")]["error"].abs().median()
    assert judged < 2 * fitted


def test_error_is_predicted_over_measured(rows: pd.DataFrame) -> None:
    row = rows[(rows["model"] == "GPT 2T")].iloc[0]
    assert row["error"] == pytest.approx(row["predicted_step_time_s"] / 865.56 - 1)
    assert (row["role"], row["kind"], row["stated"]) == (VALIDATION, "ZeRO-3", "")


@pytest.mark.parametrize("generation", [name for name, software in SOFTWARE.items() if software.validated_on])
def test_the_stated_range_is_that_of_the_validation_rows(rows: pd.DataFrame, generation: str) -> None:
    """To a whole per cent, outwards. ``megatron`` has no rows of its own and takes those of nanotron."""
    seen = rows[
        (rows["role"] == VALIDATION) & (rows["generation"] == ("nanotron" if generation == "megatron" else generation))
    ]
    quiet = seen[seen["stated"] != "source warns of noise"]
    errors = (quiet if len(quiet) else seen)["error"]
    outwards = (math.floor(errors.min() * 100) / 100, math.ceil(errors.max() * 100) / 100)
    assert SOFTWARE[generation].errors == pytest.approx(outwards, abs=1e-9)


def test_what_has_no_rows_says_so(rows: pd.DataFrame) -> None:
    without = {name for name, software in SOFTWARE.items() if not software.validated_on}
    assert without == {"deepspeed", "deepspeed_leaf_blocks", "fsdp_2022"}
    assert not set(rows.loc[rows["role"] == VALIDATION, "generation"]) & without


def test_the_table_counts_each_row_once_and_names_the_worst(rows: pd.DataFrame) -> None:
    table = validation_table(rows)
    assert table["rows"].sum() == len(rows)
    azure = table[(table["source"] == "DeepSpeed on Azure (2022-07-26)") & (table["role"] == VALIDATION)].iloc[0]
    assert azure["rows"] == 35
    assert azure["worst_row"].startswith("GPT 530B, 512 GPUs, micro batch 1, 1024 tokens: -18%")
    assert azure["median"] <= azure["largest"] == pytest.approx(0.176, abs=0.005)
    assert {"pipeline", "tensor", "tensor and pipeline", "ZeRO-3", "HSDP", "data parallel"} <= set(table["kind"])
    assert set(table["stated"]) == {"", "recomputation not stated", "source warns of noise"}


TORCHTITAN = [
    # Layers, hidden size, feed-forward, GPU, GPUs, micro batch, recomputation, software, tokens/s a GPU, error of the time.
    # Source: pytorch/torchtitan docs/performance.md; 8,192 tokens; H100 of 96 GB with 2.4 TB/s.
    pytest.param(32, 4096, 14336, "A100", 64, 1, "selective", "fsdp_compiled", 2904, -0.13, id="8b-a100"),
    pytest.param(80, 8192, 28672, "A100", 64, 1, "full", "fsdp_compiled", 331, -0.11, id="70b-a100"),
    pytest.param(32, 4096, 14336, "H100", 8, 2, "selective", "fsdp", 5762, -0.01, id="8b-h100"),
    pytest.param(32, 4096, 14336, "H100", 8, 2, "selective", "fsdp_compiled", 6667, -0.02, id="8b-h100-compiled"),
]


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "gpu", "gpus", "micro", "recomputation", "software", "tokens_per_s", "error"),
    TORCHTITAN,
)
def test_a_source_that_no_constant_was_fitted_on(
    layers: int,
    hidden: int,
    ffn: int,
    gpu: str,
    gpus: int,
    micro: int,
    recomputation: Recomputation,
    software: str,
    tokens_per_s: float,
    error: float,
) -> None:
    shape = plain_shape(layers, hidden, 128256, num_kv_heads=8, ffn_hidden_size=ffn, gated=True, tie_embeddings=False)
    sustained = sustained_rates(gpu, SOFTWARE[software].own_kernels, "H100-SXM-96GB" if gpu == "H100" else "")
    machine = Machine(
        gpus_per_node=8,
        achievable_tflops=DEVICES[f"{gpu}-SXM-80GB"].achievable_tflops["bf16"],
        memory_gb_per_s=2039 if gpu == "A100" else 2400,
        link_gb_per_s=300 if gpu == "A100" else 450,
        network_gb_per_s=200,
        sustained_matrix=sustained.matrix,
        sustained_attention=sustained.attention,
    )
    setup = Setup(shape, 8192, micro, 1, gpus, zero_stage=3, recomputation=recomputation)
    words = "torch.compile" if software == "fsdp_compiled" else ""
    found = find_trainer("torchtitan", words, "bf16", 3, gpu=gpu).software
    assert found.name == software
    step_time_s = sum(step_parts(setup, machine, found).values())
    assert step_time_s / (micro * 8192 / tokens_per_s) - 1 == pytest.approx(error, abs=0.006)
