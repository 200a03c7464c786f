"""Tokens that are made when a run starts and stay in memory: Python's standard library, a text of the user's, or made-up ones."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError
from hpctrain.text_files import text_files
from hpctrain.worker.data.sequences import Part, Tokens
from hpctrain.worker.data.tokenizer import encode_document
from hpctrain.worker.end_reasons import DataError

# Tests hold binary oddities, and distributions leave them out to different degrees.
_LEFT_OUT_FOLDERS = frozenset(("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"))
_SYNTHETIC_TOKENS = 2**20
_SYNTHETIC_MIN_WINDOWS = 64
_PERIOD, _ALPHABET, _NOISE = 61, 64, 0.1


def stdlib_corpus(max_bytes: int) -> Part:
    """The ``*.py`` files of this interpreter's standard library in the order of their names, cut off after ``max_bytes``."""
    root = Path(sysconfig.get_path("stdlib"))
    documents, room = [], max_bytes
    for path in _stdlib_files(root):
        text = path.read_bytes()[:room]
        documents.append(encode_document(text))
        room -= len(text)
        if room == 0:
            break
    if not documents:
        raise DataError(f"data.kind=stdlib: no *.py file below {root}; take data=synthetic or data=text")
    return Part(np.concatenate(documents), f"the standard library in {root}")


def _stdlib_files(root: Path) -> list[Path]:
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT_FOLDERS]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def text_corpus(data: DataConfig, key: str = "data.path") -> Part:
    """A UTF-8 file, or all ``*.txt`` below a folder in the order of their names.

    Args:
        data: of kind text.
        key: ``data.validation_path`` for the text that is named there.
    """
    named = data.validation_path if key == "data.validation_path" else data.path
    if named is None:
        raise DataError(f"{key}=null: data.kind=text reads a file or folder; set {key}")
    try:
        documents = [_utf8_bytes(file, key) for file in text_files(data, key)]
    except ConfigError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{key}={named}: {error.filename}: {error.strerror}") from error
    return Part(np.concatenate([encode_document(text) for text in documents]), f"{key}={named}")


def _utf8_bytes(file: Path, key: str) -> bytes:
    text = file.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{key}: {file} is not UTF-8: byte {error.start} is 0x{text[error.start]:02x}") from error
    return text


def synthetic_corpus(vocab_size: int, seq_len: int, seed: int) -> Part:
    """A sequence of period 61 over at most 64 of the vocabulary's ids, one token in ten replaced by a random one.

    What can be learned is the period; the noise keeps the loss above zero.
    """
    num_tokens = max(_SYNTHETIC_TOKENS, _SYNTHETIC_MIN_WINDOWS * (seq_len + 1))
    random = np.random.default_rng(seed)
    alphabet = random.choice(vocab_size, size=min(_ALPHABET, vocab_size), replace=False)
    period = random.choice(alphabet, size=_PERIOD)
    tokens = np.resize(period, num_tokens)
    is_noise = random.random(num_tokens) < _NOISE
    tokens[is_noise] = random.choice(alphabet, size=int(is_noise.sum()))
    typed: Tokens = tokens.astype(np.uint16) if vocab_size <= 2**16 else tokens.astype(np.int32)
    return Part(typed, f"synthetic tokens of seed {seed}")
