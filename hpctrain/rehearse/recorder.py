"""Sees every operator: books its storages, its FLOPs, and each collective in place of carrying it out."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from hpctrain.rehearse.collectives import CollectiveBook
from hpctrain.rehearse.ledger import Entry, Ledger, counted_bytes, entry_for
from hpctrain.rehearse.owners import PlaceFinder
from hpctrain.rehearse.private_names import private

_SAME_FORMULA = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
}
"""Operators that torch's counter has no formula for, and one of the same products and arguments that it has."""


_MANY = 16
"""Tensors in one list, as many as there are in a rank's own work at most."""


class RecorderMethods:
    """Collects while it is entered; a dispatch mode by its other base, a private name of torch, see ``recorder``."""

    def __init__(
        self,
        ledger: Ledger,
        collectives: CollectiveBook,
        places: PlaceFinder,
        gpu_device_type: str,
        with_contents: bool,
    ) -> None:
        super().__init__()
        self.flops: Counter[tuple[int, str]] = Counter()
        """By step and operator."""
        self.gradient_shapes: set[tuple[int, ...]] = set()
        """Of matrices that are parameters."""
        self.num_tokens = 0
        """Of a micro-step: what a weight's gradient is summed over."""
        self._ledger, self._collectives, self._places = ledger, collectives, places
        self._gpu_device_type, self._with_contents = gpu_device_type, with_contents
        self._formulas: dict[Any, Callable[..., int] | None] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._local_scalar = private("torch.ops.aten._local_scalar_dense").default

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ledger = self._ledger
        ledger.operators += 1
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            answer = self._collectives.take(func, args, ledger.step, ledger.phase)
            return func(*args, **kwargs) if self._with_contents else answer
        if not self._with_contents and func is self._local_scalar:
            return _healthy_value(args[0].dtype)
        if func is torch.ops.aten.isinf.default:
            # One operator to a dispatch mode; inside of it there is a copy. Source: ATen/native/TensorCompare.cpp isinf.
            with self:  # type: ignore[attr-defined]
                return args[0].abs() == math.inf
        out = func(*args, **kwargs) if self._with_contents else _without_contents(func, args, kwargs)
        if func not in self._formulas:
            self._formulas[func] = _flop_formula(func)
        formula = self._formulas[func]
        if formula is not None:
            self.flops[ledger.step, func.name()] += formula(*args, **kwargs, out_val=out)
        self._see(out, func, args)
        return out

    def _see(self, out: Any, func: Any, args: Any) -> None:
        if isinstance(out, torch.Tensor):
            self._see_tensor(out, func, args)
        elif isinstance(out, list | tuple):
            for part in out:
                self._see(part, func, args)

    def _see_tensor(self, tensor: torch.Tensor, func: Any, args: Any) -> None:
        device_type = tensor.device.type
        if device_type == "meta":
            return
        ledger, storage = self._ledger, tensor.untyped_storage()
        key, num_bytes = id(storage), storage.nbytes()
        on_gpu = device_type == self._gpu_device_type
        known = ledger.get(key)
        if known is not None:
            if known.num_bytes != counted_bytes(num_bytes, on_gpu):
                ledger.resize(known, counted_bytes(num_bytes, on_gpu))
            return
        if num_bytes == 0:
            return
        name = func.name().partition("::")[2].partition(".")[0]
        owner, place = self._places.find(name, ledger.phase)
        shape = tuple(tensor.shape)
        if owner == "activations" and ledger.phase == "backward" and self._is_weight_gradient(name, shape, args):
            owner = "gradients"
        entry = entry_for(num_bytes, on_gpu, owner, place, str(tensor.dtype).removeprefix("torch."), shape)
        ledger.add(key, entry)
        if self._with_contents and not on_gpu and self._gpu_device_type and tensor.is_pinned():
            self._pinned(entry, args)
        self._references[key] = weakref.ref(storage, lambda _: self._gone(key))

    def _pinned(self, entry: Entry, args: Any) -> None:
        """Books it as pinned; a copy belongs to the owner of what it was copied from."""
        self._ledger.pin(entry)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        former = None if source is None else self._ledger.get(id(source.untyped_storage()))
        if former is not None:
            self._ledger.assign_like(entry, former)

    def _gone(self, key: int) -> None:
        del self._references[key]
        self._ledger.remove(key)

    def _is_weight_gradient(self, name: str, shape: tuple[int, ...], args: Any) -> bool:
        """A product over all tokens in the shape of a parameter, or the gradient of a table.

        It is a guess where the number of tokens equals a width of the model; the parameter's own hook corrects it.
        """
        if name == "embedding_dense_backward":
            return True
        return name == "mm" and shape in self.gradient_shapes and args[0].shape[1] == self.num_tokens


def recorder(
    ledger: Ledger, collectives: CollectiveBook, places: PlaceFinder, gpu_device_type: str, with_contents: bool
) -> Any:
    """The dispatch mode, made here since its base class is a private name of torch.

    Args:
        ledger: gets the storages.
        collectives: gets operators of torch.ops.c10d.
        places: says whose a storage is.
        gpu_device_type: tensors of this device type are on the GPU, all others on the host; those on meta are nowhere.
        with_contents: tensors are real: values are read from them.
    """
    base = private("torch.utils._python_dispatch.TorchDispatchMode")
    mode = type("Recorder", (RecorderMethods, base), {})
    return mode(ledger, collectives, places, gpu_device_type, with_contents)


def _without_contents(func: Any, args: Any, kwargs: Any) -> Any:
    """What the operator gives out under fake tensors, by a shorter way where torch's own is long or leads nowhere."""
    if func is torch.ops.aten.cat.default and len(args[0]) >= _MANY:
        return _joined(args[0], *args[1:], **kwargs)
    if func is torch.ops.aten._to_copy.default and (args[0].numel() == 1 or _is_known(args[0])):
        return _copied_numbers(args[0], **kwargs)
    return func(*args, **kwargs)


def _joined(parts: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """``torch.cat`` of a slice from each rank: torch would look at every one of them, only to find the size."""
    size = list(parts[0].shape)
    size[dim] = sum(part.shape[dim] for part in parts)
    return parts[0].new_empty(size)


def _is_known(tensor: torch.Tensor) -> bool:
    """Torch keeps the values of a fake tensor that was made from a list."""
    return getattr(tensor, "constant", None) is not None


def _copied_numbers(source: torch.Tensor, **named: Any) -> torch.Tensor:
    """``Tensor.to`` of numbers whose values torch knows: it would carry out the copy to a device that is not there."""
    dtype, device = named.get("dtype") or source.dtype, named.get("device") or source.device
    return torch.empty(source.shape, dtype=dtype, device=device)


def _healthy_value(dtype: torch.dtype) -> float | int | bool:
    """What the engine reads in a step without overflow: norm 1.0, nothing infinite."""
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 0


def _flop_formula(func: Any) -> Callable[..., int] | None:
    packet = func.overloadpacket
    name = func.name().partition("::")[2].partition(".")[0]
    if name in _SAME_FORMULA:
        packet = getattr(torch.ops.aten, _SAME_FORMULA[name])
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return formula
