"""Collectives of torch's process groups, seen as operators: counted, and not carried out, since nobody is at the other end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

from hpctrain.rehearse.private_names import TORCH_SEEN, MissingNameError
from hpctrain.rehearse.result import Collective, Phase

_WORK, _TENSORS_AND_WORK, _NOTHING = range(3)
"""What an operator returns."""

_OPERATORS = {
    "allreduce_": ("all_reduce", _TENSORS_AND_WORK),
    "allreduce_coalesced_": ("all_reduce", _WORK),
    "allgather_": ("all_gather", _TENSORS_AND_WORK),
    "_allgather_base_": ("all_gather", _TENSORS_AND_WORK),
    "allgather_coalesced_": ("all_gather", _WORK),
    "allgather_into_tensor_coalesced_": ("all_gather", _WORK),
    "reduce_scatter_": ("reduce_scatter", _TENSORS_AND_WORK),
    "_reduce_scatter_base_": ("reduce_scatter", _TENSORS_AND_WORK),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", _WORK),
    "alltoall_": ("all_to_all", _TENSORS_AND_WORK),
    "alltoall_base_": ("all_to_all", _WORK),
    "broadcast_": ("broadcast", _TENSORS_AND_WORK),
    "reduce_": ("reduce", _WORK),
    "gather_": ("gather", _WORK),
    "scatter_": ("scatter", _TENSORS_AND_WORK),
    "send": ("send", _WORK),
    "recv_": ("recv", _WORK),
    "recv_any_source_": ("recv", _WORK),
    "barrier": ("barrier", _WORK),
    "monitored_barrier_": ("barrier", _NOTHING),
}
"""Kind and result of each operator of torch.ops.c10d. Source: torch 2.13, torch/csrc/distributed/c10d/Ops.cpp."""

_Key = tuple[int, Phase, str, int, bool]


class CollectiveBook:
    """Counts and bytes by step, phase, kind and group size."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._counts: Counter[_Key] = Counter()
        self._bytes: Counter[_Key] = Counter()
        self._work = finished_work()

    def take(self, func: Any, args: tuple[Any, ...], step: int, phase: Phase) -> Any:
        """Books one operator of torch.ops.c10d and returns what it would, at once done.

        Raises:
            MissingNameError: this version of torch has an operator that we do not know.
        """
        name = func.name().partition("::")[2].partition(".")[0]
        if name not in _OPERATORS:
            raise MissingNameError(
                f"torch.ops.c10d.{name}: torch {torch.__version__} has this collective and the rehearsal does not know it;"
                f" nearest: pip install torch=={TORCH_SEEN}"
            )
        kind, result = _OPERATORS[name]
        # The group comes before a reduce operator, which is such an object too.
        group = next(argument for argument in args if isinstance(argument, torch.ScriptObject))
        group_size = int(dist.ProcessGroup.unbox(group).size())
        if kind in ("send", "recv"):
            group_size = 2
        num_bytes = max(_num_bytes(argument) for argument in args[:2])
        key = (step, phase, kind, group_size, group_size == self._world_size)
        self._counts[key] += 1
        self._bytes[key] += 0 if kind == "barrier" else num_bytes
        if result == _NOTHING:
            return None
        return self._work if result == _WORK else (args[0], self._work)

    def rows(self) -> tuple[Collective, ...]:
        return tuple(
            Collective(*key, count=count, num_bytes=self._bytes[key]) for key, count in sorted(self._counts.items())
        )


def finished_work() -> Any:
    """What an asynchronous collective returns, of one that is over: taken from torch's fake group."""
    world = dist.group.WORLD
    assert world is not None
    return torch.ops.c10d.barrier(torch.zeros(1), world.boxed(), [], True, -1)


def _num_bytes(argument: Any) -> int:
    if isinstance(argument, torch.Tensor):
        return argument.numel() * argument.element_size()
    if isinstance(argument, list | tuple):
        return sum(map(_num_bytes, argument))
    return 0
