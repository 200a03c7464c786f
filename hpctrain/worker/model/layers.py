"""The parts of the decoder that hold parameters, with first values that depend on name and seed alone; rotary positions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpctrain.plan.model_shape import ModelShape
from hpctrain.worker.model.collectives import copied, summed
from hpctrain.worker.model.selective import Recipe, linear
from hpctrain.worker.parallel_groups import ALONE, RankGroup


@dataclass(frozen=True)
class ParameterSeed:
    """The random stream of one parameter: the run's seed with the parameter's name.

    One stream per parameter, and not one for the model, gives the same weights in whatever order and on whatever rank they
    are made: with ZeRO 1, 2, 3, at any world size, and without DeepSpeed. The same kind of device is needed: CUDA's
    generator gives other numbers than the CPU's.
    """

    run_seed: int
    name: str = ""

    def child(self, name: str) -> ParameterSeed:
        return ParameterSeed(self.run_seed, f"{self.name}.{name}" if self.name else name)

    @property
    def number(self) -> int:
        digest = hashlib.sha256(f"{self.run_seed}/{self.name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True)
class Split:
    """How a parameter is cut over tensor-parallel ranks: along one dimension, each of its parts evenly.

    The parts of one matrix are such as queries, keys and values: a rank gets some heads of each.
    """

    dim: int
    parts: Sequence[int]
    """Sizes along ``dim``, whole."""
    ranks: RankGroup

    @property
    def own_parts(self) -> list[int]:
        """Sizes of this rank's pieces."""
        return [part // self.ranks.size for part in self.parts]

    def own_size(self, size: tuple[int, ...]) -> list[int]:
        """Of a parameter whose whole size is ``size``."""
        return [sum(self.own_parts) if dim == self.dim else length for dim, length in enumerate(size)]

    def own_piece(self, whole: Tensor) -> Tensor:
        """This rank's piece of the whole parameter."""
        return piece_of(whole, self.dim, self.parts, self.ranks.rank, self.ranks.size)

    def marked(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter, with the mark by which DeepSpeed counts all its pieces in the norm, and a replica only once."""
        if self.ranks.size > 1:
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        return parameter


def piece_of(whole: Tensor, dim: int, parts: Sequence[int], rank: int, size: int) -> Tensor:
    """A tensor-parallel rank's piece of a parameter that is cut along ``dim``, each of its parts evenly.

    >>> piece_of(torch.arange(8), 0, [4, 2, 2], rank=1, size=2)
    tensor([2, 3, 5, 7])
    """
    if size == 1:
        return whole
    cut = torch.split(whole, list(parts), dim=dim)
    return torch.cat([part.chunk(size, dim=dim)[rank] for part in cut], dim=dim)


def normal_parameter(rows: int, columns: int, std: float, seed: ParameterSeed, split: Split | None) -> nn.Parameter:
    """A matrix ``(rows, columns)`` drawn from normal(0, std), or this rank's piece of it.

    The whole matrix is drawn on every rank, so that its values do not depend on how it is split. Drawn in fp32 and then copied:
    under zero.Init ``torch.empty`` gives the training type, and a bf16 generator draws other numbers. Tensors without values
    (meta, simulated devices) stay as they are.
    """
    size = (rows, columns)
    weight = torch.empty(split.own_size(size) if split else size)
    if weight.device.type in ("cpu", "cuda"):
        generator = torch.Generator(weight.device).manual_seed(seed.number)
        draw = torch.normal(0.0, std, size, generator=generator, device=weight.device, dtype=torch.float32)
        weight.copy_(split.own_piece(draw) if split else draw)
    parameter = nn.Parameter(weight)
    return split.marked(parameter) if split else parameter


class ColumnParallelLinear(nn.Module):
    """``x Wᵀ + b``, of which each tensor-parallel rank computes some outputs.

    Named by the field's custom, where W is written as (in, out) and its columns are outputs.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """

    def __init__(
        self,
        in_features: int,
        out_parts: Sequence[int],
        bias: bool,
        std: float,
        seed: ParameterSeed,
        tensor: RankGroup = ALONE,
    ) -> None:
        super().__init__()
        split = Split(0, out_parts, tensor)
        self.tensor = tensor
        self.own_parts = split.own_parts
        self.weight = normal_parameter(sum(out_parts), in_features, std, seed.child("weight"), split)
        self.bias = split.marked(nn.Parameter(torch.zeros(sum(split.own_parts)))) if bias else None

    def forward(self, x: Tensor, recipe: Recipe | None = None) -> Tensor:
        """(..., in_features), the same on all ranks, to (..., this rank's out_features), the parts one after another.

        ``recipe`` makes ``x`` again in the backward pass; None: ``x`` is kept.
        """
        return linear(copied(x, self.tensor), self.weight, self.bias, recipe)


class RowParallelLinear(nn.Module):
    """``x Wᵀ + b``, of which each tensor-parallel rank has some inputs; the ranks' products are summed."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        std: float,
        seed: ParameterSeed,
        tensor: RankGroup = ALONE,
    ) -> None:
        super().__init__()
        self.tensor = tensor
        split = Split(1, [in_features], tensor)
        self.weight = normal_parameter(out_features, in_features, std, seed.child("weight"), split)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor, recipe: Recipe | None = None) -> Tensor:
        """(..., this rank's in_features) to (..., out_features), the same on all ranks; ``recipe`` as above."""
        if self.tensor.size == 1:
            return linear(x, self.weight, self.bias, recipe)
        out = summed(linear(x, self.weight, None, recipe), self.tensor)
        return out if self.bias is None else out + self.bias


class Embedding(nn.Module):
    """A table of vectors, looked up by number."""

    def __init__(self, num_entries: int, hidden_size: int, std: float, seed: ParameterSeed) -> None:
        super().__init__()
        self.weight = normal_parameter(num_entries, hidden_size, std, seed.child("weight"), None)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) of int64 to (..., hidden)."""
        return functional.embedding(ids, self.weight)


class VocabParallelEmbedding(nn.Module):
    """The token table, of which each tensor-parallel rank has some tokens, in order of ranks."""

    def __init__(
        self,
        num_entries: int,
        hidden_size: int,
        std: float,
        seed: ParameterSeed,
        tensor: RankGroup = ALONE,
    ) -> None:
        super().__init__()
        self.tensor = tensor
        split = Split(0, [num_entries], tensor)
        self.num_own_entries = sum(split.own_parts)
        self.weight = normal_parameter(num_entries, hidden_size, std, seed.child("weight"), split)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) of int64 to (..., hidden), the same on all ranks."""
        if self.tensor.size == 1:
            return functional.embedding(ids, self.weight)
        row = ids - self.tensor.rank * self.num_own_entries
        is_elsewhere = (row < 0) | (row >= self.num_own_entries)
        vectors = functional.embedding(row.masked_fill(is_elsewhere, 0), self.weight)
        return summed(vectors.masked_fill(is_elsewhere[..., None], 0.0), self.tensor)


def norm(shape: ModelShape) -> nn.Module:
    """LayerNorm (GPT) or RMSNorm (Llama) over the hidden size, scale 1 and shift 0."""
    if shape.architecture == "llama":
        return nn.RMSNorm(shape.hidden_size, eps=shape.norm_eps)
    return nn.LayerNorm(shape.hidden_size, eps=shape.norm_eps)


def rotary_table(seq_len: int, head_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency, each (seq, head_dim / 2), in the type and on the device of ``like``.

    Pair i turns by ``position * theta^(-2i / head_dim)``. The angles are computed in fp32: bf16 cannot tell positions above
    256 apart. Source: Su et al. 2021 (arXiv 2104.09864), equation 15.
    """
    pairs = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32)
    frequencies = theta ** (-pairs / head_dim)
    positions = torch.arange(seq_len, device=like.device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (i, i + head_dim / 2) of every head by its position's angle.

    Args:
        x: (batch, seq, heads, head_dim).
        cos: (seq, head_dim / 2).
        sin: (seq, head_dim / 2).
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
