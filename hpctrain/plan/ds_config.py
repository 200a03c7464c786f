"""The DeepSpeed JSON of a run, complete: no ``auto``, no key that the engine would ignore."""

from __future__ import annotations

from typing import Any

from hpctrain.config.schema import ParallelismConfig, Precision, TrainingConfig
from hpctrain.plan.layout import Batch

LEAF_MODULE = "hpctrain.worker.model.decoder.Block"
"""Gathered as one unit in stage 3: fewer collectives, and the block can be compiled whole."""


_DEFAULT_REDUCE_BUCKET = 500_000_000
"""Elements. Source: DeepSpeed 0.19.8, runtime/zero/config.py."""


def reduce_bucket_elements(parallelism: ParallelismConfig, num_parameters: int) -> int:
    """Size of the gradient bucket, in elements."""
    return parallelism.reduce_bucket_size or min(_DEFAULT_REDUCE_BUCKET, num_parameters)


def build_ds_config(
    num_parameters: int,
    batch: Batch,
    parallelism: ParallelismConfig,
    training: TrainingConfig,
    precision: Precision,
    use_cuda: bool,
) -> dict[str, Any]:
    """The dict that ``deepspeed.initialize`` gets; keys as in DeepSpeed 0.19, sizes in elements."""
    config: dict[str, Any] = {
        "train_batch_size": batch.global_batch_size,
        "train_micro_batch_size_per_gpu": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "gradient_clipping": training.gradient_clipping,
        "steps_per_print": 2**31 - 1,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": training.learning_rate,
                "betas": [training.beta1, training.beta2],
                "eps": training.eps,
                "weight_decay": training.weight_decay,
                **_optimizer_kernel(parallelism, use_cuda),
            },
        },
        "zero_optimization": _zero_section(num_parameters, parallelism, use_cuda),
    }
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    if parallelism.offload_optimizer == "cpu":
        # Without it DeepSpeed refuses torch's own Adam beside offload.
        config["zero_force_ds_cpu_optimizer"] = use_cuda
    return config


def _optimizer_kernel(parallelism: ParallelismConfig, use_cuda: bool) -> dict[str, bool]:
    """torch's AdamW needs no compiler; with offload on a GPU node DeepSpeed's vectorised CPU Adam is worth building."""
    if parallelism.offload_optimizer == "cpu" and use_cuda:
        return {}
    return {"torch_adam": True, "fused": True} if use_cuda else {"torch_adam": True}


def _zero_section(num_parameters: int, parallelism: ParallelismConfig, use_cuda: bool) -> dict[str, Any]:
    pin_memory = parallelism.pin_memory and use_cuda
    section: dict[str, Any] = {
        "stage": parallelism.zero_stage,
        "reduce_bucket_size": reduce_bucket_elements(parallelism, num_parameters),
        "allgather_bucket_size": parallelism.allgather_bucket_size,
        "overlap_comm": parallelism.overlap_comm,
        "contiguous_gradients": True,
    }
    if parallelism.offload_optimizer == "cpu":
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": pin_memory}
    if parallelism.zero_stage == 3:
        section |= {
            "stage3_prefetch_bucket_size": parallelism.prefetch_bucket_size,
            "stage3_param_persistence_threshold": parallelism.param_persistence_threshold,
            "stage3_max_live_parameters": parallelism.max_live_parameters,
            "stage3_max_reuse_distance": parallelism.max_reuse_distance,
            "sub_group_size": parallelism.sub_group_size,
            "leaf_module": {"classes": [LEAF_MODULE]},
        }
        if parallelism.offload_param == "cpu":
            section["offload_param"] = {"device": "cpu", "pin_memory": pin_memory}
    return section
