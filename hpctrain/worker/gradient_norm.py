"""The norm of all gradients in ZeRO-1 and 2: one sum over ranks a step, and nothing is copied to fp64 for it.

DeepSpeed 0.19.8 (runtime/zero/stage_1_and_2.py get_grad_norm_direct) makes an fp64 copy of each gradient, one kernel after the
other, and sums over the ranks once for each parameter group, of which we have two. Offloaded gradients keep that way: their
norms come while they are copied to the host.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from deepspeed.runtime.constants import PIPE_REPLICATED
from deepspeed.runtime.utils import is_model_parallel_parameter
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor

_PIECE = 2**16
"""Elements; of 16-bit gradients also what is there in fp32 at a time."""


def install_joint_norm(engine: Any) -> None:
    """Gives the optimizer of stage 1 or 2 this norm; other optimizers are left alone."""
    optimizer = engine.optimizer
    if isinstance(optimizer, DeepSpeedZeroOptimizer) and not optimizer.cpu_offload:
        optimizer.scaled_global_norm = functools.partial(_joint_norm, optimizer)


def _joint_norm(optimizer: Any, norm_type: int = 2) -> Tensor:
    """Of this rank's shares and those of all others; fp32, (), still scaled; not finite where a gradient is not."""
    assert norm_type == 2
    counted = [
        gradient
        for index in range(len(optimizer.bit16_groups))
        for gradient, parameter in zip(
            (each for each in optimizer.averaged_gradients[index] if not getattr(each, "_zero_padding", False)),
            optimizer.params_in_partition[index],
            strict=False,  # a share of padding alone has a gradient and no parameter
        )
        if _is_counted(optimizer, parameter)
    ]
    squares = sum_of_squares(counted, optimizer.device)
    torch.distributed.all_reduce(squares, group=optimizer.dp_process_group)
    optimizer._model_parallel_all_reduce(tensor=squares, op=torch.distributed.ReduceOp.SUM)
    return squares.sqrt()


def sum_of_squares(gradients: list[Tensor], device: torch.device | str) -> Tensor:
    """Of all elements; fp32, ().

    torch's norm on a CPU adds fp32 numbers one after the other: 0.3 % too little for 40 million, 1e-7 for a piece.
    """
    if not gradients:
        return torch.zeros((), device=device)
    if gradients[0].device.type == "cpu":
        gradients = [piece for gradient in gradients for piece in torch.split(gradient.reshape(-1), _PIECE)]
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).square().sum()


def _is_counted(optimizer: Any, parameter: Any) -> bool:
    """Once, of those that a pipeline or tensor-parallel ranks hold more than once."""
    if getattr(parameter, PIPE_REPLICATED, False):
        return False
    return bool(is_model_parallel_parameter(parameter) or optimizer.model_parallel_rank == 0)
