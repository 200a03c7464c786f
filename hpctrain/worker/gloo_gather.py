"""All-gathers of CPU ranks in the place where the result is wanted."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor


def gather_in_place() -> None:
    """Gives DeepSpeed's communication (after its start) this all-gather, for all stages.

    gloo's own copies every share into a buffer of the whole and out of it again (torch 2.13, ProcessGroupGloo.cpp): a broadcast
    of each share needs neither, and between two ranks takes half the time.
    """
    deepspeed.comm.comm.cdb.all_gather_function = _all_gather


class _Broadcasts:
    """What a caller of an asynchronous collective waits for."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _all_gather(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> _Broadcasts | None:
    """As ``torch.distributed.all_gather_into_tensor``; both tensors contiguous.

    Args:
        output_tensor: (ranks x shares' elements); may hold ``input_tensor`` at this rank's place.
        input_tensor: this rank's share.
        group: of the ranks; None: all.
        async_op: return at once.
    """
    num_ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    # Bytes, so that every data type goes the same way.
    shares = output_tensor.view(-1).view(torch.uint8).view(num_ranks, -1)
    if shares[rank].data_ptr() != input_tensor.data_ptr():
        shares[rank].copy_(input_tensor.view(-1).view(torch.uint8))
    works = [dist.broadcast(share, group=group, group_src=source, async_op=True) for source, share in enumerate(shares)]
    gathering = _Broadcasts([work for work in works if work is not None])
    if async_op:
        return gathering
    gathering.wait()
    return None
