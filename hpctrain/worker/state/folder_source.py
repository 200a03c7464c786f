"""Weights of a Hugging Face folder as a source of state: each rank reads the rows and columns that it holds, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from hpctrain.huggingface.folder import FolderTensor, WeightsFolder
from hpctrain.huggingface.tensor_names import FileTensor, file_tensors
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.parameters import HEAD, TOKEN_TABLE, Parameter
from hpctrain.worker.state.source import StateKind, TensorPlace

_ROWS_AT_ONCE = 4096
"""Of a table whose mean is taken."""


class FolderSource:
    """Gives master weights and no moments; rows of a table beyond the folder's vocabulary are the mean of the others."""

    def __init__(self, folder: WeightsFolder, shape: ModelShape) -> None:
        """Reads nothing yet.

        Args:
            folder: checked against ``shape`` by ``folder_problems``.
            shape: of the model that begins with it.
        """
        self._folder, self._shape = folder, shape
        self._opened: dict[Path, Any] = {}
        self._means: dict[str, Tensor] = {}

    def piece(self, kind: StateKind, parameter: Parameter, place: TensorPlace, start: int, stop: int) -> Tensor | None:
        """See ``StateSource``."""
        if kind != "fp32":
            return None
        width = parameter.piece_shape(place.size)[-1] if len(parameter.shape) == 2 else 1
        first, last = start // width, -(-stop // width)
        rows = [self._rows(parameter, segment, place) for segment in _whole_rows(parameter, place, range(first, last))]
        return torch.cat(rows).flatten()[start - first * width : stop - first * width]

    def _rows(self, parameter: Parameter, rows: range, place: TensorPlace) -> Tensor:
        """Consecutive rows of the whole parameter, of its columns those of this place, fp32."""
        columns = slice(None)
        if parameter.split_dim == 1:
            own = parameter.shape[1] // place.size
            columns = slice(place.rank * own, (place.rank + 1) * own)
        is_table = parameter.name in (TOKEN_TABLE, HEAD)
        num_in_folder = self._folder.values["vocab_size"] if is_table else parameter.shape[0]
        found = []
        for tensor in file_tensors(self._shape, parameter):
            first, last = max(rows.start, tensor.start), min(rows.stop, tensor.stop, num_in_folder)
            if first < last:
                found.append(self._cut(tensor, slice(first - tensor.start, last - tensor.start), columns))
        if num_padded := max(0, rows.stop - max(rows.start, num_in_folder)):
            found.append(self._mean_row(parameter).expand(num_padded, -1))
        return torch.cat(found)

    def _cut(self, tensor: FileTensor, rows: slice, columns: slice) -> Tensor:
        """Rows and columns as ours; a vector has rows alone."""
        own = self._folder.own(tensor)
        assert own is not None  # folder_problems
        view = self._open(own).get_slice(own.key)
        if len(own.shape) == 1:
            cut: Tensor = view[rows]
        else:
            cut = view[columns, rows].T if tensor.is_transposed else view[rows, columns]
        return cut.float()

    def _mean_row(self, parameter: Parameter) -> Tensor:
        """(1, hidden), of all rows that the folder has of a table."""
        if parameter.name not in self._means:
            (tensor,) = file_tensors(self._shape, parameter)
            num_rows = self._folder.values["vocab_size"]
            total = torch.zeros(parameter.shape[1], dtype=torch.float64)
            for first in range(0, num_rows, _ROWS_AT_ONCE):
                rows = slice(first, min(num_rows, first + _ROWS_AT_ONCE))
                total += self._cut(tensor, rows, slice(None)).double().sum(0)
            self._means[parameter.name] = (total / num_rows).float()[None]
        return self._means[parameter.name]

    def _open(self, tensor: FolderTensor) -> Any:
        if tensor.path not in self._opened:
            self._opened[tensor.path] = safe_open(tensor.path, framework="pt")
        return self._opened[tensor.path]


def _whole_rows(parameter: Parameter, place: TensorPlace, own: range) -> list[range]:
    """Which rows of the whole parameter rows of a tensor-parallel rank's piece are, in order.

    >>> _whole_rows(Parameter("qkv", (8, 4), 0, (4, 2, 2)), TensorPlace(1, 2), range(1, 4))
    [range(3, 4), range(5, 6), range(7, 8)]
    """
    if parameter.split_dim != 0 or place.size == 1:
        return [own]
    found, own_start, whole_start = [], 0, 0
    for part in parameter.parts:
        size = part // place.size
        first, last = max(own.start, own_start), min(own.stop, own_start + size)
        shift = whole_start + place.rank * size - own_start
        if first < last:
            found.append(range(first + shift, last + shift))
        own_start, whole_start = own_start + size, whole_start + part
    return found
