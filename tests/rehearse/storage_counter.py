"""What a real process holds and sends: each storage from the operator that makes it until it is freed; each collective."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.rehearse.truth_cases import Rows

_KINDS = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all"}
"""Names of torch.ops.c10d that are spelt otherwise in a rehearsal."""


class StorageCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. Storages of the meta device hold nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: Rows = {}
        self.collectives: Rows = {}
        """Phase and kind to count and bytes, of the larger side."""
        self._phase = ""
        self._live_bytes = 0
        self._known: dict[int, int] = {}
        self._row = [0, 0]

    def begin(self, phase: str) -> None:
        """Ends the phase before and begins another, or the same of a later micro-step."""
        self.end()
        self._phase = phase
        self._row = self.rows.setdefault(phase, [0, 0])
        self._row[0] = max(self._row[0], self._live_bytes)

    def end(self) -> None:
        self._row[1] = self._live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count_collective(func.__name__.partition(".")[0], args)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self._see(leaf.untyped_storage())
        return out

    def _count_collective(self, name: str, args: Any) -> None:
        kind = name.strip("_").removesuffix("_base")
        row = self.collectives.setdefault(f"{self._phase} {_KINDS.get(kind, kind)}", [0, 0])
        row[0] += 1
        sides = [[leaf for leaf in tree_leaves(side) if isinstance(leaf, torch.Tensor)] for side in args[:2]]
        row[1] += max(sum(leaf.nbytes for leaf in side) for side in sides)

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key not in self._known:
            weakref.finalize(storage, self._forget, key)
        self._live_bytes += num_bytes - self._known.get(key, 0)
        self._known[key] = num_bytes
        self._row[0] = max(self._row[0], self._live_bytes)

    def _forget(self, key: int) -> None:
        self._live_bytes -= self._known.pop(key)
