"""A Hugging Face folder as it is found: config.json, and which file holds which tensor in which shape. Free of torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError, LaunchError
from hpctrain.huggingface.model_config import model_values
from hpctrain.huggingface.tensor_names import GPT2_PREFIX, FileTensor, file_tensors
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.parameters import HEAD, TOKEN_TABLE, Parameter, decoder_parameters
from hpctrain.plan.rules.first_weights import KEY
from hpctrain.record.files import read_json
from hpctrain.units import counted

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_READABLE = ("F64", "F32", "BF16", "F16")
"""Types whose values are the weights, by safetensors' names; of others (F8_E4M3, I8, U8) they are codes of a quantization."""
_NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "lm_head.weight")
"""Ends of names that older files have beside the weights: masks, angles, the tied output matrix once more."""
_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class FolderTensor:
    """A tensor and its file."""

    path: Path
    key: str
    """Its name in the file."""
    shape: tuple[int, ...]
    dtype: str
    """By safetensors' name."""


@dataclass(frozen=True)
class WeightsFolder:
    """What the headers of the files say; no weight is read."""

    path: Path
    values: dict[str, Any]
    """Our ``model`` keys by its config.json."""
    tensors: dict[str, FolderTensor]
    """By the names of the models with a head."""

    def own(self, tensor: FileTensor) -> FolderTensor | None:
        """Where a tensor is; None: the folder has none of this name."""
        return self.tensors.get(tensor.name)


def partial_folder(out: Path) -> Path:
    """Where an export writes until ``out`` is whole.

    >>> partial_folder(Path("a/hf.v1")).name
    'hf.v1.partial'
    """
    return out.with_name(f"{out.name}.partial")


def require_safetensors(what: str) -> None:
    """Raises LaunchError where the package is missing."""
    if importlib.util.find_spec("safetensors") is None:
        raise LaunchError(f"{what} needs safetensors; pip install 'hpctrain[export]'")


def read_folder(path: Path) -> WeightsFolder:
    """Config and headers of a folder.

    Raises:
        ConfigError: it is none of a Llama or GPT-2, a file is missing or damaged.
        LaunchError: safetensors is not installed.
    """
    require_safetensors(KEY)
    raw = _json(path / CONFIG)
    return WeightsFolder(path, model_values(raw, str(path / CONFIG)), _tensors(path))


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = read_json(path)
    except OSError as error:
        raise ConfigError(f"{KEY}={path.parent}: {path.name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: is no JSON object")
    return raw


def _tensors(folder: Path) -> dict[str, FolderTensor]:
    from safetensors import SafetensorError, safe_open

    found: dict[str, FolderTensor] = {}
    for name in _weight_files(folder):
        path = folder / name
        try:
            with safe_open(path, framework="numpy") as opened:
                for key in opened.keys():  # noqa: SIM118
                    tensor = opened.get_slice(key)
                    found[_with_prefix(key)] = FolderTensor(path, key, tuple(tensor.get_shape()), tensor.get_dtype())
        except OSError as error:
            raise ConfigError(f"{KEY}={folder}: {name}: {error.strerror or error}{_bin_hint(folder)}") from None
        except SafetensorError as error:
            raise ConfigError(f"{path}: {error}; {_what_it_is(path)}") from None
    return found


def _weight_files(folder: Path) -> list[str]:
    """Names of the files, by the index where there is no single one: transformers looks in this order, too."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [WEIGHTS]
    names = _json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) and name for name in names.values()):
        raise ConfigError(f"{index}: weight_map: must be an object with a file's name for each tensor")
    return sorted(set(names.values()))


def _bin_hint(folder: Path) -> str:
    """For a folder whose weights are in torch's own files alone."""
    if not any(folder.glob("pytorch_model*.bin")):
        return ""
    return "; its weights are pytorch_model*.bin: load it with transformers and save_pretrained it, which writes safetensors"


def _what_it_is(path: Path) -> str:
    with path.open("rb") as stream:
        if stream.read(len(_LFS)) == _LFS:
            return "it is a pointer of Git LFS: git lfs pull fetches the file"
    return "it is no whole safetensors file"


def _with_prefix(key: str) -> str:
    """The name as in a model with a head.

    >>> _with_prefix("h.0.ln_1.weight"), _with_prefix("model.norm.weight")
    ('transformer.h.0.ln_1.weight', 'model.norm.weight')
    """
    return f"{GPT2_PREFIX}{key}" if key.startswith(("h.", "wte.", "wpe.", "ln_f.")) else key


def folder_problems(folder: WeightsFolder, shape: ModelShape) -> tuple[list[str], list[str]]:
    """Why a model of this shape cannot begin with the folder's weights, all reasons at once; and what to know where it can.

    A vocabulary that is larger than the folder's is padded: the further rows of the tables become the mean of the folder's.
    """
    problems, notes = [], []
    own = {name: getattr(shape, name) for name in folder.values}
    for name, value in folder.values.items():
        if name == "vocab_size":
            if own[name] < value:
                problems.append(f"model.vocab_size={own[name]}: the folder has {value}; set model.vocab_size={value}")
            elif own[name] > value:
                more = own[name] - value
                notes.append(
                    f"model.vocab_size={own[name]} is {more} above the folder's {value}: the further {more} rows of the token"
                    " table and the output matrix become the mean of the folder's"
                )
        elif name == "max_seq_len" and shape.architecture == "llama":
            if own[name] > value:
                notes.append(f"model.max_seq_len={own[name]} is above the {value} positions that the folder states")
        elif own[name] != value:
            told = str(value).lower() if isinstance(value, bool) else value
            problems.append(f"model.{name}={own[name]}: the folder has {value}; set model.{name}={told}")
    if not problems:
        problems += _tensor_problems(folder, shape)
        notes += _not_taken(folder, shape)
    return problems, notes


def _not_taken(folder: WeightsFolder, shape: ModelShape) -> list[str]:
    """Of tensors that the model has no place for, such as biases that config.json does not tell of."""
    taken = {tensor.name for parameter in decoder_parameters(shape) for tensor in file_tensors(shape, parameter)}
    left = [name for name in sorted(folder.tensors) if name not in taken and not name.endswith(_NO_WEIGHTS)]
    return [f"{counted(len(left), 'tensor')} of {folder.path} not taken, such as {left[0]}"] if left else []


def _tensor_problems(folder: WeightsFolder, shape: ModelShape) -> list[str]:
    """Of files that do not hold what their config.json promises."""
    problems = []
    for parameter in decoder_parameters(shape):
        for tensor in file_tensors(shape, parameter):
            found = folder.own(tensor)
            expected = folder_shape(folder, parameter, tensor)
            if found is None:
                problems.append(f"{folder.path}: has no tensor {tensor.name}")
            elif found.shape != expected:
                problems.append(
                    f"{found.path}: {tensor.name} has shape {found.shape}, its {CONFIG} makes it {expected}"
                )
            elif found.dtype not in _READABLE:
                problems.append(
                    f"{found.path}: {tensor.name} is {found.dtype}, a quantized type; save it as {', '.join(_READABLE)}"
                )
    return problems[:5]


def folder_shape(folder: WeightsFolder, parameter: Parameter, tensor: FileTensor) -> tuple[int, ...]:
    """Of a tensor in the folder, whose tables have the folder's vocabulary."""
    expected = tensor.shape(parameter)
    return (folder.values["vocab_size"], *expected[1:]) if parameter.name in (TOKEN_TABLE, HEAD) else expected
