"""Fits that arithmetic or a published run decides beyond doubt, through the path of ``plan --table``.

Refused: the states alone exceed the GPU. Fits: known runs, and plain ones far below the limit.
"""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.plan.stated.cells import COLUMNS
from hpctrain.plan.stated.table import plan_row

LLAMA_7B = {
    "model": "Llama-2-7B",
    "params_b": 6.74,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 32,
    "ffn_hidden": 11008,
    "vocab": 32000,
}
LLAMA_13B = LLAMA_7B | {"model": "Llama-2-13B", "params_b": 13, "layers": 40, "hidden": 5120, "heads": 40}
LLAMA_13B |= {"kv_heads": 40, "ffn_hidden": 13824}
LLAMA_8B = LLAMA_7B | {"model": "Llama-3-8B", "params_b": 8.03, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256}
LLAMA_70B = LLAMA_8B | {"model": "Llama-3-70B", "params_b": 70.6, "layers": 80, "hidden": 8192, "heads": 64}
LLAMA_70B |= {"ffn_hidden": 28672}
LLAMA_405B = LLAMA_70B | {"model": "Llama-3.1-405B", "params_b": 405, "layers": 126, "hidden": 16384, "heads": 128}
LLAMA_405B |= {"ffn_hidden": 53248}
GPT_175B = {"model": "GPT-3 175B", "params_b": 175, "layers": 96, "hidden": 12288, "heads": 96, "vocab": 51200}
GPT_13B = {"model": "GPT 13B", "params_b": 13, "layers": 40, "hidden": 5120, "heads": 40, "vocab": 50257}
GPT_1T = {"model": "GPT 1T", "params_b": 1008, "layers": 128, "hidden": 25600, "heads": 160, "vocab": 51200}
NEOX_20B = {"model": "GPT-NeoX-20B", "params_b": 20.6, "layers": 44, "hidden": 6144, "heads": 64, "vocab": 50432}
FALCON_180B = {"model": "Falcon-180B", "params_b": 180, "layers": 80, "hidden": 14848, "heads": 232, "kv_heads": 8}
A100, A100_40, H100, V100 = "A100-SXM-80GB", "A100-SXM-40GB", "H100-SXM-80GB", "V100-SXM-32GB"
ON_HOST = {"offload_optimizer": "cpu", "offload_param": "cpu"}
FSDP = {"source": "PyTorch FSDP", "zero_stage": 3}
ZERO_3 = {"source": "DeepSpeed", "zero_stage": 3}
MEGATRON = {"source": "Megatron-Core", "zero_stage": 1}
NEMO = MEGATRON | {"source": "NeMo", "activation_ckpt": "none", "seq_len": 8192}


def planned(model: dict[str, Any], gpu: str, num_gpus: int, settings: dict[str, Any]) -> str:
    """``pred_fits`` of one row; nothing offloaded, full recomputation, micro batch 1 of 2,048 tokens unless stated."""
    row: dict[str, Any] = {
        "offload_optimizer": "none",
        "offload_param": "none",
        "activation_ckpt": "full",
        "micro_batch_per_gpu": 1,
        "seq_len": 2048,
        "tp": 1,
        "pp": 1,
        "precision": "bf16",
        "gpu": gpu,
        "num_gpus": num_gpus,
        **model,
        **settings,
    }
    plan = plan_row({name: str(row.get(name, "")) for name in COLUMNS}, "row 1")
    return {True: "fits", False: "refused", None: plan.problem}[plan.fits]


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "settings"),
    [
        # 16 to 18 bytes a parameter, over the ranks that share them, against the GPU's memory.
        pytest.param(LLAMA_7B, A100, 8, FSDP | {"zero_stage": 0}, id="7b-ddp"),
        pytest.param(LLAMA_7B, A100, 1, FSDP, id="7b-fsdp-alone"),
        pytest.param(LLAMA_7B, A100, 1, ZERO_3, id="7b-zero3-alone"),
        pytest.param(LLAMA_7B, "GH200-96GB", 1, ZERO_3 | {"zero_stage": 0}, id="7b-gh200"),
        pytest.param(LLAMA_7B, "V100-SXM-16GB", 4, ZERO_3 | {"seq_len": 512}, id="7b-four-v100"),
        pytest.param(LLAMA_8B, H100, 1, FSDP, id="8b-h100-alone"),
        pytest.param(LLAMA_13B, "MI300X-192GB", 1, MEGATRON | {"zero_stage": 0}, id="13b-mi300x"),
        pytest.param(LLAMA_13B, "A100-PCIE-40GB", 4, ZERO_3, id="13b-four-a100"),
        pytest.param(GPT_13B, V100, 16, ZERO_3 | {"zero_stage": 2, "seq_len": 1024}, id="13b-zero2"),
        pytest.param(LLAMA_70B, H100, 8, FSDP, id="70b-one-node"),
        pytest.param(LLAMA_405B, "GB200-186GB", 8, FSDP, id="405b-eight-gb200"),
        pytest.param(GPT_175B, H100, 64, MEGATRON | {"tp": 8}, id="175b-tp8"),
        pytest.param(
            GPT_175B, "MI250X-GCD-64GB", 8, MEGATRON | {"tp": 8, "precision": "fp16"}, id="175b-one-frontier-node"
        ),
        # Without recomputation a block of 8B keeps 8,192 x (16,384 + 10,240 + 57,344) x 2 bytes: 1.4 GB a sequence, 44 in all.
        pytest.param(
            LLAMA_8B,
            A100_40,
            8,
            FSDP | {"activation_ckpt": "none", "seq_len": 8192, "micro_batch_per_gpu": 4},
            id="8b-activations",
        ),
    ],
)
def test_refused(model: dict[str, Any], gpu: str, num_gpus: int, settings: dict[str, Any]) -> None:
    assert planned(model, gpu, num_gpus, settings) == "refused"


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "settings"),
    [
        pytest.param(LLAMA_7B, A100, 8, FSDP | {"activation_ckpt": "none", "seq_len": 4096}, id="7b-fsdp"),
        pytest.param(LLAMA_7B, A100_40, 8, ZERO_3 | {"source": "HF Trainer"}, id="7b-zero3"),
        pytest.param(LLAMA_7B, A100_40, 8, ZERO_3 | {"zero_stage": 2}, id="7b-zero2"),
        pytest.param(LLAMA_7B, A100_40, 1, ZERO_3 | ON_HOST, id="7b-all-on-the-host"),
        pytest.param(LLAMA_7B, V100, 8, ZERO_3 | {"seq_len": 512, "precision": "fp16"}, id="7b-eight-v100"),
        pytest.param(LLAMA_7B, "GH200-96GB", 1, ZERO_3 | {"offload_optimizer": "cpu"}, id="7b-gh200"),
        pytest.param(LLAMA_7B, "B200-SXM-180GB", 1, MEGATRON | {"zero_stage": 0, "seq_len": 4096}, id="7b-b200-alone"),
        pytest.param(LLAMA_7B, "MAX-1550-128GB", 8, FSDP | {"seq_len": 4096}, id="7b-max"),
        pytest.param(LLAMA_13B, "A100-PCIE-40GB", 4, ZERO_3 | {"offload_optimizer": "cpu"}, id="13b-optimizer-on-the-host"),
        pytest.param(GPT_13B, V100, 16, ZERO_3 | {"seq_len": 1024, "precision": "fp16"}, id="13b-zero3"),
        pytest.param(LLAMA_70B, H100, 64, FSDP | {"seq_len": 8192}, id="70b-fsdp"),
        pytest.param(LLAMA_70B, A100, 8, ZERO_3 | ON_HOST, id="70b-all-on-the-host"),
        # Published runs.
        pytest.param(LLAMA_8B, H100, 8, FSDP | {"activation_ckpt": "selective", "seq_len": 8192}, id="torchtitan-8b"),
        pytest.param(LLAMA_8B, H100, 8, NEMO | {"cp_sp": 2}, id="nemo-8b"),
        pytest.param(LLAMA_70B, H100, 64, NEMO | {"tp": 4, "pp": 4, "cp_sp": 2, "global_batch": 128}, id="nemo-70b"),
        pytest.param(
            NEOX_20B, A100_40, 96, MEGATRON | {"tp": 2, "pp": 4, "micro_batch_per_gpu": 4, "global_batch": 1536}, id="neox-20b"
        ),
        pytest.param(
            FALCON_180B, A100_40, 4096, MEGATRON | {"tp": 8, "pp": 8, "global_batch": 2048, "activation_ckpt": "selective"},
            id="falcon-180b",
        ),
        pytest.param(GPT_175B, H100, 1024, MEGATRON | {"tp": 8, "pp": 8, "global_batch": 1024}, id="175b-3d"),
        pytest.param(
            GPT_175B, "MI250X-GCD-64GB", 128, MEGATRON | {"tp": 8, "pp": 16, "global_batch": 256}, id="175b-frontier"
        ),
        pytest.param(
            GPT_1T, "MI250X-GCD-64GB", 1024, MEGATRON | {"tp": 8, "pp": 64, "global_batch": 256}, id="1t-frontier"
        ),
        pytest.param(
            GPT_1T, V100, 512, ZERO_3 | {"tp": 4, "offload_optimizer": "nvme", "offload_param": "nvme", "seq_len": 1024},
            id="1t-zero-infinity",
        ),
    ],
)  # fmt: skip
def test_fits(model: dict[str, Any], gpu: str, num_gpus: int, settings: dict[str, Any]) -> None:
    assert planned(model, gpu, num_gpus, settings) == "fits"


def test_what_is_near_the_limit_is_left_open() -> None:
    """530B with ZeRO-3 and micro batch 4 ran out of memory on 560 A100 and ran on 640 (arXiv 2104.04473, section 5.2)."""
    model = {"model": "GPT 530B", "params_b": 529.6, "layers": 105, "hidden": 20480, "heads": 128, "vocab": 51200}
    settings = ZERO_3 | {"source": "Megatron-LM SC21", "micro_batch_per_gpu": 4, "precision": "fp16"}
    assert "too near to the limit to be told: 77" in planned(model, A100, 560, settings)
    assert "too near to the limit to be told: 76" in planned(model, A100, 640, settings)
    assert planned(model, A100, 1120, settings) == "fits"


def test_a_fit_that_the_row_does_not_tell_is_left_open() -> None:
    problem = planned(LLAMA_7B, H100, 8, {"zero_stage": ""})
    assert "fits with states sharded in stage 1, which the row does not state" in problem
