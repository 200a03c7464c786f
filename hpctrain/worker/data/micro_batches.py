"""The micro batches of one optimizer step, on this rank's device."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpctrain.worker.data.batches import TokenBatches


class MicroBatches(Iterator[tuple[Tensor, Tensor]]):
    """Ids and labels of a step's micro batches in order, each int64 (micro_batch, seq)."""

    def __init__(self, batches: TokenBatches, step: int, device: torch.device) -> None:
        """Makes nothing yet.

        Args:
            batches: this rank's sequences.
            step: optimizer step, from 1.
            device: where the tensors go.
        """
        self.num_left = batches.batch.gradient_accumulation_steps
        self.data_time_s = 0.0
        """Seconds spent on making batches so far."""
        self._batches = batches
        self._step = step
        self._device = device

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self.num_left == 0:
            raise StopIteration
        start_s = time.perf_counter()
        micro_step = self._batches.batch.gradient_accumulation_steps - self.num_left
        ids, labels = self._batches.micro_batch(self._step, micro_step)
        pair = _to_device(ids, self._device), _to_device(labels, self._device)
        self.num_left -= 1
        self.data_time_s += time.perf_counter() - start_s
        return pair


def _to_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """The array as a tensor; to a GPU by a copy that the host does not wait for."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
