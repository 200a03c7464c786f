"""Cells as people write them: read where one thing is meant, told where not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hpctrain import cli
from hpctrain.plan.stated.cells import COLUMNS, read_cells
from hpctrain.plan.stated.spellings import usual_spelling
from hpctrain.plan.stated.table import plan_row

ROW = {
    "source": "somebody",
    "model": "Llama-2-13B",
    "seq_len": "4096",
    "gpu": "A100-80GB",
    "num_gpus": "64",
    "nodes": "8",
    "zero_stage": "3",
    "activation_ckpt": "full",
    "micro_batch_per_gpu": "2",
    "global_batch": "1024",
    "precision": "bf16",
}


@pytest.mark.parametrize(
    ("column", "typed", "read"),
    [
        ("num_gpus", "1,024", 1024),
        ("num_gpus", "1 024", 1024),
        ("num_gpus", "2 x 8", 16),
        ("num_gpus", "16 (2 nodes)", 16),
        ("global_batch", "4*64", 256),
        ("gpu_mem_gb", "80 GiB", 80),
        ("seq_len", "8k", 8192),
        ("seq_len", "2,048 tokens", 2048),
        ("params_b", "350M", 0.35),
        ("params_b", "1T", 1000),
        ("step_time_s", "350 ms", 0.35),
        ("mfu", "38.5%", 0.385),
        ("layers", "~32", 32),
        ("dp", "N/A", None),
        ("tp", "-", None),
        ("offload_param", "No", "none"),
        ("offload_optimizer", "yes", "cpu"),
        ("offload_optimizer", "local SSD", "nvme"),
        ("activation_ckpt", "None", "none"),
        ("activation_ckpt", "True", "full"),
        ("activation_ckpt", "full recompute", "full"),
        ("activation_ckpt", "selective op", "selective"),
        ("zero_stage", "ZeRO-3", 3),
        ("zero_stage", "FULL_SHARD", 3),
        ("zero_stage", "SHARD_GRAD_OP", 2),
        ("zero_stage", "distributed optimizer", 1),
        ("zero_stage", "DDP", 0),
        ("tflops_convention", "Model FLOPs (PaLM)", "model flops"),
        ("tflops_convention", "HFU", "hardware incl. recompute"),
        ("tflops_convention", "megatron (recomputation counted)", "hardware incl. recompute"),
        ("tflops_convention", "incl. recomputation", "hardware incl. recompute"),
        ("tflops_convention", "excluding activation recomputation", "model flops"),
        ("tflops_convention", "recomputation not counted", "recomputation not counted"),
        ("tflops_convention", "unknown", "unknown"),
        ("precision", "bfloat16", "bf16"),
        ("precision", "bf16-mixed", "bf16-mixed"),
    ],
)
def test_spellings(column: str, typed: str, read: str | float | None) -> None:
    assert read_cells({column: typed})[column] == (pytest.approx(read) if isinstance(read, float) else read)


@pytest.mark.parametrize(
    ("column", "typed"),
    [("layers", "2 x 16"), ("layers", "32 heads"), ("tp", "two"), ("seq_len", "8 k tokens"), ("mfu", "1.2.3%")],
)
def test_what_is_not_sure_stays(column: str, typed: str) -> None:
    assert usual_spelling(column, typed) == typed


@pytest.mark.parametrize(
    ("changes", "same_as"),
    [
        ({"zero_stage": "FSDP"}, {"notes": "FSDP"}),
        ({"zero_stage": "HSDP"}, {"notes": "FSDP; HSDP"}),
        ({"num_gpus": "8 x 8", "global_batch": "1,024", "activation_ckpt": "yes"}, {}),
    ],
)
def test_a_row_of_words_is_planned_as_one_of_numbers(changes: dict[str, str], same_as: dict[str, str]) -> None:
    assert plan_row(ROW | changes, "row 1").step_time_s == plan_row(ROW | same_as, "row 1").step_time_s


def test_columns_that_are_not_there_are_not_stated(tmp_path: Path) -> None:
    """A table without its results, or with what a run needs alone, is planned as one whose cells are empty."""
    answers = []
    for names in (COLUMNS, list(ROW)):
        table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
        with table.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, names, restval="")
            writer.writeheader()
            writer.writerow(ROW)
        assert cli.run(["plan", "--table", str(table), "-o", str(output)]) == 0
        with output.open(newline="") as stream:
            (row,) = csv.DictReader(stream)
        answers.append({name: row[name] for name in row if name.startswith("pred")})
    assert answers[0] == answers[1]
    assert float(answers[0]["pred_step_time_s"]) > 0
