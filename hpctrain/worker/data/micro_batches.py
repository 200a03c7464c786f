"""The micro batches of a run on this rank's device, made ahead by a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from hpctrain.worker.data.batches import TokenBatches

_AHEAD = 4
"""Micro batches that wait in host memory; of 8 sequences of 2,048 tokens they are 1 MiB."""
_LEAVE_S = 5.0
"""How long the end of a run waits for a thread whose file system does not answer."""

_Pair = tuple[Tensor, Tensor]


class MicroBatchStream:
    """Micro batches in the order of the steps; a context, at whose end its thread ends.

    The thread reads the tokens and writes ids and labels into host memory, pinned where the device is a GPU, while the device
    works. It begins when the first micro batch is taken: inner stages of a pipeline take none.
    """

    def __init__(self, batches: TokenBatches, first_step: int, num_steps: int, device: torch.device) -> None:
        """Makes nothing yet.

        Args:
            batches: this rank's sequences.
            first_step: optimizer step, from 1.
            num_steps: the last step.
            device: where the tensors go.
        """
        self._batches = batches
        self._steps = range(first_step, num_steps + 1)
        self._device = device
        self._ready: queue.Queue[tuple[int, _Pair] | Exception] = queue.Queue(_AHEAD)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._prepare, name="hpctrain-data", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed.set()
        deadline_s = time.monotonic() + _LEAVE_S
        while self._thread.is_alive() and time.monotonic() < deadline_s:
            # It may be waiting for room.
            while not self._ready.empty():
                self._ready.get_nowait()
            self._thread.join(timeout=0.01)

    def step(self, step: int) -> MicroBatches:
        """The micro batches of a step; steps come in order, each taken whole or not at all."""
        return MicroBatches(self, step, self._batches.batch.accumulation_of(step))

    def take(self, step: int) -> _Pair:
        """The next micro batch, on the device; a GPU's copy is queued behind its work, and the host does not wait for it.

        Raises:
            DataError: the thread found a token that the model does not have.
            OSError: the tokens cannot be read.
        """
        if self._thread.ident is None:
            self._thread.start()
        found = self._ready.get()
        if isinstance(found, Exception):
            raise found
        made_for, (ids, labels) = found
        assert made_for == step, f"micro batches of step {made_for} were not taken before step {step}"
        return ids.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)

    def _prepare(self) -> None:
        """The thread."""
        try:
            is_gpu = self._device.type == "cuda"
            if is_gpu:
                # A thread begins on GPU 0, where pinning would make a context for each rank of the node.
                torch.cuda.set_device(self._device)
            size = (self._batches.batch.micro_batch_size, self._batches.batch.seq_len)
            for step in self._steps:
                for micro_step in range(self._batches.batch.accumulation_of(step)):
                    ids, labels = (torch.empty(size, dtype=torch.int64, pin_memory=is_gpu) for _ in range(2))
                    self._batches.read(step, micro_step, ids.numpy(), labels.numpy())
                    self._ready.put((step, (ids, labels)))
                    if self._is_closed.is_set():
                        return
        except Exception as error:  # raised where the next one is taken
            self._ready.put(error)


class MicroBatches(Iterator[_Pair]):
    """Ids and labels of a step's micro batches in order, each int64 (micro_batch, seq)."""

    def __init__(self, stream: MicroBatchStream, step: int, count: int) -> None:
        """Takes nothing yet.

        Args:
            stream: where they come from.
            step: optimizer step, from 1.
            count: micro batches of the step.
        """
        self.num_left = count
        self.data_time_s = 0.0
        """Seconds that were waited for micro batches so far."""
        self._stream = stream
        self._step = step

    def __next__(self) -> _Pair:
        if self.num_left == 0:
            raise StopIteration
        start_s = time.perf_counter()
        pair = self._stream.take(self._step)
        self.num_left -= 1
        self.data_time_s += time.perf_counter() - start_s
        return pair
