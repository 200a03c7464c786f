"""The parts of the decoder that hold parameters, with first values that depend on name and seed alone; rotary positions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpctrain.plan.model_shape import ModelShape


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


def normal_parameter(rows: int, columns: int, std: float, seed: ParameterSeed) -> nn.Parameter:
    """A matrix ``(rows, columns)`` drawn from normal(0, std).

    Drawn in fp32 and then copied: under zero.Init ``torch.empty`` gives the training type, and a bf16 generator draws other
    numbers. Tensors without values (meta, simulated devices) stay as they are.
    """
    weight = torch.empty(rows, columns)
    if weight.device.type in ("cpu", "cuda"):
        generator = torch.Generator(weight.device).manual_seed(seed.number)
        draw = torch.normal(0.0, std, (rows, columns), generator=generator, device=weight.device, dtype=torch.float32)
        weight.copy_(draw)
    return nn.Parameter(weight)


class Linear(nn.Module):
    """``x Wᵀ + b``."""

    def __init__(self, in_features: int, out_features: int, bias: bool, std: float, seed: ParameterSeed) -> None:
        super().__init__()
        self.weight = normal_parameter(out_features, in_features, std, seed.child("weight"))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """A table of vectors, looked up by number."""

    def __init__(self, num_entries: int, hidden_size: int, std: float, seed: ParameterSeed) -> None:
        super().__init__()
        self.weight = normal_parameter(num_entries, hidden_size, std, seed.child("weight"))

    def forward(self, ids: Tensor) -> Tensor:
        """(...) of int64 to (..., hidden)."""
        return functional.embedding(ids, self.weight)


class TiedHead(nn.Module):
    """The output matrix that is the token table: one Parameter in two modules, so that ZeRO-3 gathers it for both."""

    def __init__(self, token_table: nn.Parameter) -> None:
        super().__init__()
        self.weight = token_table

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to (..., vocab)."""
        return functional.linear(x, self.weight)


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
        x: (batch, heads, seq, head_dim).
        cos: (seq, head_dim / 2).
        sin: (seq, head_dim / 2).
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
