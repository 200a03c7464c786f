"""Collectives inside the model, each with the gradient that its mathematics asks for.

Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3, the conjugate functions f and g; Jacobs et al. 2023 (arXiv 2309.14509),
section 3.1, the all-to-alls around attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hpctrain.worker.parallel_groups import RankGroup


def copied(x: Tensor, ranks: RankGroup) -> Tensor:
    """``x``, the same on all ranks and used by each for its own part; so its gradient is the sum of the ranks' gradients."""
    if ranks.size == 1:
        return x
    out: Tensor = _Copied.apply(x, ranks)  # type: ignore[no-untyped-call]
    return out


def summed(x: Tensor, ranks: RankGroup) -> Tensor:
    """The sum of the ranks' ``x``, the same on all ranks; ``x`` is overwritten. Each rank's gradient is that of the sum."""
    if ranks.size == 1:
        return x
    out: Tensor = _Summed.apply(x, ranks)  # type: ignore[no-untyped-call]
    return out


def whole_sequence_of_own_heads(parts: Sequence[Tensor], ranks: RankGroup) -> Sequence[Tensor]:
    """From this rank's positions of all heads to all positions of this rank's heads, in one all-to-all.

    Args:
        parts: queries, keys and values, each (batch, seq / ranks, width); the width in order of heads.
        ranks: the sequence-parallel ranks.

    Returns:
        Of each part (batch, seq, width / ranks).
    """
    if ranks.size == 1:
        return parts
    by_receiver = [part.view(*part.shape[:2], ranks.size, -1).permute(2, 0, 1, 3) for part in parts]
    received = _exchanged(torch.cat(by_receiver, dim=-1), ranks)
    widths = [part.shape[-1] // ranks.size for part in parts]
    return torch.split(received.transpose(0, 1).flatten(1, 2), widths, dim=-1)


def own_positions_of_all_heads(x: Tensor, ranks: RankGroup) -> Tensor:
    """The way back: (batch, seq, width / ranks) to (batch, seq / ranks, width)."""
    if ranks.size == 1:
        return x
    batch, _, width = x.shape
    received = _exchanged(x.view(batch, ranks.size, -1, width).transpose(0, 1), ranks)
    return received.permute(1, 2, 0, 3).flatten(2)


def _exchanged(x: Tensor, ranks: RankGroup) -> Tensor:
    """Entry i along the first dimension goes to rank i; entry i of the result came from rank i."""
    out: Tensor = _Exchanged.apply(x, ranks)  # type: ignore[no-untyped-call]
    return out


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: RankGroup) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # In place: the gradient was made by the one matrix product that follows, and nobody else holds it.
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.ranks.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: RankGroup) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=ranks.group)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


class _Exchanged(torch.autograd.Function):
    """An all-to-all; its own inverse, so the gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: RankGroup) -> Tensor:
        ctx.ranks = ranks
        return _all_to_all(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradient, ctx.ranks), None


def _all_to_all(x: Tensor, ranks: RankGroup) -> Tensor:
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ranks.group)
    return received
