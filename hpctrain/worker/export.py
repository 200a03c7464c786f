"""Writing a checkpoint as a Hugging Face folder: tensor by tensor from the fp32 master weights, file by file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from hpctrain.config.schema import Precision
from hpctrain.errors import ConfigError, LaunchError, Problem
from hpctrain.huggingface.folder import (
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    partial_folder,
)
from hpctrain.huggingface.model_config import config_values, inexpressible
from hpctrain.huggingface.run_tokenizer import RunTokenizer, tokenizer_config
from hpctrain.huggingface.tensor_names import FileTensor, file_tensors
from hpctrain.plan.parameters import Parameter
from hpctrain.record.files import write_json
from hpctrain.units import counted, gib
from hpctrain.worker.state.saved_state import SavedState, damage

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SMALL_FILES_BYTES = 2**20
"""For what is beside the weights."""
_MOST_TOLD = 5
"""Damaged files that are named."""


@dataclass(frozen=True)
class ExportRequest:
    """What was asked for."""

    out: Path
    """The new folder."""
    precision: Precision
    shard_bytes: int
    """Largest file of weights, unless one tensor alone is larger."""
    tokenizer: RunTokenizer
    metadata: dict[str, str]
    """Kept in the header of each file of weights."""


@dataclass(frozen=True)
class _Item:
    """One tensor to be written."""

    parameter: Parameter
    tensor: FileTensor
    num_bytes: int


def check_expressible(saved: SavedState) -> None:
    """Raises ConfigError where Hugging Face has no model of this shape."""
    if reason := inexpressible(saved.shape):
        raise ConfigError(
            f"{reason}, so no model of its computes what this one does; train on with hpctrain, or rerun with it"
        )


def check_files(saved: SavedState, tell: Callable[[str], None]) -> None:
    """Reads all files of the checkpoint and compares their checksums.

    Raises:
        ConfigError: some are damaged; names them.
    """
    files = saved.record.files
    tell(f"checking {counted(len(files), 'file')}, {gib(saved.record.num_bytes)}")
    if damaged := [text for file in files if (text := damage(saved.folder / file.name))]:
        more = [f"and {len(damaged) - _MOST_TOLD} more"] if len(damaged) > _MOST_TOLD else []
        fix = "--step N takes another checkpoint; --no-check writes what can be read of this one"
        raise ConfigError("\n".join([*damaged[:_MOST_TOLD], *more, fix]))


def write_folder(saved: SavedState, request: ExportRequest, tell: Callable[[str], None]) -> int:
    """Writes ``FOLDER.partial`` and renames it; holds one file's tensors and one whole parameter in memory.

    Args:
        saved: the checkpoint; of one for which ``check_expressible`` has nothing to say.
        request: what and where.
        tell: gets a line a file.

    Returns:
        Bytes of the weights.

    Raises:
        ConfigError: no room, or a weight that the type cannot hold.
        RecordError: the checkpoint is damaged.
        LaunchError, OSError: the folder cannot be written, or ``FOLDER.partial`` is there already.
    """
    shards = _shards(saved, request)
    total = sum(item.num_bytes for shard in shards for item in shard)
    partial = partial_folder(request.out)
    _check_room(request.out, total)
    partial.mkdir(parents=True)  # fails where it is there: nothing that is not ours is written over
    try:
        done = 0
        names = [_file_name(number, len(shards)) for number in range(len(shards))]
        for name, shard in zip(names, shards, strict=True):
            tensors = {item.tensor.name: _converted(saved, item, request.precision) for item in shard}
            _save(tensors, partial / name, {"format": "pt", **request.metadata})
            done += sum(item.num_bytes for item in shard)
            tell(f"{name}: {gib(done)} of {gib(total)}, {done / total:.0%}")
        _write_small_files(partial, saved, request, dict(zip(names, shards, strict=True)), total)
        os.rename(partial, request.out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return total


def _shards(saved: SavedState, request: ExportRequest) -> list[list[_Item]]:
    """The tensors by file, in the decoder's order."""
    size = DTYPES[request.precision].itemsize
    shards: list[list[_Item]] = [[]]
    for parameter in saved.parameters:
        for tensor in file_tensors(saved.shape, parameter):
            item = _Item(parameter, tensor, torch.Size(tensor.shape(parameter)).numel() * size)
            if shards[-1] and sum(each.num_bytes for each in shards[-1]) + item.num_bytes > request.shard_bytes:
                shards.append([])
            shards[-1].append(item)
    return shards


def _file_name(number: int, num_files: int) -> str:
    """
    >>> _file_name(0, 1), _file_name(0, 2)
    ('model.safetensors', 'model-00001-of-00002.safetensors')
    """
    return WEIGHTS if num_files == 1 else f"model-{number + 1:05}-of-{num_files:05}.safetensors"


def _converted(saved: SavedState, item: _Item, precision: Precision) -> Tensor:
    """The tensor as it is written."""
    whole = saved.whole("fp32", item.parameter)
    assert whole is not None  # every checkpoint has master weights
    rows = whole[item.tensor.start : item.tensor.stop]
    if item.tensor.num_copies > 1:
        queries, *shared = torch.split(rows, list(item.parameter.parts))
        rows = torch.cat([queries, *(_copied(part, saved.shape.head_dim, item.tensor.num_copies) for part in shared)])
    converted = (rows.T if item.tensor.is_transposed else rows).to(DTYPES[precision]).contiguous()
    if not torch.isfinite(rows).all():
        name = item.parameter.name
        raise ConfigError(f"{saved.folder}: {name} has weights that are no numbers; --step N takes an older checkpoint")
    if not torch.isfinite(converted).all():
        largest = rows.abs().max().item()
        rule = f"{item.parameter.name} has a weight of {largest:.4g}, and {precision} ends at {_largest(precision):.4g}"
        raise ConfigError([Problem("--dtype", precision, rule, "take --dtype bf16 or fp32")])
    # Not a view of the whole parameter: several files would keep it, and save_file refuses shared memory.
    return converted.clone() if converted.untyped_storage().nbytes() > item.num_bytes else converted


def _copied(rows: Tensor, head_dim: int, num_copies: int) -> Tensor:
    """Each head's rows several times, as the query heads that share it follow one another."""
    return rows.reshape(-1, head_dim, *rows.shape[1:]).repeat_interleave(num_copies, 0).flatten(0, 1)


def _largest(precision: Precision) -> float:
    return torch.finfo(DTYPES[precision]).max


def _check_room(out: Path, num_bytes: int) -> None:
    """Raises ConfigError where the file system of the folder has no room."""
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    free, needed = shutil.disk_usage(parent).free, num_bytes + _SMALL_FILES_BYTES
    if needed > free:
        rule = f"needs {gib(needed)}; {parent} has {gib(free)} free, short by {gib(needed - free)}"
        raise ConfigError([Problem("--out", str(out), rule, "another folder, or --dtype bf16, half of fp32's size")])


def _write_small_files(
    folder: Path, saved: SavedState, request: ExportRequest, shards: dict[str, list[_Item]], total: int
) -> None:
    dtype = str(DTYPES[request.precision]).removeprefix("torch.")
    write_json(folder / CONFIG, config_values(saved.shape, dtype, request.tokenizer.eos_token_id))
    for name in shards:
        # safetensors makes files that nobody else may read, whatever the umask says.
        shutil.copymode(folder / CONFIG, folder / name)
    if request.tokenizer.eos_token_id is not None:
        write_json(folder / GENERATION_CONFIG, {"eos_token_id": request.tokenizer.eos_token_id})
    if request.tokenizer.file is not None:
        shutil.copyfile(request.tokenizer.file, folder / TOKENIZER)
        write_json(folder / TOKENIZER_CONFIG, tokenizer_config(request.tokenizer, saved.shape.max_seq_len))
    if len(shards) > 1:
        weight_map = {item.tensor.name: name for name, shard in shards.items() for item in shard}
        index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / INDEX, index)


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """One file of weights, on the disk when this returns."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # so it tells of a full disk and of a quota, too
        raise LaunchError(f"{path}: {error}") from error
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
