"""Collectives of one process that stands for all: what other ranks would send is made up here, of this rank's own values.

Torch's fake group leaves most results as they are, uninitialised; values that are not finite would make the engine skip its
steps. Here a gather gives the own share once for each rank, and a reduction or an exchange gives the own part back: numbers stay
finite and of the size that a job's have, which matters to a GPU's clock. Each writes as much memory as the real one receives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpctrain.rehearse.collectives import finished_work

_OVERRIDES_ON_PURPOSE = "Warning only once for all operators,  other operators may also be overridden"


def register(device_type: str) -> None:
    """Puts them in the place of the fake group's for tensors of one device type, once in a process; the group is there.

    All others (all_reduce, broadcast, send, barrier) stay torch's, which leave every tensor as it is.
    """
    work = finished_work()
    library = torch.library.Library("c10d", "IMPL", device_type.upper())  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OVERRIDES_ON_PURPOSE)
        for name, function in _KERNELS.items():
            library.impl(name, _answering(function, work, name in _RETURN_TENSOR))  # type: ignore[no-untyped-call]


_LIBRARIES: list[Any] = []
"""Kept alive: what is registered goes with it."""


def _answering(function: Callable[..., None], work: Any, returns_tensor: bool) -> Callable[..., Any]:
    """An operator of torch.ops.c10d: does it at once, and returns its first argument where the operator does, and its work."""

    @torch.no_grad()
    def operator(*arguments: Any) -> Any:
        place = next(place for place, value in enumerate(arguments) if isinstance(value, torch.ScriptObject))
        # Options behind the group say how to reduce and whether to wait: one rank's sum is its own in any case.
        function(*arguments[:place], dist.ProcessGroup.unbox(arguments[place]))
        return (arguments[0], work) if returns_tensor else work

    return operator


def gather(out: Tensor, own: Tensor, group: Any) -> None:
    """Fills ``out``, (ranks x n) elements, with ``own`` of n elements, which may be a part of it."""
    rows, rank = out.view(group.size(), -1), group.rank()
    if rows[rank].data_ptr() != own.data_ptr():
        rows[rank].copy_(own.view(-1))
    # Not in one go: the source would be a part of the target.
    rows[:rank].copy_(rows[rank])
    rows[rank + 1 :].copy_(rows[rank])


def reduce_scatter(out: Tensor, whole: Tensor, group: Any) -> None:
    """Gives ``out`` this rank's part of ``whole``."""
    own = whole.view(group.size(), -1)[group.rank()]
    if out.data_ptr() != own.data_ptr():
        out.view(-1).copy_(own)


def exchange(out: Tensor, own: Tensor, group: Any) -> None:
    """What goes to the others comes back from them."""
    del group
    out.view(-1).copy_(own.view(-1))


def receive(tensors: Sequence[Tensor], group: Any) -> None:
    """Noise of the size of activations; how things are cut into parts, in whole numbers, is known (``tell_shapes``)."""
    del group
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.normal_()


def _each(function: Callable[[Tensor, Tensor, Any], None]) -> Callable[..., None]:
    def of_lists(outs: Sequence[Tensor], ins: Sequence[Tensor], group: Any) -> None:
        for out, own in zip(outs, ins, strict=True):
            function(out, own, group)

    return of_lists


_KERNELS: dict[str, Callable[..., None]] = {
    "_allgather_base_": gather,
    "allgather_into_tensor_coalesced_": _each(gather),
    "_reduce_scatter_base_": reduce_scatter,
    "reduce_scatter_tensor_coalesced_": _each(reduce_scatter),
    "alltoall_base_": exchange,
    "recv_": receive,
}
_RETURN_TENSOR = ("_allgather_base_", "_reduce_scatter_base_")
"""Source: torch 2.13, torch/csrc/distributed/c10d/Ops.cpp."""
