"""Products whose input is made again in the backward pass in place of being kept: selective recomputation.

What is cheap to make and large is not kept: what norms and activation functions give out. Products and attention never run
again, so no FLOPs are added. Source of the idea: Korthikanti et al. 2022 (arXiv 2205.05198), section 5, whose attention core,
large there, is one fused operator here that keeps no scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Recipe(NamedTuple):
    """How a product's input is made again."""

    make: Callable[[Tensor], Tensor]
    """The same bits from the same source."""
    source: Tensor
    """Kept in place of the input; usually others keep it anyway."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Recipe | None) -> Tensor:
    """``x Wᵀ + b``.

    Args:
        x: (batch, seq, in).
        weight: (out, in).
        bias: (out).
        recipe: of ``x``; None: ``x`` is kept.
    """
    if recipe is None or not torch.is_grad_enabled():
        return functional.linear(x, weight, bias)
    out: Tensor = _RecipeLinear.apply(x, weight, bias, recipe.make, recipe.source.detach())  # type: ignore[no-untyped-call]
    return out


def gated(gate_and_up: Tensor) -> Tensor:
    """SwiGLU: ``silu(gate) * up``, (..., width) from (..., 2 width). Source: Shazeer 2020 (arXiv 2002.05202), equation 6."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def gated_from_inputs(gate_and_up: Tensor) -> Tensor:
    """``gated``, of which only the input is kept."""
    out: Tensor = _Gated.apply(gate_and_up)  # type: ignore[no-untyped-call]
    return out


class _RecipeLinear(torch.autograd.Function):
    """Gradients by the products that torch's own linear layer takes, in the same order of arguments."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, make: Callable[[Tensor], Tensor], source: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weight, source)
        ctx.make = make
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        weight, source = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        x = ctx.make(source)
        of_weight = rows.t().mm(x.flatten(0, -2))
        # Given up before the next product needs as much.
        del x
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return gradient.matmul(weight), of_weight, of_bias, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_and_up)
        return gated(gate_and_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate_and_up,) = ctx.saved_tensors
        gate, up = gate_and_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_and_up)
        of_gate, of_up = out.chunk(2, dim=-1)
        # One tensor for both halves in turn: beside what comes in and what goes out, no more is held.
        half = functional.silu(gate).mul_(gradient)
        of_up.copy_(half)
        torch.mul(gradient, up, out=half)
        torch.ops.aten.silu_backward.grad_input(half, gate, grad_input=half)
        of_gate.copy_(half)
        return out
