"""What a model's state can be read from, whole or in parts, however it is cut there."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from hpctrain.plan.parameters import Parameter
from hpctrain.worker.model.layers import piece_of

StateKind = Literal["fp32", "exp_avg", "exp_avg_sq"]
"""Master weight, and Adam's two moments by torch's names."""
MOMENTS: tuple[StateKind, ...] = ("exp_avg", "exp_avg_sq")


class TensorPlace(NamedTuple):
    """One of the tensor-parallel ranks that cut a parameter between them."""

    rank: int = 0
    size: int = 1


class StateSource(Protocol):
    """Gives the state of parameters by name."""

    def piece(self, kind: StateKind, parameter: Parameter, place: TensorPlace, start: int, stop: int) -> Tensor | None:
        """Elements ``start`` to ``stop`` of the flat piece of a tensor-parallel rank, fp32, (stop - start).

        None where it has no such state.
        """


def own_piece(whole: Tensor, parameter: Parameter, place: TensorPlace) -> Tensor:
    """A tensor-parallel rank's piece of the whole parameter."""
    if parameter.split_dim is None:
        return whole
    return piece_of(whole, parameter.split_dim, parameter.parts, place.rank, place.size)


def joined_pieces(pieces: list[Tensor], parameter: Parameter) -> Tensor:
    """The whole parameter of the pieces of all tensor-parallel ranks, in their order."""
    if parameter.split_dim is None or len(pieces) == 1:
        return pieces[0]
    sizes = [part // len(pieces) for part in parameter.parts]
    by_rank = [torch.split(piece, sizes, dim=parameter.split_dim) for piece in pieces]
    return torch.cat([cut[part] for part in range(len(sizes)) for cut in by_rank], parameter.split_dim)
