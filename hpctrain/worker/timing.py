"""Points in time on the device: events in a GPU's queue, the host's clock on the CPU."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Mark:
    """A point in the device's queue of work."""

    host_s: float
    """``time.perf_counter`` when the mark was made."""
    event: torch.cuda.Event | None
    """On a GPU, which reaches the mark later than the host."""

    def wait(self) -> None:
        """Returns when the device has reached the mark."""
        if self.event is not None:
            self.event.synchronize()


def mark(device: torch.device) -> Mark:
    """A mark behind all work queued so far; the host does not wait."""
    if device.type != "cuda":
        return Mark(time.perf_counter(), None)
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return Mark(time.perf_counter(), event)


def seconds_between(start: Mark, end: Mark) -> float:
    """Device time from one mark to another, both already reached."""
    if start.event is None or end.event is None:
        return end.host_s - start.host_s
    return float(start.event.elapsed_time(end.event)) / 1e3


def peak_memory_bytes(device: torch.device) -> int:
    """The GPU allocator's peak since the start, on the CPU the process's peak resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts ru_maxrss in KiB. Source: getrusage(2).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
