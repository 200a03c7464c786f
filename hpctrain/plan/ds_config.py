"""The DeepSpeed JSON of a run, complete: no ``auto``, no key that the engine would ignore."""

from __future__ import annotations

from typing import Any

from hpctrain.config.schema import ParallelismConfig, Precision, TrainingConfig
from hpctrain.plan.layout import Batch
from hpctrain.plan.memory.sub_groups import DEFAULT_SUB_GROUP_SIZE

LEAF_MODULE = "hpctrain.worker.model.decoder.Block"
"""Gathered as one unit in stage 3: fewer collectives, and the block can be compiled whole."""


_DEFAULT_REDUCE_BUCKET = 500_000_000
"""Elements. Source: DeepSpeed 0.19.8, runtime/zero/config.py."""


def reduce_bucket_elements(parallelism: ParallelismConfig, num_parameters: int) -> int:
    """Size of the gradient bucket, in elements."""
    return parallelism.reduce_bucket_size or min(_DEFAULT_REDUCE_BUCKET, num_parameters)


def overlaps_reduction(parallelism: ParallelismConfig, use_cuda: bool) -> bool:
    """Whether gradients are reduced in a stream beside the backward pass.

    A CPU has no second stream, and in stage 1 the engine's hooks of every gradient then cost more than they save: on two ranks
    8 % of the CPU time of model=tiny's step. The engine of a pipeline would turn it off itself, with a warning.
    """
    return use_cuda and parallelism.overlap_comm and parallelism.pipeline_parallel_size == 1


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
        # To DeepSpeed a part of a sequence is a sample, and a sequence-parallel rank one more data-parallel rank. Its own
        # sequence parallelism (0.19.8) sums gradients over these ranks in stages 1 and 2 but averages them in stage 3, and
        # sends them in fp32.
        "train_batch_size": batch.global_batch_size * parallelism.sequence_parallel_size,
        "train_micro_batch_size_per_gpu": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "gradient_clipping": training.gradient_clipping,
        "steps_per_print": 2**31 - 1,
        # DeepSpeed's own timer makes the host wait for the GPU twice a micro step; steps are timed by events of ours.
        "timers": {"throughput": {"enabled": False}},
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
    if parallelism.zero_stage in (1, 2):
        # Gradients are divided by the ranks before their sum, which fp16 may not hold.
        config["prescale_gradients"] = True
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    if precision == "fp16":
        config["fp16"] = _fp16_section(training)
    if parallelism.offload_optimizer != "none":
        # Without it DeepSpeed refuses torch's own Adam beside offload.
        config["zero_force_ds_cpu_optimizer"] = use_cuda or parallelism.offload_ratio < 1
    return config


def _fp16_section(training: TrainingConfig) -> dict[str, Any]:
    """Of a dynamic loss scale DeepSpeed gets the first value, and the worker moves it: see hpctrain/worker/loss_scale.py."""
    if training.loss_scale:
        return {"enabled": True, "loss_scale": training.loss_scale}
    return {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": training.initial_scale_power,
        "loss_scale_window": training.loss_scale_window,
        "min_loss_scale": training.min_loss_scale,
        "hysteresis": training.hysteresis,
    }


def _optimizer_kernel(parallelism: ParallelismConfig, use_cuda: bool) -> dict[str, bool]:
    """torch's AdamW needs no compiler; with offload on a GPU node DeepSpeed's vectorised CPU Adam is worth building.

    For a part of the optimizer on the host the engine takes no other (runtime/zero/stage3.py: «Hybrid Optimizer Only Supports
    DeepSpeedCPUAdam»), on CPU ranks too.
    """
    if parallelism.offload_optimizer != "none" and (use_cuda or parallelism.offload_ratio < 1):
        return {}
    return {"torch_adam": True, "fused": True} if use_cuda else {"torch_adam": True}


def _zero_section(num_parameters: int, parallelism: ParallelismConfig, use_cuda: bool) -> dict[str, Any]:
    if parallelism.zero_stage == 0:
        return {"stage": 0}
    pin_memory = parallelism.pin_memory and use_cuda
    section: dict[str, Any] = {
        "stage": parallelism.zero_stage,
        "reduce_bucket_size": reduce_bucket_elements(parallelism, num_parameters),
        "allgather_bucket_size": parallelism.allgather_bucket_size,
        "overlap_comm": overlaps_reduction(parallelism, use_cuda),
        "contiguous_gradients": True,
    }
    if parallelism.offload_optimizer != "none":  # of NVMe: see nvme_config
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": pin_memory, "ratio": parallelism.offload_ratio}
    if parallelism.zero_stage < 3:
        # Either way each bucket goes through an all-reduce; on, it is copied for that and back again (0.19.8, average_tensor).
        section["reduce_scatter"] = False
    if parallelism.zero_stage == 3:
        section |= {
            "stage3_prefetch_bucket_size": parallelism.prefetch_bucket_size,
            "stage3_param_persistence_threshold": parallelism.param_persistence_threshold,
            "stage3_max_live_parameters": parallelism.max_live_parameters,
            "stage3_max_reuse_distance": parallelism.max_reuse_distance,
            "sub_group_size": parallelism.sub_group_size or DEFAULT_SUB_GROUP_SIZE,
            "leaf_module": {"classes": [LEAF_MODULE]},
        }
        if parallelism.offload_param != "none":
            section["offload_param"] = {"device": "cpu", "pin_memory": pin_memory}
        if parallelism.hpz_partition_size > 1:
            section["zero_hpz_partition_size"] = parallelism.hpz_partition_size
        section |= {
            f"zero_{name}": True for name in ("quantized_weights", "quantized_gradients") if getattr(parallelism, name)
        }
    return section
