"""The best rate at which a device multiplies matrices: the ceiling of what training on it can reach.

``python -m tests.bench.matmul_rate cuda`` prints one JSON line with the rate, the shape that reached it, and the device. It is a
process of its own, so that nothing of it is left on the device while something is trained there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import NamedTuple

import torch

from hpctrain.rehearse.real_device import device_bytes, device_name
from hpctrain.units import TERA

_SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "cuda": (
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (16384, 8192, 4096),
        (8192, 16384, 8192),
        (8192, 28672, 8192),
        (16384, 16384, 16384),
    ),
    "cpu": ((256, 256, 256), (512, 512, 512)),
}
"""Rows, columns and depth: tokens, and widths of layers from 1.3B to 70B."""
_DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}
"""In which the device trains by default."""
_MEASURED_S = {"cuda": 0.6, "cpu": 0.05}
"""Of each shape."""
_ROUNDS = 5
"""Of equally many products; the fastest counts, since others use a shared device, too."""


class MatmulRate(NamedTuple):
    """What was found on one device."""

    tflops: float
    """1e12 FLOP/s, a multiply-add being two."""
    shape: tuple[int, int, int]
    """Rows, columns and depth of the fastest product."""
    dtype: str
    device_name: str
    device_bytes: int


def measure(kind: str) -> MatmulRate:
    """The best of all shapes.

    Args:
        kind: ``cuda`` or ``cpu``.
    """
    device = torch.device(kind)
    rates = {shape: _rate(shape, device) for shape in _SHAPES[kind]}
    best = max(rates, key=lambda shape: rates[shape])
    dtype = str(_DTYPES[kind]).removeprefix("torch.")
    return MatmulRate(rates[best], best, dtype, device_name(device), device_bytes(device))


def _rate(shape: tuple[int, int, int], device: torch.device) -> float:
    """TFLOP/s of ``x Wᵀ``, as a linear layer multiplies."""
    rows, columns, depth = shape
    dtype = _DTYPES[device.type]
    x = torch.randn(rows, depth, device=device, dtype=dtype)
    weight = torch.randn(columns, depth, device=device, dtype=dtype)
    out = torch.empty(rows, columns, device=device, dtype=dtype)

    def seconds(count: int) -> float:
        _wait(device)
        start_s = time.perf_counter()
        for _ in range(count):
            torch.mm(x, weight.t(), out=out)
        _wait(device)
        return time.perf_counter() - start_s

    seconds(3)  # the first products choose a kernel
    count = max(1, int(_MEASURED_S[device.type] / _ROUNDS / (seconds(3) / 3)))
    fastest_s = min(seconds(count) for _ in range(_ROUNDS))
    return 2 * rows * columns * depth * count / fastest_s / TERA


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])._asdict()))
