"""DeepSpeed around the decoder: built from the plan, nothing decided here."""

from __future__ import annotations

import contextlib
from typing import Any

import deepspeed
import torch
from torch import nn

from hpctrain.plan.run_plan import RunPlan
from hpctrain.worker.model.decoder import Decoder


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
    deepspeed.init_distributed()
    with _partitioned_from_the_start(plan), device:
        model = Decoder(plan.model, plan.activation_checkpointing, seed)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=parameter_groups(model, weight_decay), config=plan.ds_config
    )
    return engine


def _partitioned_from_the_start(plan: RunPlan) -> contextlib.AbstractContextManager[Any]:
    """In stage 3 no rank ever holds the whole model: each parameter is cut up as soon as it is made."""
    if plan.zero_stage != 3:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=plan.ds_config)
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
