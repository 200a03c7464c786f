"""DeepSpeed around the decoder: built from the plan, nothing decided here."""

from __future__ import annotations

import contextlib
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from hpctrain.plan.run_plan import RunPlan
from hpctrain.worker.data_type import check_data_type
from hpctrain.worker.gradient_norm import install_joint_norm
from hpctrain.worker.loss_scale import install_loss_scale, scale_rule
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.nvme_states import prepare_nvme
from hpctrain.worker.overlapped_reduction import keep_until_reduced
from hpctrain.worker.parallel_groups import TensorParallelUnit, build_parallel_groups
from hpctrain.worker.partial_offload import join_optimizers
from hpctrain.worker.pipeline import build_pipeline, tell_shapes
from hpctrain.worker.plain_optimizer import plain_optimizer_in_place, take_fp32_optimizer
from hpctrain.worker.state_tiers import prepare_tiers


def build_engine(plan: RunPlan, weight_decay: float, seed: int, device: torch.device) -> Any:
    """DeepSpeed's engine, ready for the first step.

    Args:
        plan: shape, ZeRO stage and the whole DeepSpeed configuration.
        weight_decay: of the matrices.
        seed: of the first weights.
        device: this rank's.
    """
    if device.type == "cpu":
        # DeepSpeed would compile its shared-memory collective at this point; gloo does without a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    check_data_type(plan.precision, device)
    prepare_tiers(plan)
    deepspeed.init_distributed()
    groups = build_parallel_groups(plan.layout, dist.get_rank())
    mpu = TensorParallelUnit(groups.tensor, groups.zero) if groups.zero else None
    with _partitioned_from_the_start(plan, mpu), device:
        model = (
            build_pipeline(plan, seed, groups)
            if plan.layout.pipeline_parallel_size > 1
            else Decoder(
                plan.model,
                plan.activation_checkpointing,
                seed,
                groups,
                plan.offload_activations,
                plan.loss_chunk_size,
            )
        )
    with plain_optimizer_in_place(plan.zero_stage):
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=parameter_groups(model, weight_decay), config=plan.ds_config, mpu=mpu
        )
    if device.type == "cuda":
        give_back_first_copies()
    if plan.zero_stage == 0 and plan.precision == "fp32":
        take_fp32_optimizer(engine)
    install_loss_scale(engine, scale_rule(plan.ds_config))
    keep_until_reduced(engine)
    install_joint_norm(engine)
    join_optimizers(engine)
    prepare_nvme(engine)
    if plan.layout.pipeline_parallel_size > 1:
        tell_shapes(engine, plan)
    return engine


def give_back_first_copies() -> None:
    """Gives pinned memory that nothing uses back to the system.

    zero.Init pins each parameter's share by itself, and DeepSpeed then copies them into one piece. Theirs stay in torch's cache
    for requests as small, which do not come: more than two bytes a parameter of host memory. An older torch has no such call.
    """
    if (empty := getattr(torch.accelerator, "empty_host_cache", None)) is not None:
        empty()


def _partitioned_from_the_start(
    plan: RunPlan, mpu: TensorParallelUnit | None
) -> contextlib.AbstractContextManager[Any]:
    """In stage 3 no rank ever holds the whole model: each parameter is cut up as soon as it is made."""
    if plan.zero_stage != 3:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = deepspeed.zero.Init(
        config_dict_or_path=plan.ds_config,
        data_parallel_group=None if mpu is None else mpu.get_data_parallel_group(),
        mpu=mpu,
    )
    return context


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay, norms and biases without.

    The decay keeps matrices small; on a scale that starts at 1, or a shift, it is a pull towards an arbitrary value.
    """
    matrices = [parameter for parameter in model.parameters() if _num_dimensions(parameter) > 1]
    vectors = [parameter for parameter in model.parameters() if _num_dimensions(parameter) == 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _num_dimensions(parameter: nn.Parameter) -> int:
    """ZeRO-3 keeps the shape of a partitioned parameter beside it."""
    return len(getattr(parameter, "ds_shape", parameter.shape))
