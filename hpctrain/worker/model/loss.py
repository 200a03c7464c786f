"""The loss of next-token prediction, of whole scores or of scores split over ranks by vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpctrain.worker.parallel_groups import RankGroup


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


class _SplitCrossEntropy(torch.autograd.Function):
    """(tokens, vocab / ranks) in fp32 and labels (tokens) to losses (tokens), the same on all ranks.

    Three sums of one number a token go over the ranks: the maximum, the sum of exponentials, the label's score.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, tensor: RankGroup) -> Tensor:
        largest = scores.amax(dim=-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=tensor.group)
        shifted = scores - largest[:, None]
        column = labels - tensor.rank * scores.shape[-1]
        is_elsewhere = (column < 0) | (column >= scores.shape[-1])
        column = column.masked_fill(is_elsewhere, 0)[:, None]
        at_label = shifted.gather(-1, column)[:, 0].masked_fill(is_elsewhere, 0.0)
        dist.all_reduce(at_label, group=tensor.group)
        exponentials = shifted.exp_()
        total = exponentials.sum(dim=-1)
        dist.all_reduce(total, group=tensor.group)
        probabilities = exponentials.div_(total[:, None])
        ctx.save_for_backward(probabilities, column, is_elsewhere)
        return total.log() - at_label

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probabilities, column, is_elsewhere = ctx.saved_tensors
        own = gradient.masked_fill(is_elsewhere, 0.0)[:, None]
        return (probabilities * gradient[:, None]).scatter_add_(-1, column, -own), None, None
