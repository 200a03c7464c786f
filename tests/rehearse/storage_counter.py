"""How many bytes the storages of a process hold: each counted once from the operator that makes it until it is freed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.rehearse.truth_cases import Rows


class StorageCounter(TorchDispatchMode):
    """Peak and resting bytes by phase. Storages of the meta device hold nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Rows = {}
        self._live_bytes = 0
        self._known: dict[int, int] = {}
        self._row = [0, 0]

    def begin(self, phase: str) -> None:
        """Ends the phase before and begins another, or the same of a later micro-step."""
        self.end()
        self._row = self.rows.setdefault(phase, [0, 0])
        self._row[0] = max(self._row[0], self._live_bytes)

    def end(self) -> None:
        self._row[1] = self._live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self._see(leaf.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key not in self._known:
            weakref.finalize(storage, self._forget, key)
        self._live_bytes += num_bytes - self._known.get(key, 0)
        self._known[key] = num_bytes
        self._row[0] = max(self._row[0], self._live_bytes)

    def _forget(self, key: int) -> None:
        self._live_bytes -= self._known.pop(key)
