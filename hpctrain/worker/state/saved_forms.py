"""Where the engine's forms of a checkpoint keep what: ZeRO's stages, with states on NVMe, and plain data parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from hpctrain.errors import RecordError
from hpctrain.plan.layout import Layout, RankPlace
from hpctrain.record.schema import CheckpointFile, CheckpointRecord
from hpctrain.worker.checkpoint_files import SWAPPED, wait_for_sizes
from hpctrain.worker.state.source import StateKind
from hpctrain.worker.state.zero_keys import LOSS_SCALER, SAVED, zero_keys

Groups = list[dict[str, tuple[int, ...]]]
"""Shapes by a parameter's name in its pipeline stage, group by group, in the order of the flat tensors."""


class CheckpointFiles:
    """The files of a checkpoint, each opened once, mapped into memory, when it is needed first."""

    def __init__(self, folder: Path, record: CheckpointRecord) -> None:
        self.folder, self.record = folder, record
        self._opened: dict[str, Any] = {}
        self._by_name = {file.name: file for file in record.files}

    def of_rank(self, rank: int, ending: str) -> Any:
        """What the file with this ending holds that ``rank`` wrote; files of single pipeline layers are not meant.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        for file in self.record.files:
            if file.rank == rank and file.name.endswith(ending) and not file.name.startswith(("layer_", SWAPPED)):
                return self._open(file)
        raise RecordError(f"{self.folder}: rank {rank} wrote no file that ends with {ending}")

    def named(self, name: str) -> Any:
        """What a file holds; None: the checkpoint has none of this name."""
        file = self._by_name.get(name)
        return None if file is None else self._open(file)

    def _open(self, file: CheckpointFile) -> Any:
        if file.name not in self._opened:
            path = self.folder / file.name
            wait_for_sizes(self.folder, [file])
            try:
                # The file is the run's own; it holds DeepSpeed's configuration objects beside tensors.
                self._opened[file.name] = torch.load(str(path), map_location="cpu", mmap=True, weights_only=False)
            # A damaged pickle can raise anything.
            except Exception as error:
                raise RecordError(f"{path}: {str(error).splitlines()[0] if str(error) else error!r}") from error
        return self._opened[file.name]


class SavedForm(Protocol):
    """One way of keeping the state."""

    def groups(self, stage: int, tensor_rank: int, shapes: Mapping[str, tuple[int, ...]]) -> Groups:
        """Of the ranks of one pipeline stage and tensor-parallel place; ``shapes`` are those that the record promises."""

    def flat(self, rank: int, kind: StateKind, group: int, name: str) -> Tensor | None:
        """One group's flat tensor of a rank; None: there is no such state."""

    def moments(self, rank: int) -> dict[int, Any]:
        """Adam's state by the number of the group, in torch's form."""

    def loss_scaler(self) -> Any:
        """Of fp16; the same on all ranks."""


class ZeroForm:
    """ZeRO stages 1 to 3: a file of each rank with its share of every group."""

    def __init__(self, files: CheckpointFiles, layout: Layout) -> None:
        self._files, self._layout = files, layout
        self._keys = zero_keys(files.record.zero_stage)

    def groups(self, stage: int, tensor_rank: int, shapes: Mapping[str, tuple[int, ...]]) -> Groups:
        """See ``SavedForm``."""
        del shapes  # the file has its own
        rank = self._layout.rank_at(RankPlace(stage, 0, 0, tensor_rank))
        saved = self._files.of_rank(rank, "_model_states.pt")["param_shapes"]
        return [{name: tuple(shape) for name, shape in group.items()} for group in saved]

    def flat(self, rank: int, kind: StateKind, group: int, name: str) -> Tensor | None:
        """See ``SavedForm``."""
        del name  # all parameters of the group are in it
        swapped = self._files.named(f"{SWAPPED}_rank_{rank}_sub_group_{group:05d}.pt")
        if swapped is not None:
            on_nvme: Tensor | None = swapped.get(kind)
            return on_nvme
        if kind == "fp32":
            weights: Tensor = self._optimizer(rank)[self._keys.weights][group]
            return weights.detach()
        found: Tensor | None = self.moments(rank).get(group, {}).get(kind)
        return found

    def moments(self, rank: int) -> dict[int, Any]:
        """See ``SavedForm``."""
        state: dict[int, Any] = self._optimizer(rank)[self._keys.inner]["state"]
        return state

    def loss_scaler(self) -> Any:
        """See ``SavedForm``."""
        return self._optimizer(0)[LOSS_SCALER]

    def _optimizer(self, rank: int) -> Any:
        return self._files.of_rank(rank, "_optim_states.pt")[SAVED]


class PlainForm:
    """Stage 0: the first of the ranks with the same parameters writes all of them; each is a group of its own.

    No pipeline goes with it. Source: hpctrain/worker/plain_optimizer.py; in the order of ``engine.parameter_groups``.
    """

    def __init__(self, files: CheckpointFiles, layout: Layout) -> None:
        del layout  # of each group there is one share
        self._files = files

    def groups(self, stage: int, tensor_rank: int, shapes: Mapping[str, tuple[int, ...]]) -> Groups:
        """See ``SavedForm``."""
        del stage, tensor_rank
        matrices = [{name: shape} for name, shape in shapes.items() if len(shape) > 1]
        return matrices + [{name: shape} for name, shape in shapes.items() if len(shape) == 1]

    def flat(self, rank: int, kind: StateKind, group: int, name: str) -> Tensor | None:
        """See ``SavedForm``."""
        if kind != "fp32":
            found: Tensor | None = self.moments(rank).get(group, {}).get(kind)
            return None if found is None else found.flatten()
        copies = self._saved(rank)["optimizer"]["fp32_copies"]
        # fp32 parameters have no copy: they are the master weights themselves.
        weights: Tensor = copies[group] if copies else self._saved(rank)["module"][name]
        return weights.detach().flatten()

    def moments(self, rank: int) -> dict[int, Any]:
        """See ``SavedForm``."""
        state: dict[int, Any] = self._saved(rank)["optimizer"]["optimizer"]["state"]
        return state

    def loss_scaler(self) -> Any:
        """See ``SavedForm``."""
        return self._saved(0)["optimizer"][LOSS_SCALER]

    def _saved(self, rank: int) -> Any:
        return self._files.of_rank(rank, "_model_states.pt")
