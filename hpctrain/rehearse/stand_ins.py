"""What stands in for tensors' contents, for other ranks and for native kernels. Put in place once, in a process of its own."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from hpctrain.errors import HpctrainError
from hpctrain.rehearse.async_io import AsyncIoWithoutFiles
from hpctrain.rehearse.ledger import Ledger
from hpctrain.rehearse.private_names import NAMES, private, replace_private
from hpctrain.rehearse.quantizer import QuantizerWithoutKernels
from hpctrain.rehearse.simulated_gpu import DEVICE, NoKernels, pinned_copy

_ASYNC_IO_BUILDERS = [name for name in NAMES if name.endswith(".AsyncIOBuilder.load")]
_SAME_ON_ALL_RANKS = [name for name in NAMES if name.endswith(".assert_ints_same_as_other_ranks")]


_FROM_PARTS = "deepspeed.runtime.utils.PartitionedTensor.from_meta"
"""It keeps the accelerator's name of when it was imported."""


class CannotRehearseError(HpctrainError):
    """A configuration that may well run, and that a rehearsal cannot carry."""


def before_deepspeed_is_imported() -> None:
    """DeepSpeed keeps the ``torch.tensor`` that it finds, and zero.Init puts that one back."""
    private("torch._dynamo")
    torch.tensor = _tensor_without_contents(torch.tensor)


def for_other_ranks() -> None:
    """Ranks compare lists of numbers; there is nobody to compare with."""
    for name in _SAME_ON_ALL_RANKS:
        replace_private(name, lambda ints: None)


def for_fake_tensors() -> None:
    """What the engine does with contents, or with the other ranks' answers, on any device."""
    for_other_ranks()
    replace_private("deepspeed.ops.op_builder.builder.OpBuilder.load", _loaded)
    for name in _ASYNC_IO_BUILDERS:
        replace_private(name, lambda builder, *_, **__: AsyncIoWithoutFiles())
    torch.nn.Module.to = _moved_in_place  # type: ignore[method-assign, assignment]
    torch.Tensor.narrow = _shared_narrow(torch.Tensor.narrow)  # type: ignore[method-assign]
    torch.Tensor.__getitem__ = _shared_getitem(torch.Tensor.__getitem__)  # type: ignore[method-assign]


def for_simulated_gpu(ledger: Ledger) -> None:
    """What torch would ask a driver for."""
    torch.Tensor.record_stream = lambda self, s: None  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *_: pinned_copy(ledger, self)  # type: ignore[method-assign]
    functional.scaled_dot_product_attention = _flash_attention
    replace_private(_FROM_PARTS, staticmethod(functools.partial(private(_FROM_PARTS), device=DEVICE)))
    private("torch.ops.aten._fused_rms_norm")
    _KERNELS.impl("_fused_rms_norm", _fused_rms_norm)  # type: ignore[no-untyped-call]


_KERNELS = torch.library.Library("aten", "IMPL", "PrivateUse1")  # type: ignore[no-untyped-call]
"""Kept alive: what is registered goes with it."""


def _fused_rms_norm(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A GPU has a kernel that keeps one fp32 number a row; without one torch would keep two fp32 copies of ``x``.

    Source: torch 2.13, aten/src/ATen/native/layer_norm.cpp rms_norm_symint.
    """
    del normalized_shape, weight, eps
    return torch.empty_like(x), torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)


def _loaded(builder: Any, *_: Any, **__: Any) -> NoKernels | QuantizerWithoutKernels:
    """``OpBuilder.load``: of optimizers, whose kernels change values only, and of the quantizer.

    Raises:
        CannotRehearseError: another library, whose functions may give out tensors.
    """
    name = str(builder.name)
    if name == _QUANTIZER:
        return QuantizerWithoutKernels()
    if not any(optimizer in name for optimizer in _OPTIMIZERS):
        raise CannotRehearseError(
            f"{name}: DeepSpeed calls this native library here, and the rehearsal has no stand-in for it; nearest: rehearse the"
            " plan without what needs it"
        )
    return NoKernels()


_OPTIMIZERS = ("adam", "adagrad", "lion", "lamb")
_QUANTIZER = "quantizer"


def _tensor_without_contents(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``torch.tensor``: on the simulated GPU its copy would be carried out, to keep a constant."""

    def tensor(data: Any, *arguments: Any, device: Any = None, **named: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != DEVICE:
            return original(data, *arguments, device=device, **named)
        on_host = original(data, *arguments, **named)
        return torch.empty(on_host.shape, dtype=on_host.dtype, device=device)

    return tensor


def _moved_in_place(module: torch.nn.Module, *arguments: Any, **named: Any) -> torch.nn.Module:
    """``Module.to``: torch would swap each fake parameter for another one, and refuses since the engine refers to it."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.to(*arguments, **named)
    return module


def _flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel that a GPU takes for 16-bit tensors without a mask; torch knows none for the simulated device.

    It reads grouped heads as they are, and wants a head width of a multiple of 8, to which torch pads.
    Source: torch 2.13, aten/src/ATen/native/transformers/attention.cpp.
    """
    width = query.size(-1)
    if attn_mask is not None or query.dtype not in (torch.bfloat16, torch.float16):
        return _plain_attention(query, key, value, attn_mask, is_causal)
    padded = [functional.pad(tensor, (0, -width % 8)) if width % 8 else tensor for tensor in (query, key, value)]
    flash = private("torch.ops.aten._scaled_dot_product_flash_attention")
    out: torch.Tensor = flash(*padded, dropout_p, is_causal, scale=scale)[0]
    return out[..., :width] if width % 8 else out


def _plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> torch.Tensor:
    """What torch takes for fp32: the memory-efficient kernel where there is no mask. Grouped heads are repeated for it."""
    repeats = query.size(-3) // key.size(-3)
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    efficient = private("torch.ops.aten._scaled_dot_product_efficient_attention")
    out: torch.Tensor = efficient(query, key, value, mask, torch.is_grad_enabled(), 0.0, is_causal)[0]
    return out


# The engine cuts flat buffers into as many slices as there are ranks. A slice without contents is as good as any other of its
# length: they share one tensor, weakly held, so that lifetimes stay the engine's. 530B at 1,024 ranks: 50 s become 7.5 s.


def _shared_slice(tensor: torch.Tensor, length: int, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    if length <= 0 or tensor.dim() != 1 or torch.is_grad_enabled():
        return make()
    slices = tensor.__dict__.get("_hpctrain_slices")
    if slices is None:
        slices = tensor.__dict__["_hpctrain_slices"] = weakref.WeakValueDictionary()
    found: torch.Tensor | None = slices.get(length)
    if found is None:
        found = slices[length] = make()
    return found


def _shared_narrow(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def narrow(self: torch.Tensor, dim: int, start: Any, length: int) -> torch.Tensor:
        return _shared_slice(self, length, lambda: original(self, dim, start, length))

    return narrow


def _shared_getitem(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def getitem(self: torch.Tensor, index: Any) -> torch.Tensor:
        is_plain = type(index) is slice and index.step is None and self.dim() == 1
        if is_plain and isinstance(index.start, int) and isinstance(index.stop, int) and index.start >= 0:
            length = min(index.stop, self.numel()) - index.start
            return _shared_slice(self, length, lambda: original(self, index))
        return original(self, index)

    return getitem
