"""What DeepSpeed's optimizer of stages 1 and 2 tells the allocator before it reduces a gradient beside the backward pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from hpctrain.worker.overlapped_reduction import keep_until_reduced

STREAM = object()
BUCKET = 8
"""Elements."""


@pytest.mark.parametrize(
    ("numel", "overlaps", "offloads", "is_recorded"),
    [
        pytest.param(BUCKET + 1, True, False, True, id="larger than the bucket"),
        pytest.param(BUCKET, True, False, False, id="the bucket itself, which stays till the end"),
        pytest.param(BUCKET + 1, False, False, False, id="in the stream of the backward pass"),
        pytest.param(BUCKET + 1, True, True, False, id="with optimizer offload DeepSpeed does it"),
    ],
)
def test_its_storage_is_kept_for_the_stream_that_reduces_it(
    numel: int, overlaps: bool, offloads: bool, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    # No CPU tensor knows streams, and a collective needs ranks.
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: events.append((tensor.numel(), stream)))
    monkeypatch.setattr(DeepSpeedZeroOptimizer, "average_tensor", lambda _, *arguments: events.append(arguments))
    optimizer = DeepSpeedZeroOptimizer.__new__(DeepSpeedZeroOptimizer)
    optimizer.overlap_comm, optimizer.cpu_offload = overlaps, offloads
    optimizer.reduce_bucket_size, optimizer.reduction_stream = BUCKET, STREAM
    keep_until_reduced(SimpleNamespace(optimizer=optimizer))
    gradient = torch.ones(numel)
    optimizer.average_tensor(gradient, torch.bfloat16)
    assert events == [*([(numel, STREAM)] if is_recorded else []), (gradient, torch.bfloat16)]
