"""A GPU that is not there: a device for torch, and DeepSpeed's accelerator object for it.

Work on it is asynchronous, as on a GPU: the engine takes its branches with streams and events, which are over at once here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import torch

from hpctrain.rehearse.ledger import Ledger
from hpctrain.rehearse.private_names import private

DEVICE = "simgpu"
BACKEND = "simfake"
"""Name of the process group's backend for this device."""
_UNKNOWN_CAPACITY = 1 << 50


NUMBER = 0
"""Of the one GPU that the process sees, whatever its local rank: torch has a queue for the first one only."""


def register_device() -> None:
    """Makes torch know the device, once in a process."""
    guard_base, device_type = private("torch._C._acc.DeviceGuard"), private("torch._C._autograd.DeviceType")
    module_base = private("torch.utils.backend_registration._DummyBackendModule")

    class Guard(guard_base):  # type: ignore[misc, valid-type]
        def type_(self) -> Any:
            return device_type.PrivateUse1

    class Module(module_base):  # type: ignore[misc, valid-type]
        def current_device(self) -> int:
            return NUMBER

        def device_count(self) -> int:
            return NUMBER + 1

        def get_rng_state(self, *_: Any) -> torch.Tensor:
            return torch.get_rng_state()

        def set_rng_state(self, *_: Any) -> None:
            """Nothing is drawn."""

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.float16, torch.bfloat16]

    setup = private("torch.utils.backend_registration._setup_privateuseone_for_python_backend")
    setup(DEVICE, backend_module=Module(), device_guard=Guard())


class Stream:
    """A queue that is always empty."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *_: Any) -> Event:
        return Event()


class Event:
    """A mark in a queue, reached at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class NoKernels:
    """A native library whose functions do nothing: the optimizers around it make their states all the same."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def accelerator(ledger: Ledger, num_devices: int, capacity_bytes: int | None) -> Any:
    """DeepSpeed's accelerator object of the simulated GPU: a CUDA one with another device below.

    Args:
        ledger: says how much is allocated.
        num_devices: of a node.
        capacity_bytes: of one GPU; the engine asks for what is free. None: as much as it likes.
    """
    base = private("deepspeed.accelerator.cuda_accelerator.CUDA_Accelerator")
    members = _device_members(num_devices) | _memory_members(ledger, capacity_bytes or _UNKNOWN_CAPACITY)
    return type("SimulatedGpuAccelerator", (base,), members | _tensor_members(ledger))()


def _device_members(num_devices: int) -> dict[str, Any]:
    stream = Stream()

    def init(self: Any) -> None:
        # Of the base class; its own would look for a driver.
        self._name, self._communication_backend_name = DEVICE, BACKEND
        self._compile_backend, self._nvtx_domains = "inductor", {}

    def name(self: Any, index: int | None = None) -> str:
        return DEVICE if index is None else f"{DEVICE}:{NUMBER}"

    return {
        "__init__": init,
        "device_name": name,
        "device": lambda self, index=None: torch.device(DEVICE, NUMBER),
        "set_device": lambda self, index: None,
        "current_device": lambda self: NUMBER,
        "current_device_name": lambda self: f"{DEVICE}:{NUMBER}",
        "device_count": lambda self: num_devices,
        "synchronize": lambda self, index=None: None,
        "communication_backend_version": lambda self: (0, 0, 0),
        "get_rng_state": lambda self, index=None: torch.get_rng_state(),
        "set_rng_state": lambda self, state, index=None: None,
        "manual_seed": lambda self, seed: None,
        "manual_seed_all": lambda self, seed: None,
        "initial_seed": lambda self: 0,
        "Stream": Stream,
        "stream": lambda self, given: given or stream,
        "current_stream": lambda self, index=None: stream,
        "default_stream": lambda self, index=None: stream,
        "Event": Event,
        "lazy_call": lambda self, callback: None,
        "range_push": lambda self, *_, **__: None,
        "range_pop": lambda self, *_, **__: None,
        "is_available": lambda self: True,
        "is_bf16_supported": lambda self: True,
        "is_fp16_supported": lambda self: True,
        "is_triton_supported": lambda self: False,
    }


def _memory_members(ledger: Ledger, capacity_bytes: int) -> dict[str, Any]:
    def allocated(self: Any, index: int | None = None) -> int:
        return ledger.live_bytes("gpu")

    def most_allocated(self: Any, index: int | None = None) -> int:
        return ledger.peak_bytes("gpu")

    def nothing(self: Any, index: int | None = None) -> None:
        return None

    return {
        "empty_cache": nothing,
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "memory_cached": allocated,
        "max_memory_allocated": most_allocated,
        "max_memory_reserved": most_allocated,
        "max_memory_cached": most_allocated,
        "reset_peak_memory_stats": nothing,
        "reset_max_memory_allocated": nothing,
        "reset_max_memory_cached": nothing,
        "memory_stats": lambda self, index=None: {},
        "total_memory": lambda self, index=None: capacity_bytes,
        "available_memory": lambda self, index=None: capacity_bytes - ledger.live_bytes("gpu"),
    }


def _tensor_members(ledger: Ledger) -> dict[str, Any]:
    def pin_memory(self: Any, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        return pinned_copy(ledger, tensor)

    def pin_empty_like(self: Any, tensor: torch.Tensor, device: str = "cpu") -> torch.Tensor:
        return pinned_copy(ledger, tensor)

    def is_pinned(self: Any, tensor: torch.Tensor) -> bool:
        entry = ledger.get(id(tensor.untyped_storage()))
        return entry is not None and entry.pinned_rounded_bytes > 0

    members: dict[str, Any] = {
        "pin_memory": pin_memory,
        "pin_empty_like": pin_empty_like,
        "unpin_memory": lambda self, tensor: None,
        "is_pinned": is_pinned,
        "on_accelerator": lambda self, tensor: tensor.device.type == DEVICE,
    }
    for prefix, dtype in _TYPED_TENSORS.items():
        members[f"{prefix}Tensor"] = staticmethod(functools.partial(torch.tensor, dtype=dtype, device=DEVICE))
    return members


_TYPED_TENSORS = {
    "Float": torch.float,
    "Int": torch.int,
    "Byte": torch.uint8,
    "Long": torch.long,
    "Half": torch.half,
    "Double": torch.double,
    "BFloat16": torch.bfloat16,
}


def pinned_copy(ledger: Ledger, tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor as large, booked as pinned and as belonging to the same owner."""
    source = ledger.get(id(tensor.untyped_storage()))
    copy = torch.empty_like(tensor, device="cpu")
    entry = ledger.get(id(copy.untyped_storage()))
    if entry is not None:
        ledger.pin(entry)
        if source is not None:
            ledger.assign_like(entry, source)
    return copy
