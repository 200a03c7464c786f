"""DeepSpeed's native quantizer without its kernels: tensors of the sizes and types that they give out, on the GPU.

Source: DeepSpeed 0.19.8, ops/csrc/quantization/pt_binding.cpp.
"""

from __future__ import annotations

import torch

from hpctrain.rehearse.simulated_gpu import DEVICE

_SYMMETRIC, _ASYMMETRIC = "symmetric", "asymmetric"


class QuantizerWithoutKernels:
    """``deepspeed.ops.op_builder.QuantizerBuilder().load()``. ``groups``: each has one scale, or a scale and an offset."""

    Symmetric, Asymmetric = _SYMMETRIC, _ASYMMETRIC

    def quantize(
        self, values: torch.Tensor, groups: int, num_bits: int, kind: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``values`` (..., n) fp16 to int8 (..., n x num_bits / 8), and the scales."""
        *others, last = values.shape
        return _integers(*others, last * num_bits // 8), _scales(groups, kind)

    def dequantize(
        self, quantized: torch.Tensor, scales: torch.Tensor, groups: int, num_bits: int, kind: str
    ) -> torch.Tensor:
        """int8 (..., n) to fp16 (..., n x 8 / num_bits)."""
        return torch.empty(_wider(quantized, num_bits), dtype=torch.float16, device=DEVICE)

    def dequantize_fp32(
        self, quantized: torch.Tensor, scales: torch.Tensor, groups: int, num_bits: int, kind: str
    ) -> torch.Tensor:
        """int8 (..., n) to fp32 (..., n x 8 / num_bits)."""
        return torch.empty(_wider(quantized, num_bits), dtype=torch.float32, device=DEVICE)

    def swizzle_quant(
        self, values: torch.Tensor, groups: int, num_bits: int, kind: str, pipeline_size: int, nodes: int, devices: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """fp16 of any shape to int8 (n x num_bits / 8), in the order of who gets it, and the scales."""
        return _integers(values.numel() * num_bits // 8), _scales(groups, kind)

    def quantized_reduction(
        self,
        values: torch.Tensor,
        scales: torch.Tensor,
        in_groups: int,
        out_groups: int,
        num_bits: int,
        kind: str,
        devices: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int8 (..., n) of all GPUs of a node to their sum (..., n / devices), and the scales."""
        *others, last = values.shape
        return _integers(*others, last // devices), _scales(out_groups, kind)


def _integers(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device=DEVICE)


def _scales(groups: int, kind: str) -> torch.Tensor:
    return torch.empty((groups, 2 if kind == _ASYMMETRIC else 1), dtype=torch.float32, device=DEVICE)


def _wider(quantized: torch.Tensor, num_bits: int) -> tuple[int, ...]:
    *others, last = quantized.shape
    return (*others, last * 8 // num_bits)
