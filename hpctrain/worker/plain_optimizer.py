"""The optimizer of plain data parallelism (ZeRO stage 0): every rank holds all states and updates all parameters.

What DeepSpeed 0.19.8 has for this (runtime/fp16/unfused_optimizer.py, for bf16 too) does four things wrong with torch's AdamW.
It makes a step of zero gradients when it is built, which decays the weights and counts as Adam's first. The engine does not
multiply the loss by the scale that the optimizer divides by (runtime/engine.py backward asks for a ZeROOptimizer). Its norm
counts the pieces of one tensor-parallel rank only (it looks for their mark at the gradients). And in fp32 there is no norm to
record. So the engine gets this one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import deepspeed.runtime.engine
import torch
import torch.distributed as dist
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from torch import Tensor, nn

from hpctrain.worker.gradient_norm import sum_of_squares

_CLIP_EPS = 1e-6
"""As torch.nn.utils.clip_grad_norm_ has it."""


class PlainOptimizer(ZeROOptimizer):  # type: ignore[misc]
    """torch's optimizer over fp32 copies of 16-bit parameters, or over fp32 ones themselves, with norm, clipping and loss scale.

    Attributes that DeepSpeed's engine reads: ``overflow``, ``loss_scaler``, ``param_groups``, ``_global_grad_norm``.
    """

    def __init__(
        self, init_optimizer: torch.optim.Optimizer, mpu: Any = None, clip_grad: float = 0.0, **_: Any
    ) -> None:
        """Takes the optimizer's parameters over; states are made in its first step.

        Args:
            init_optimizer: over the model's parameters, which the engine has cast.
            mpu: who splits the model's matrices; None: nobody.
            clip_grad: largest norm of all gradients; 0: any.
        """
        super().__init__()
        self.optimizer = init_optimizer
        self.mpu = mpu
        self.clip_grad = clip_grad
        self.custom_loss_scaler, self.external_loss_scale, self.torch_autocast_gradscaler = False, None, None
        self.loss_scaler: Any = None
        self.overflow = False
        self._global_grad_norm: float | None = None
        self._parameters: list[nn.Parameter] = []
        self._masters: list[Tensor] = []
        """What the optimizer updates, in the order of the parameters: their fp32 copies, or they themselves."""
        for group in self.optimizer.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
            masters = [_master_copy(parameter) for parameter in parameters]
            group["params"] = masters
            self._parameters += parameters
            self._masters += masters

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def cur_scale(self) -> float:
        """By which the gradients are too large."""
        return 1.0 if self.loss_scaler is None else float(self.loss_scaler.loss_scale)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Updates all parameters from the averaged gradients, or, where these are not finite, none."""
        assert closure is None
        norm = float(self._norm_of_gradients())
        self.overflow = not math.isfinite(norm)
        if self.overflow:
            self._global_grad_norm = float("inf")
            self.zero_grad()
            return
        self._global_grad_norm = norm / self.cur_scale
        self._hand_over_gradients()
        self._unscale_and_clip()
        self.optimizer.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
            master.grad = None

    def _norm_of_gradients(self) -> Tensor:
        """Of all parameters, of which tensor-parallel ranks hold pieces or replicas; fp32, (), still scaled."""
        is_first = self.mpu is None or self.mpu.get_model_parallel_rank() == 0
        counted = [
            parameter.grad
            for parameter in self._parameters
            if parameter.grad is not None and (is_first or getattr(parameter, "tensor_model_parallel", False))
        ]
        squares = sum_of_squares(counted, self._masters[0].device)
        if self.mpu is not None and self.mpu.get_model_parallel_world_size() > 1:
            dist.all_reduce(squares, group=self.mpu.get_model_parallel_group())
        return squares.sqrt()

    def _hand_over_gradients(self) -> None:
        """In fp32; one after the other, so that both types of all are never there at once."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None

    def _unscale_and_clip(self) -> None:
        factor = 1.0 / self.cur_scale
        if self.clip_grad > 0.0:
            assert self._global_grad_norm is not None
            factor *= min(1.0, self.clip_grad / (self._global_grad_norm + _CLIP_EPS))
        if factor != 1.0:
            torch._foreach_mul_([master.grad for master in self._masters if master.grad is not None], factor)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gives the gradients up."""
        assert set_to_none
        for parameter in self._parameters:
            parameter.grad = None

    def refresh_fp32_params(self) -> None:
        """Makes the fp32 copies anew, of parameters that somebody else has set."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                master.data.copy_(parameter.data)

    def state_dict(self) -> dict[str, Any]:
        """All states; fp32 parameters themselves are in the module's."""
        copies = [
            master.detach()
            for parameter, master in zip(self._parameters, self._masters, strict=True)
            if master is not parameter
        ]
        return {"optimizer": self.optimizer.state_dict(), "fp32_copies": copies, "loss_scaler": self.loss_scaler}

    def load_state_dict(self, state_dict: dict[str, Any], load_optimizer_states: bool = True) -> None:
        """What ``state_dict`` gave, on a model of the same parameters whose values are loaded already."""
        if load_optimizer_states:
            self.optimizer.load_state_dict(state_dict["optimizer"])
        copied = [
            master for parameter, master in zip(self._parameters, self._masters, strict=True) if master is not parameter
        ]
        for master, saved in zip(copied, state_dict["fp32_copies"], strict=True):
            master.data.copy_(saved)
        self.loss_scaler = state_dict["loss_scaler"]

    def pairs(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Each parameter with what the optimizer updates for it, in the order of its states."""
        return list(zip(self._parameters, self._masters, strict=True))

    def load_masters(self, masters: list[Tensor]) -> None:
        """Sets what the optimizer updates, and the parameters with it; fp32, in the order of ``pairs``."""
        for (parameter, master), loaded in zip(self.pairs(), masters, strict=True):
            master.data.copy_(loaded)
            if master is not parameter:
                parameter.data.copy_(loaded)


def _master_copy(parameter: nn.Parameter) -> Tensor:
    return parameter if parameter.dtype == torch.float32 else parameter.detach().float().requires_grad_()


@contextlib.contextmanager
def plain_optimizer_in_place(zero_stage: int) -> Iterator[None]:
    """While it is entered, an engine of stage 0 that is built for a 16-bit type takes ``PlainOptimizer``."""
    name = "FP16_UnfusedOptimizer"
    module = deepspeed.runtime.engine
    own = getattr(module, name)
    if zero_stage == 0:
        setattr(module, name, PlainOptimizer)
    try:
        yield
    finally:
        setattr(module, name, own)


def take_fp32_optimizer(engine: Any) -> None:
    """The same for an engine of stage 0 in fp32, which has torch's optimizer bare.

    It clips by itself before the optimizer's step, and keeps no norm; now the optimizer does.
    """
    engine.optimizer = PlainOptimizer(engine.optimizer, engine.mpu, engine.gradient_clipping())
    engine.clip_fp32_gradients = lambda: None
