"""The state in a checkpoint, read by parameter from the ranks' files, however many ranks wrote them."""

from __future__ import annotations

import os
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpctrain.errors import RecordError
from hpctrain.plan.layout import Layout, RankPlace
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.parameters import Parameter, decoder_parameters, stage_names
from hpctrain.plan.state_cut import StateCut
from hpctrain.record.schema import CheckpointRecord
from hpctrain.worker.state.saved_forms import CheckpointFiles, PlainForm, SavedForm, ZeroForm
from hpctrain.worker.state.source import StateKind, TensorPlace, joined_pieces, own_piece
from hpctrain.worker.state.zero_keys import LOSS_SCALER


class SavedState:
    """Reads what is asked for and no more."""

    def __init__(self, folder: Path, record: CheckpointRecord) -> None:
        """Opens nothing yet.

        Args:
            folder: of the checkpoint.
            record: its ``complete.json``.
        """
        self.folder, self.record = folder, record
        self.layout = Layout(
            1,
            record.world_size,
            record.tensor_parallel_size,
            record.pipeline_parallel_size,
            record.sequence_parallel_size,
        )
        self._files = CheckpointFiles(folder, record)
        form = PlainForm if record.zero_stage == 0 else ZeroForm
        self._form: SavedForm = form(self._files, self.layout)
        self._cuts: dict[tuple[int, int], dict[str, tuple[int, StateCut]]] = {}
        self._last_whole: tuple[StateKind, str, Tensor] | None = None

    @cached_property
    def shape(self) -> ModelShape:
        """Of the saved model; what the record does not say, its name and first values, has no effect.

        Raises:
            RecordError: the record's shape is not one that this version knows.
        """
        values: dict[str, Any] = {"name": "saved", "init_std": 0.0, **self.record.model}
        try:
            return ModelShape(**values)
        except TypeError as error:
            raise RecordError(f"{self.folder}: model: {error}") from error

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return decoder_parameters(self.shape)

    def piece(self, kind: StateKind, parameter: Parameter, place: TensorPlace, start: int, stop: int) -> Tensor | None:
        """See ``StateSource``; reads only these elements where the checkpoint is cut over as many tensor-parallel ranks.

        Raises:
            RecordError: a file is not what the record says of it.
        """
        if place.size == self.layout.tensor_parallel_size or parameter.split_dim is None:
            rank = place.rank if place.size == self.layout.tensor_parallel_size else 0
            return self._saved_piece(kind, parameter, rank, start, stop)
        whole = self.whole(kind, parameter)
        return None if whole is None else own_piece(whole, parameter, place).flatten()[start:stop]

    def whole(self, kind: StateKind, parameter: Parameter) -> Tensor | None:
        """The whole parameter's state, fp32, in the decoder's shape; the last one stays in memory.

        Raises:
            RecordError: a file is not what the record says of it.
        """
        if self._last_whole and self._last_whole[:2] == (kind, parameter.name):
            return self._last_whole[2]
        self._last_whole = None
        num_pieces = 1 if parameter.split_dim is None else self.layout.tensor_parallel_size
        shape = parameter.piece_shape(num_pieces)
        pieces = []
        for rank in range(num_pieces):
            piece = self._saved_piece(kind, parameter, rank, 0, torch.Size(shape).numel())
            if piece is None:
                return None
            pieces.append(piece.view(shape))
        whole = joined_pieces(pieces, parameter)
        self._last_whole = (kind, parameter.name, whole)
        return whole

    @property
    def adam_step(self) -> int:
        """Updates that the optimizer has made: steps without those that it skipped."""
        return max((int(state["step"]) for state in self._form.moments(0).values()), default=0)

    @property
    def engine_counts(self) -> dict[str, int]:
        """``global_steps``, ``global_samples`` and ``skipped_steps`` of the engine that saved."""
        saved = self._files.of_rank(0, "_model_states.pt")
        return {name: int(saved[name]) for name in ("global_steps", "global_samples", "skipped_steps")}

    @property
    def scaling(self) -> dict[str, Any]:
        """The loss scaler of fp16 by its key in the optimizer's dict; of other types nothing."""
        return {LOSS_SCALER: self._form.loss_scaler()} if self.record.precision == "fp16" else {}

    def _saved_piece(
        self, kind: StateKind, parameter: Parameter, tensor_rank: int, start: int, stop: int
    ) -> Tensor | None:
        """Elements of the piece as it was cut when it was saved."""
        stage, name = self._place_of[parameter.name]
        group, cut = self._cuts_of(stage, tensor_rank)[name]
        out = torch.empty(stop - start, dtype=torch.float32)
        for span in cut.holders(name, start, stop):
            data, sequence = divmod(span.rank, self.layout.sequence_parallel_size)
            rank = self.layout.rank_at(RankPlace(stage, data, sequence, tensor_rank))
            flat = self._form.flat(rank, kind, group, name)
            if flat is None:
                return None
            end = span.offset + span.stop - span.start
            if flat.numel() < end:
                raise RecordError(
                    f"{self.folder}: {parameter.name}: group {group} of rank {rank} has {flat.numel()} elements of {kind},"
                    f" fewer than {end}"
                )
            out[span.start - start : span.stop - start].copy_(flat[span.offset : end])
        return out

    @cached_property
    def _place_of(self) -> dict[str, tuple[int, str]]:
        """The first pipeline stage that holds a parameter, and its name there."""
        num_stages = self.layout.pipeline_parallel_size
        found: dict[str, tuple[int, str]] = {}
        for stage in range(num_stages):
            for local, name in stage_names(self.shape, num_stages, stage).items():
                found.setdefault(name, (stage, local))
        return found

    def _cuts_of(self, stage: int, tensor_rank: int) -> dict[str, tuple[int, StateCut]]:
        """By a parameter's name in the stage: the number of its group in the files, and how that is cut."""
        if (stage, tensor_rank) not in self._cuts:
            shapes = {each.name: each.piece_shape(self.layout.tensor_parallel_size) for each in self.parameters}
            names = stage_names(self.shape, self.layout.pipeline_parallel_size, stage)
            expected = {local: shapes[name] for local, name in names.items()}
            groups = self._form.groups(stage, tensor_rank, expected)
            found = {name: shape for group in groups for name, shape in group.items()}
            if odd := sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name)):
                raise RecordError(
                    f"{self.folder}: parameter {odd[0]} has shape {found.get(odd[0])}, by its complete.json"
                    f" {expected.get(odd[0])}"
                )
            cuts: dict[str, tuple[int, StateCut]] = {}
            for number, group in enumerate(groups):
                sizes = {name: torch.Size(shape).numel() for name, shape in group.items()}
                num_ranks = self.layout.zero_degree if self.record.zero_stage else 1
                cuts |= dict.fromkeys(sizes, (number, StateCut(self.record.zero_stage, num_ranks, sizes)))
            self._cuts[stage, tensor_rank] = cuts
        return self._cuts[stage, tensor_rank]


def damage(path: Path) -> str:
    """What is wrong with the contents of a file by its checksums; empty: nothing. Reads all of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        return f"{path}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
    return "" if damaged is None else f"{path}: {os.path.basename(damaged)} has another checksum than when it was saved"
