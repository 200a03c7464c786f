"""The loss of next-token prediction, from whole scores or in chunks of tokens; the vocabulary may be split over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpctrain.worker.model.collectives import copied
from hpctrain.worker.parallel_groups import RankGroup

_PRODUCT_SCALE = 1 / 16
"""Of one chunk's part of a 16-bit weight gradient: thousands of tokens that want the same word stay within fp16's 65,504. A power
of two, so that nothing is rounded."""


def head_loss(x: Tensor, weight: Tensor, labels: Tensor, tensor: RankGroup, chunk_size: int) -> Tensor:
    """Mean over all tokens of minus the log probability of the label, fp32 scalar, nats.

    In chunks, scores of one chunk are there at a time, with the gradient that follows from them in their place; so the forward
    pass makes both gradients, and the backward pass scales them. That adds no FLOPs, and the gradient of the output matrix, in
    fp32, waits from one pass to the other. Source of the idea: Hsu et al. 2024 (Liger Kernel, arXiv 2410.10989), section 3.2.

    Args:
        x: (batch, seq, hidden), what the output matrix reads; the same on all tensor-parallel ranks.
        weight: (vocab / ranks, hidden): this rank's part of the output matrix, in order of ranks.
        labels: (batch, seq), int64, of the whole vocabulary.
        tensor: the ranks that split the vocabulary; they never gather the scores.
        chunk_size: tokens of a chunk; 0: all tokens at once.
    """
    x = copied(x, tensor)
    if not 0 < chunk_size < labels.numel():
        return mean_cross_entropy(functional.linear(x, weight), labels, tensor)
    # Within a function of autograd's the mode is always off: whoever only validates is asked before.
    with_gradients = torch.is_grad_enabled()
    loss: Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x.flatten(0, 1), weight, labels.flatten(), tensor, chunk_size, with_gradients
    )
    return loss


def mean_cross_entropy(logits: Tensor, labels: Tensor, tensor: RankGroup) -> Tensor:
    """Mean over all tokens of minus the log probability of the label, fp32 scalar, nats.

    Args:
        logits: (batch, seq, vocab / ranks): this rank's part of the vocabulary, in order of ranks.
        labels: (batch, seq), int64, of the whole vocabulary.
        tensor: the ranks that split the vocabulary; they never gather the scores.
    """
    scores, wanted = logits.float().flatten(0, 1), labels.flatten()
    if tensor.size == 1:
        return functional.cross_entropy(scores, wanted)
    losses: Tensor = _SplitCrossEntropy.apply(scores, wanted, tensor)  # type: ignore[no-untyped-call]
    return losses.mean()


class _ChunkedCrossEntropy(torch.autograd.Function):
    """(tokens, hidden), (vocab / ranks, hidden) and labels (tokens) to the mean loss, the same on all ranks.

    Kept for the backward pass: the gradients of the sum of all losses, by x in its own type and by the matrix in fp32. Neither
    carries the loss scale yet, which fp16 needs for gradients of a mean only.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, tensor: RankGroup, chunk_size: int, with_gradients: bool
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        of_x = of_weight = None
        if with_gradients:
            of_x = torch.empty_like(x)
            of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
        for start in range(0, len(labels), chunk_size):
            chunk = slice(start, start + chunk_size)
            scores = functional.linear(x[chunk], weight)
            total += _losses_of(scores, labels[chunk], tensor).sum()
            if of_x is not None and of_weight is not None:
                torch.mm(scores, weight, out=of_x[chunk])
                _add_product(of_weight, scores, x[chunk])
            del scores
        ctx.gradients, ctx.dtype, ctx.num_tokens = (of_x, of_weight), weight.dtype, len(labels)
        return total / len(labels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        # Handed over: they are scaled in place, and what is left of them must not wait for the end of the backward pass.
        (of_x, of_weight), ctx.gradients = ctx.gradients, (None, None)
        if of_x is None:
            raise RuntimeError("the chunked loss has one backward pass: its gradients are made in the forward pass")
        # Of one dimension, so that a 16-bit product is formed in fp32 and the scale is not rounded to 16 bits.
        scale = (gradient / ctx.num_tokens).view(1)
        scaled = of_weight if ctx.dtype == torch.float32 else torch.empty_like(of_weight, dtype=ctx.dtype)
        torch.mul(of_weight, scale, out=scaled)
        return torch.mul(of_x, scale, out=of_x), scaled, None, None, None, None


def _losses_of(scores: Tensor, labels: Tensor, tensor: RankGroup) -> Tensor:
    """The losses (tokens) in fp32; ``scores`` (tokens, vocab / ranks) become the gradient of their sum.

    What has the size of the scores is in fp32 while exponentials are summed, once.
    """
    largest = scores.amax(dim=-1, keepdim=True).float()
    _reduce(largest, tensor, dist.ReduceOp.MAX)
    shifted = scores.sub_(largest) if scores.dtype == torch.float32 else scores - largest
    column, is_elsewhere = _columns(labels, scores.shape[-1], tensor)
    at_label = shifted.gather(-1, column).masked_fill_(is_elsewhere, 0.0)
    _reduce(at_label, tensor, dist.ReduceOp.SUM)
    total = shifted.exp_().sum(dim=-1, keepdim=True)
    _reduce(total, tensor, dist.ReduceOp.SUM)
    torch.mul(shifted, total.reciprocal(), out=scores)
    # The label's in fp32 before it is rounded: a probability near 1 and 1 are the same number in 16 bits.
    wanted = (at_label.exp() / total - 1).to(scores.dtype)
    scores.scatter_(-1, column, torch.where(is_elsewhere, scores.gather(-1, column), wanted))
    return (total.log() - at_label)[:, 0]


def _columns(labels: Tensor, num_own: int, tensor: RankGroup) -> tuple[Tensor, Tensor]:
    """Where the labels stand in this rank's part of the vocabulary, 0 where another rank has them, and whether it has."""
    column = labels[:, None] - tensor.rank * num_own
    if tensor.size == 1:
        # Nothing is elsewhere; a label beyond the vocabulary must not pass for one that is.
        return column, torch.zeros_like(column, dtype=torch.bool)
    is_elsewhere = (column < 0) | (column >= num_own)
    return column.masked_fill(is_elsewhere, 0), is_elsewhere


def _reduce(values: Tensor, tensor: RankGroup, op: Any) -> None:
    """In place, over the ranks that split the vocabulary."""
    if tensor.size > 1:
        dist.all_reduce(values, op=op, group=tensor.group)


def _add_product(into: Tensor, gradient: Tensor, x: Tensor) -> None:
    """Adds ``gradientᵀ x`` to ``into``, which is fp32: so a sum over many chunks is rounded to 16 bits once."""
    if x.dtype == torch.float32:
        torch.addmm(into, gradient.t(), x, out=into)
        return
    product = torch.addmm(x.new_empty(()), gradient.t(), x, beta=0, alpha=_PRODUCT_SCALE)
    into.add_(product, alpha=1 / _PRODUCT_SCALE)


class _SplitCrossEntropy(torch.autograd.Function):
    """(tokens, vocab / ranks) in fp32 and labels (tokens) to losses (tokens), the same on all ranks.

    Three sums of one number a token go over the ranks: the maximum, the sum of exponentials, the label's score.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, tensor: RankGroup) -> Tensor:
        of_scores = scores.clone()
        losses = _losses_of(of_scores, labels, tensor)
        ctx.save_for_backward(of_scores)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (of_scores,) = ctx.saved_tensors
        return of_scores * gradient[:, None], None, None
