"""AngelPTM's largest models of one node, as our planner answers the same question: ``plan --largest``.

No sequence length or micro batch is needed, and none is published for both systems: host memory binds. What is published of the
two is their shapes, and that the community version keeps all states in host memory and AngelPTM some on the GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hpctrain.analysis.published_runs import gpu_memory_gib, row_shape, text_of
from hpctrain.config.schema import (
    ClusterConfig,
    Config,
    DataConfig,
    HardwareConfig,
    ModelConfig,
    ParallelismConfig,
    RunConfig,
    TrainingConfig,
)
from hpctrain.plan.devices import find_device
from hpctrain.plan.questions.largest import LargestModel, largest_model
from hpctrain.plan.questions.other_trainer import largest_of_trainer
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.stated.known_hosts import host_memory_gb_per_s

THEN = "megatron_deepspeed_2022"
"""The trainer whose memory stands for the community version of the documentation (DeepSpeed 0.8.1 under Megatron-DeepSpeed)."""
_NAME = "published"
_PLAIN = ParallelismConfig("zero3_offload", 3, offload_optimizer="cpu", offload_param="cpu")
_UNIFIED = ParallelismConfig("zero_cache", 3, offload_optimizer="cpu", fit_offload_ratio=True)


def predicted_sizes(sizes: pd.DataFrame, host_memory_gib: float) -> pd.DataFrame:
    """Predicted largest models, a row each: ``label``, ``own_model`` (the width), ``layers``, ``params_b``, ``published_b``.

    ``published_b`` is missing where nothing of the kind is published: plain offload under the engine of today.

    Args:
        sizes: of ``angelptm_figures.size_rows``: the community version's largest model, then AngelPTM's.
        host_memory_gib: of a node.
    """
    community, angelptm = sizes.to_dict("records")
    plain, unified = (_config(community, _PLAIN, host_memory_gib), _config(angelptm, _UNIFIED, host_memory_gib))
    answers = [
        ("plan, DeepSpeed then", community, largest_of_trainer(plain, THEN), community["params_b"]),
        ("plan, plain offload", community, largest_model(plain, build_run_plan), pd.NA),
        ("plan, zero_cache", angelptm, largest_model(unified, build_run_plan), angelptm["params_b"]),
    ]
    return pd.DataFrame(
        [
            {
                "label": label,
                "own_model": row["own_model"],
                "layers": _layers(answer),
                "params_b": _params_b(answer),
                "published_b": published,
            }
            for label, row, answer, published in answers
        ]
    ).astype(
        {"label": "string", "own_model": "string", "layers": "Int64", "params_b": "Float64", "published_b": "Float64"}
    )


def _layers(answer: LargestModel) -> int | None:
    return None if answer.largest is None else answer.largest.num_layers


def _params_b(answer: LargestModel) -> float | None:
    return None if answer.largest is None else answer.largest.num_parameters / 1e9


def _config(row: Mapping[Any, Any], parallelism: ParallelismConfig, host_memory_gib: float) -> Config:
    """One node of the row, and its width."""
    shape, _ = row_shape(row)
    gpus = int(row["num_gpus"]) // int(row["nodes"])
    device = find_device(text_of(row, "gpu"))
    hardware = HardwareConfig(
        name=_NAME,
        device="cuda",
        gpu=text_of(row, "gpu"),
        gpus_per_node=gpus,
        cpu="not stated",
        cpu_cores_per_node=None,
        host_memory_gib=host_memory_gib,
        default_precision="bf16",
        gpu_memory_gib=gpu_memory_gib(row),
        # No size depends on these; a plan asks for them.
        gpu_memory_gb_per_s=device.memory_gb_per_s,
        intra_node_gb_per_s=device.link_gb_per_s,
        host_link_gb_per_s=device.host_link_gb_per_s,
        host_memory_gb_per_s=host_memory_gb_per_s(device.family),
    )
    model = ModelConfig(
        name=row["own_model"],
        architecture=shape.architecture,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        vocab_size=shape.vocab_size,
        max_seq_len=shape.max_seq_len,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        ffn_hidden_size=shape.ffn_hidden_size,
        tie_embeddings=shape.tie_embeddings,
    )
    return Config(
        nodes=1,
        model=model,
        parallelism=parallelism,
        hardware=hardware,
        cluster=ClusterConfig(_NAME, "local"),
        training=TrainingConfig(_NAME, num_steps=1),
        data=DataConfig(_NAME, "synthetic"),
        run=RunConfig(),
    )
