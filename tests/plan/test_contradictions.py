"""Rows whose cells go against each other: each is told in ``problem``, the rest of the row and of the table is planned."""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpctrain.plan.stated.cells import COLUMNS
from hpctrain.plan.stated.table import ADDED, plan_rows
from tests.cli.test_plan_bad_input import ROW as PLAIN

ROW = PLAIN | {"nodes": "4", "precision": "bf16"}
PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
HOST = {"offload_optimizer": "cpu", "offload_param": "cpu"}


def answers_of(*changes: Mapping[str, str]) -> list[dict[str, str]]:
    rows = [[(ROW | dict(change)).get(name, "") for name in COLUMNS] for change in changes]
    return [dict(zip([*COLUMNS, *ADDED], row, strict=True)) for row in list(plan_rows(COLUMNS, rows, "t.csv"))[1:]]


TOLD_AND_PLANNED = [
    (
        {"global_batch": "100"},
        "global_batch=100: is no multiple of micro_batch_per_gpu x dp = 2 x 32; taken: 2 micro steps",
    ),
    ({"global_batch": "65"}, "is no multiple of micro_batch_per_gpu x dp = 2 x 32; taken: 1 micro step of 2 x 32"),
    ({"global_batch": "100", "micro_batch_per_gpu": ""}, "global_batch=100: is no multiple of dp=32"),
    (
        {"global_batch": "100", "tp": "4", "zero_stage": "1", "dp": "8"},
        "is no multiple of micro_batch_per_gpu x dp = 2 x 8; taken: 6 micro steps of 2 x 8",
    ),
    (
        {"model": "GPT-2 1.5B", "layers": "48", "hidden": "1600", "heads": "25"},
        "seq_len=2048: is longer than the 1,024 positions of model=GPT-2 1.5B; the plan is of a model with 2,048",
    ),
    ({"model": "facebook/opt-13b", "seq_len": "4096"}, "is longer than the 2,048 positions of model=facebook/opt-13b"),
    ({"notes": "max_position_embeddings: 1024"}, "seq_len=2048: is longer than the 1,024 positions of the notes"),
    (
        {**HOST, "zero_stage": "2"},
        "offload_param=cpu: needs ZeRO stage 3, and zero_stage=2; parameters are taken to stay",
    ),
    ({"offload_param": "cpu", "zero_stage": "1"}, "offload_param=cpu: needs ZeRO stage 3, and zero_stage=1"),
    (
        {"offload_optimizer": "nvme", "zero_stage": "2"},
        "NVMe needs ZeRO stage 3, and zero_stage=2; host memory is taken",
    ),
    (
        {"offload_optimizer": "cpu", "zero_stage": "DDP", "hidden": "512", "heads": "8"},
        "offload_optimizer=cpu: needs a ZeRO stage, and zero_stage=0",
    ),
    (
        {"nodes": "1"},
        "nodes=1: leaves 32 of num_gpus=32 to a node, and none has more than 16; the usual ones are taken",
    ),
    ({"nodes": "5"}, "nodes=5: does not divide num_gpus=32; all nodes are taken to be as full as the fullest"),
    ({"tp": "16", "dp": "2", "zero_stage": "1"}, "tp=16: does not divide heads=40; shares of 2.5 heads are taken"),
    ({"cp_sp": "32", "dp": "1", "seq_len": "1000", "global_batch": "2"}, "cp_sp=32: does not divide seq_len=1000"),
    ({"pp": "4", "dp": "8"}, "pp=4: DeepSpeed's pipeline takes ZeRO stages 0 and 1, and zero_stage=3"),
    (
        {"model": "Llama-3-70B"},
        "model=Llama-3-70B: has layers=80, hidden=8192, heads=64; layers=40, hidden=5120, heads=40",
    ),
    ({"precision": "fp8"}, "precision=fp8: A100-SXM-80GB has no fp8, and 16 bit is taken"),
    ({"precision": "int8"}, "precision=int8: is no data type of training; 16 bit is taken"),
    ({"precision": "int16"}, "precision=int16: is no data type of training; 16 bit is taken"),
    (
        {"gpu": "V100-32GB", "activation_ckpt": "full"},
        "precision=bf16: V100-SXM-32GB has no bf16, and fp16 is taken",
    ),
    ({"gpu": "A100/H100"}, "gpu=A100/H100: names 2 GPUs, and H100-SXM-80GB is taken; a row for each"),
    ({"gpu_mem_gb": "40"}, "gpu_mem_gb=40: gpu=A100-80GB has 80 GB, and that is taken"),
    ({"mfu": "47"}, "mfu=47: is a share of the peak, at most 1; if it is in per cent: 0.47"),
    ({"tflops_per_gpu": "400"}, "tflops_per_gpu=400: is above the peak of A100-SXM-80GB, 312"),
    ({"peak_mem_gb": "95"}, "peak_mem_gb=95: is more than A100-SXM-80GB has, 80 GB"),
    (
        {"notes": "cpu_checkpointing: true", "activation_ckpt": "none"},
        "activation_ckpt=none: the notes have block inputs",
    ),
    (
        {"notes": "ZeRO++ with hpZ", "zero_stage": "1", "tp": "4", "dp": "8"},
        "zero_stage=1: the notes name ZeRO++, which works in stage 3",
    ),
    ({"params_b": "70"}, "params_b=70: layers=40 of hidden=5120 have 13.1 billion parameters"),
]


@pytest.mark.parametrize(("changes", "told"), TOLD_AND_PLANNED, ids=[told[:50] for _, told in TOLD_AND_PLANNED])
def test_what_goes_against_the_rest_is_told_and_the_row_is_planned(changes: dict[str, str], told: str) -> None:
    first, second = answers_of(changes, {})
    assert first["problem"].startswith("t.csv row 1: ")
    assert told in first["problem"]
    assert float(first["pred_step_time_s"]) > 0
    assert float(first["pred_peak_mem_gb"]) > 0
    assert (second["problem"], second["pred_fits"]) == ("", "true")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dp": "16"}, "tp x pp x sp x dp = 1 x 1 x 1 x 16 is not num_gpus=32"),
        ({"tp": "3"}, "tp x pp x sp x dp = 3 x 1 x 1 x 10 is not num_gpus=32"),
        ({"nodes": "64"}, "nodes=64 is more than num_gpus=32"),
        ({"vocab": "1"}, "vocab=1: must be a whole number from 2 to"),
        ({"hidden": "51,20"}, "hidden=51,20: is no number"),
        ({"hidden": "5.120"}, "hidden=5.120: must be a whole number"),
        ({"layers": "-40", "micro_batch_per_gpu": "0"}, "micro_batch_per_gpu=0: must be a whole number from 1"),
        ({"num_gpus": "", "nodes": "", "zero_stage": ""}, "does not state num_gpus"),
    ],
)
def test_what_no_run_can_be_is_told_without_a_plan(changes: dict[str, str], told: str) -> None:
    first, second = answers_of(changes, {})
    assert told in first["problem"]
    assert (first["pred_step_time_s"], first["pred_peak_mem_gb"], first["pred_fits"]) == ("", "", "")
    assert second["pred_fits"] == "true"


def test_parameters_that_cannot_leave_the_gpu_count_there() -> None:
    # 13e9 parameters of 2 bytes, 24 GiB, that stage 2 keeps whole on each GPU, and offload_param would have moved.
    dropped, plain = answers_of({**HOST, "zero_stage": "2"}, {"offload_optimizer": "cpu", "zero_stage": "2"})
    assert dropped["pred_peak_mem_gb"] == plain["pred_peak_mem_gb"]
    assert float(plain["pred_peak_mem_gb"]) > 24
    # FSDP moves parameters however it shards them.
    (fsdp,) = answers_of({"source": "torchtitan FSDP", "zero_stage": "SHARD_GRAD_OP", "offload_param": "cpu"})
    assert "offload_param" not in fsdp["problem"]


def test_longer_sequences_of_rotary_models_are_no_contradiction() -> None:
    (llama,) = answers_of({"model": "Llama-2-13B", "notes": "max_position_embeddings=1024"})
    assert "positions" not in llama["problem"]


def test_what_is_left_out_follows_from_nodes_and_offload() -> None:
    stated, of_nodes, param, optimizer = answers_of(
        {}, {"num_gpus": ""}, {**HOST, "zero_stage": ""}, {"offload_optimizer": "cpu", "zero_stage": ""}
    )
    assert of_nodes["pred_step_time_s"] == stated["pred_step_time_s"]
    assert "8 GPUs a node" in of_nodes["pred_assumptions"]
    assert "ZeRO stage 3, since states are offloaded" in param["pred_assumptions"]
    assert param["pred_fits"] == "true"
    # The optimizer is offloaded in stages 1 and 3 as well, so a fit in stage 2 is not one of the row.
    assert optimizer["pred_fits"] == ""
    assert "fits with ZeRO stage 2, which the row does not state" in optimizer["problem"]
    (giga,) = answers_of({"gpu": "GH200", "num_gpus": "", "nodes": "8"})
    assert "4 GPUs a node" in giga["pred_assumptions"]


def test_published_rows_contradict_themselves_nowhere() -> None:
    """990 rows that somebody measured; what is told of them is what they leave out, or that degrees do not multiply."""
    told = list[str]()
    for path in sorted(PUBLISHED.glob("*.csv")):
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header, *rows = csv.reader(stream)
        place = len(header) + ADDED.index("problem")
        told += [row[place] for row in list(plan_rows(header, rows, path.name))[1:] if row[place]]
    beside_degrees = (
        "no multiple|positions of|needs ZeRO|needs a ZeRO|leaves |does not divide|pipeline takes|has layers"
    )
    of_cells = "has hidden|names 2|at most 1|above the peak|is more than|the notes "
    words = f"{beside_degrees}|{of_cells}".split("|")
    assert [problem for problem in told if any(word in problem for word in words)] == []


ODD = [
    "",
    "0",
    "-1",
    "nan",
    "1e9",
    "3",
    "7",
    "1,024",
    "2 x 8",
    "abc",
    "１２",
    "=1+1",
    "cpu",
    "fp8",
    "GPT-2",
    "\x1b[31m",
    "none",
]


def test_no_row_of_odd_cells_ends_the_table_or_goes_without_a_word() -> None:
    """200 rows with two cells each that are none, or another column's."""
    pairs = list(itertools.combinations(COLUMNS[:-1], 2))
    choose = random.Random(7)
    changes = [{name: choose.choice(ODD) for name in pair} for pair in choose.sample(pairs, 200)]
    for change, answer in zip(changes, answers_of(*changes), strict=True):
        assert answer["pred_step_time_s"] or answer["problem"], change
        assert all(answer[name] == change[name] for name in change)
        if answer["pred_step_time_s"]:
            assert 0 < float(answer["pred_step_time_s"]) < 1e9, change
        assert "\n" not in answer["problem"]
