"""Inputs of recomputed blocks that wait in host memory between the forward and the backward pass."""

from __future__ import annotations

import functools
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class HostInputs:
    """The inputs that one forward pass puts away, in its order; its backward pass takes them back in the reverse.

    On a GPU both copies run on streams of their own. The way out overlaps with the block that reads the input; a link that
    takes longer for an input than the GPU for a block lets inputs queue up on the GPU. The way back is begun one block ahead,
    so it overlaps with that block's recomputation and backward pass, and one input more is on the GPU; the very first has
    nothing before it and is waited for. What waits is pinned; torch's host cache rounds each input up to a power of two.
    On a CPU device the copy is made as well, at once, and saves nothing.
    """

    def __init__(self) -> None:
        self._newest: _WaitingInput | None = None

    def hooks(self) -> saved_tensors_hooks:
        """Within it, what autograd saves is put away; within a checkpoint of torch's, that is its arguments."""
        return saved_tensors_hooks(self._put_away, _WaitingInput.taken_back)

    def _put_away(self, x: Tensor) -> _WaitingInput:
        self._newest = _WaitingInput(x, self._newest)
        return self._newest


class _WaitingInput:
    """One input on the host, with the one before it."""

    def __init__(self, x: Tensor, previous: _WaitingInput | None) -> None:
        self._device = x.device
        self._previous = previous
        self._returned: Tensor | None = None
        self._arrival: Any = None
        self._on_host: Tensor = get_accelerator().pin_empty_like(x)
        self._streams = _copy_streams()
        if self._streams is None:
            self._on_host.copy_(x)
            return
        out, _ = self._streams
        out.wait_stream(get_accelerator().current_stream())
        with get_accelerator().stream(out):
            self._on_host.copy_(x, non_blocking=True)
            self._departure = out.record_event()
        # The allocator keeps the memory of x from being used again before the copy is done, whenever x is dropped.
        x.record_stream(out)

    def taken_back(self) -> Tensor:
        """The input on its device again; work queued from now on finds it whole.

        It is handed over: autograd keeps this object until the whole backward pass is over, and must not keep the input with it.
        """
        self._begin_return()
        if self._arrival is not None:
            get_accelerator().current_stream().wait_event(self._arrival)
        if self._previous is not None:
            self._previous._begin_return()
        returned, self._returned = self._returned, None
        assert returned is not None
        return returned

    def _begin_return(self) -> None:
        if self._returned is not None:
            return
        # Memory of the computing stream, which waits for the copy before it reads or frees it.
        self._returned = torch.empty_like(self._on_host, device=self._device)
        if self._streams is None:
            self._returned.copy_(self._on_host)
            return
        _, back = self._streams
        back.wait_event(self._departure)
        back.wait_stream(get_accelerator().current_stream())
        with get_accelerator().stream(back):
            self._returned.copy_(self._on_host, non_blocking=True)
            self._arrival = back.record_event()


@functools.cache
def _copy_streams() -> tuple[Any, Any] | None:
    """To the host and back; None: the device works while the host waits, as a CPU does."""
    accelerator = get_accelerator()
    return None if accelerator.is_synchronized_device() else (accelerator.Stream(), accelerator.Stream())
