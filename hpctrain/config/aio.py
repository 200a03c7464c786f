"""How tensors are read from and written to NVMe; in a module of its own, beside ``schema``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hpctrain.config.limits import Limits


@dataclass(frozen=True)
class AioConfig:
    """Reads and writes of NVMe through libaio; DeepSpeed's ``aio`` section."""

    block_size: Annotated[int, Limits(ge=4096, lt=2**31)] = 1_048_576
    """Bytes of one request; what is smaller than one, or than 1 MiB, is never moved to NVMe."""
    queue_depth: Annotated[int, Limits(gt=0, lt=2**16)] = 32
    """Requests on their way at once."""
    threads: Annotated[int, Limits(gt=0, le=256)] = 1
    """Threads of a rank that share each tensor."""
    single_submit: bool = False
    """Hand requests over one by one."""
    overlap_events: bool = True
    """Hand new requests over while others are waited for."""
