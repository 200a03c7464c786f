"""What ranks must know of each other before they go on together."""

from __future__ import annotations

import torch.distributed as dist


def first_error(error: str) -> str:
    """The first rank's error on all ranks; empty if none has one."""
    errors: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    return next((f"rank {number}: {text}" for number, text in enumerate(errors) if text), "")
