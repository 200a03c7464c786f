"""Gradients that are reduced in their own storage beside the backward pass live until they are reduced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor


def keep_until_reduced(engine: Any) -> None:
    """Has the optimizer of stage 1 or 2 tell the allocator of each gradient that is too large for the bucket.

    DeepSpeed 0.19.8 (runtime/zero/stage_1_and_2.py reduce_ipg_grads, average_tensor with reduce_scatter off) gives such a
    gradient to a collective in a stream of its own and drops it at once: without a record of that stream the allocator gives
    its memory to the next activation of the backward pass, into which the collective then writes. With optimizer offload
    DeepSpeed records it itself.
    """
    optimizer = engine.optimizer
    if isinstance(optimizer, DeepSpeedZeroOptimizer) and optimizer.overlap_comm and not optimizer.cpu_offload:
        optimizer.average_tensor = functools.partial(_average, optimizer, optimizer.average_tensor)


def _average(optimizer: Any, average: Callable[[Tensor, Any], None], tensor: Tensor, data_type: Any) -> None:
    if tensor.numel() > optimizer.reduce_bucket_size:
        tensor.record_stream(optimizer.reduction_stream)
    average(tensor, data_type)
