"""The decoder's parts as layers of one argument each: what a pipeline is cut from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpctrain.plan.model_shape import ModelShape
from hpctrain.worker.model.layers import Embedding, ParameterSeed, norm


class PositionTable(nn.Module):
    """Adds to every token the learned vector of its position."""

    def __init__(self, shape: ModelShape, seed: ParameterSeed) -> None:
        super().__init__()
        self.table = Embedding(shape.max_seq_len, shape.hidden_size, shape.init_std, seed)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same."""
        out: Tensor = x + self.table(torch.arange(x.shape[1], device=x.device))
        return out


class FinalNorm(nn.Module):
    """The norm before the output matrix."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = norm(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same."""
        out: Tensor = self.norm(x)
        return out
