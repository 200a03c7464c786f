"""DeepSpeed's reads and writes of NVMe without files: the buffers are there, nothing is moved.

Source: DeepSpeed 0.19.8, ops/csrc/aio/py_lib/deepspeed_py_io_handle.cpp, ops/csrc/pin_memory/deepspeed_pin_tensor.cpp.
"""

from __future__ import annotations

from typing import ClassVar

import torch


class AsyncIoWithoutFiles:
    """``deepspeed.ops.op_builder.AsyncIOBuilder().load()``."""

    def __init__(self) -> None:
        self.aio_handle = Handle


class Handle:
    """One queue of requests; locked memory is the process's, whichever handle made it."""

    _locked: ClassVar[set[int]] = set()

    def __init__(
        self, block_size: int, queue_depth: int, single_submit: bool, overlap_events: bool, intra_op_parallelism: int
    ) -> None:
        self._num_pending = 0

    def new_cpu_locked_tensor(self, num_elements: int, example: torch.Tensor) -> torch.Tensor:
        """Host memory in a piece of this very size, as ``example`` (any shape) has its type."""
        tensor = torch.empty(num_elements, dtype=example.dtype, device="cpu")
        self._locked.add(id(tensor.untyped_storage()))
        return tensor

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        self._locked.discard(id(tensor.untyped_storage()))
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return id(tensor.untyped_storage()) in self._locked

    def async_pread(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        """0: taken."""
        self._num_pending += 1
        return 0

    async_pwrite = async_pread

    def wait(self) -> int:
        """Requests that are done."""
        done, self._num_pending = self._num_pending, 0
        return done
