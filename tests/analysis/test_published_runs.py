"""Rows of the published files, resolved to what the planner's core takes."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.analysis.published_runs import published_run, row_shape
from hpctrain.errors import ConfigError

ROW: dict[str, Any] = {
    "source": "somebody",
    "model": "GPT 7B",
    "params_b": 6.7,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "vocab": 50304,
    "seq_len": 2048,
    "gpu": "A100-SXM-80GB",
    "gpu_mem_gb": 80,
    "num_gpus": 32,
    "nodes": 4,
    "tp": 2,
    "pp": 2,
    "dp": 8,
    "zero_stage": 1,
    "activation_ckpt": "full",
    "micro_batch_per_gpu": 2,
    "global_batch": 64,
    "precision": "bf16",
    "tflops_convention": "model flops",
    "notes": "EXACT",
}


def test_a_row_that_states_everything() -> None:
    run = published_run(ROW)
    setup = run.setup
    assert (setup.tensor_degree, setup.pipeline_degree, setup.data_degree, setup.zero_stage) == (2, 2, 8, 1)
    assert (setup.micro_batch_size, setup.num_micro_steps, setup.recomputation) == (2, 4, "full")
    assert (run.machine.achievable_tflops, run.machine.gpus_per_node, run.machine.network_gb_per_s) == (271.2, 8, 200)
    assert (run.num_parameters, run.convention, run.software.name) == (6.7e9, "palm", "megatron")
    assert run.assumptions == ("network 1600 Gb/s a node",)


@pytest.mark.parametrize(
    ("changes", "assumptions"),
    [
        ({"activation_ckpt": None}, ("recomputation none", "network 1600 Gb/s a node")),
        ({"notes": "EXACT; network 400 Gb/s a node"}, ()),
        (
            {"gpu": "V100-SXM2-32GB", "gpu_mem_gb": 32, "precision": "fp16"},
            ("matmul rate of 85% of the peak", "network 400 Gb/s a node"),
        ),
        (
            {"micro_batch_per_gpu": 48, "global_batch": 1536, "zero_stage": 3, "tp": 1, "pp": 1, "dp": 32},
            (
                "network 1600 Gb/s a node",
                "optimizer on the host, since it does not fit otherwise",
                "block inputs on the host, since it does not fit otherwise",
            ),
        ),
    ],
    ids=["recomputation", "network-stated", "no-measured-rate", "activations"],
)
def test_what_is_assumed_is_told(changes: dict[str, Any], assumptions: tuple[str, ...]) -> None:
    assert published_run(ROW | changes).assumptions == assumptions


def test_the_stated_network_counts() -> None:
    assert published_run(ROW | {"notes": "EXACT; network 400 Gb/s a node"}).machine.network_gb_per_s == 50


@pytest.mark.parametrize(
    ("notes", "stages"),
    [
        ("EXACT; interleaved schedule, 4 layers a virtual stage", 4),
        ("EXACT; interleaved schedule, 1 layer a virtual stage", 16),
        ("EXACT; interleaved schedule, 2 virtual stages", 2),
        ("EXACT 3D Interleaved 1F1B", 2),
        ("EXACT", 1),
    ],
)
def test_virtual_stages(notes: str, stages: int) -> None:
    # 16 layers a pipeline rank.
    assert published_run(ROW | {"notes": notes}).setup.virtual_stages == stages


@pytest.mark.parametrize(
    ("source", "changes", "generation"),
    [
        ("DeepSpeed on Azure (2022-07-26)", {}, "deepspeed_2022"),
        ("mosaicml/llm-foundry", {}, "fsdp"),
        ("fms-fsdp (IBM)", {"notes": "EXACT; torch.compile"}, "fsdp_compiled"),
        ("fms-fsdp (IBM)", {"notes": "EXACT; no torch.compile (2024-02)"}, "fsdp"),
        ("Megatron-LM SC21 (arXiv 2104.04473 Table 1)", {}, "megatron_2021"),
        ("Megatron-LM SC21 (arXiv 2104.04473 Table 2)", {"zero_stage": 3}, "deepspeed_2021"),
        ("BigScience (BLOOM tuning)", {}, "megatron_deepspeed_2022"),
        ("BigScience (V100 experiments)", {"zero_stage": 3}, "deepspeed_2021"),
        ("Nanotron / HF Ultra-Scale Playbook", {}, "nanotron"),
        ("somebody", {"zero_stage": 3}, "deepspeed"),
        ("somebody", {}, "megatron"),
    ],
)
def test_generations(source: str, changes: dict[str, Any], generation: str) -> None:
    assert published_run(ROW | {"source": source} | changes).software.name == generation


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": None, "gpu": None}, "row: does not state layers, gpu"),
        ({"tp": None, "pp": None, "dp": None}, "row: does not state tp, pp, dp"),
        ({"dp": 4}, r"tp x pp x sp x dp = 2 x 2 x 1 x 4 is not num_gpus=32"),
        ({"gpu": "TITAN V"}, "gpu=TITAN V with 80 GB: is not in the device table"),
        ({"heads": 7}, "model.num_heads=7: must divide model.hidden_size=4096"),
        ({"model": "Mixtral-8x7B"}, "model=Mixtral-8x7B is sparse, the planner knows dense decoders"),
        ({"tflops_convention": "guessed"}, "tflops_convention=guessed: is no convention of the published files"),
    ],
    ids=["missing", "degrees", "degrees-contradict", "gpu", "heads", "sparse", "convention"],
)
def test_rows_that_cannot_be_resolved(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        published_run(ROW | changes)


def test_the_table_is_tied_or_not_as_the_parameters_say() -> None:
    base = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256}
    untied, parameters = row_shape(base | {"model": "Llama-3-8B", "params_b": 8.03})
    assert not untied.tie_embeddings
    assert untied.num_parameters == pytest.approx(8.03e9, rel=1e-3)
    assert parameters == pytest.approx(8.03e9)
    tied, parameters = row_shape(base | {"model": "Llama-like", "params_b": 7.5})
    assert tied.tie_embeddings
    # Where the parameters are not stated a gated model has two tables, another one.
    assert row_shape(base | {"model": "Llama-like"})[1] == untied.num_parameters
    assert row_shape(base | {"model": "GPT"})[0].tie_embeddings


def test_attention_wider_than_the_hidden_size() -> None:
    # AngelPTM's 28B: 26·16·8192² = 27.92e9 and the tables.
    shape, _ = row_shape(
        {
            "model": "GPT 28B",
            "layers": 26,
            "hidden": 8192,
            "heads": 128,
            "notes": "attention width 16384 = 2h",
            "params_b": 27.9,
        }
    )
    assert (shape.head_dim, shape.attention_width) == (128, 16384)
    assert shape.num_parameters == pytest.approx(28.35e9, rel=2e-3)
