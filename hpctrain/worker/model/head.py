"""The output matrix, with the loss of what it reads: one module, so that ZeRO-3 gathers the matrix for both."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from hpctrain.worker.model.collectives import copied
from hpctrain.worker.model.layers import ParameterSeed, Split, normal_parameter
from hpctrain.worker.model.loss import head_loss
from hpctrain.worker.parallel_groups import ALONE, RankGroup


class Head(nn.Module):
    """Scores of the next token, ``x Wᵀ``, or their loss. Tensor-parallel ranks have some words of the vocabulary each."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        std: float,
        seed: ParameterSeed,
        tensor: RankGroup = ALONE,
        loss_chunk_size: int = 0,
        token_table: nn.Parameter | None = None,
    ) -> None:
        """Makes the matrix.

        Args:
            vocab_size: whole.
            hidden_size: of what it reads.
            std: of the first weights.
            seed: of the first weights.
            tensor: the ranks that split the vocabulary.
            loss_chunk_size: tokens of which the loss has scores at a time; 0: all.
            token_table: taken for the matrix; one Parameter in two modules. None: it has one of its own.
        """
        super().__init__()
        split = Split(0, [vocab_size], tensor)
        if token_table is None:
            token_table = normal_parameter(vocab_size, hidden_size, std, seed.child("weight"), split)
        self.weight = token_table
        self.tensor, self.loss_chunk_size = tensor, loss_chunk_size

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores, (..., this rank's vocab), for ``x`` (..., hidden); with ``labels`` the loss, see ``head_loss``."""
        if labels is not None:
            return head_loss(x, self.weight, labels, self.tensor, self.loss_chunk_size)
        return functional.linear(copied(x, self.tensor), self.weight)
