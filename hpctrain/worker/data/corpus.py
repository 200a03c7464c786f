"""The tokens of a run as one array in memory: Python's standard library, a text of the user's, or made-up ones."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError
from hpctrain.text_files import text_files
from hpctrain.worker.data.tokenizer import encode_document
from hpctrain.worker.end_reasons import DataError

Tokens = NDArray[np.uint16] | NDArray[np.int32]

# Tests hold binary oddities, and distributions leave them out to different degrees.
_LEFT_OUT_FOLDERS = frozenset(("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"))
_SYNTHETIC_TOKENS = 2**20
_SYNTHETIC_MIN_WINDOWS = 64
_PERIOD, _ALPHABET, _NOISE = 61, 64, 0.1


@dataclass(frozen=True)
class Corpus:
    """All tokens in order, and where they are from."""

    tokens: Tokens
    description: str

    @property
    def digest(self) -> str:
        """Equal on all ranks if their tokens are."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()[:16]


def load_corpus(data: DataConfig, vocab_size: int, seq_len: int, seed: int) -> Corpus:
    """The corpus of the configuration, checked against the model.

    Args:
        data: which text.
        vocab_size: of the model.
        seq_len: tokens of one sequence.
        seed: of the made-up tokens.

    Raises:
        DataError: no text, too much of it, not UTF-8, too short for one sequence, or a token the model does not have.
    """
    if data.kind == "synthetic":
        num_tokens = max(_SYNTHETIC_TOKENS, _SYNTHETIC_MIN_WINDOWS * (seq_len + 1))
        corpus = synthetic_corpus(vocab_size, num_tokens, seed)
    elif data.kind == "stdlib":
        corpus = stdlib_corpus(data.max_bytes)
    else:
        corpus = text_corpus(data)
    check_corpus(corpus, vocab_size, seq_len)
    return corpus


def check_corpus(corpus: Corpus, vocab_size: int, seq_len: int) -> None:
    """Raises DataError with the numbers if the corpus cannot feed the model."""
    num_tokens = len(corpus.tokens)
    if num_tokens < seq_len + 1:
        raise DataError(
            f"training.seq_len={seq_len}: one sequence with its labels takes {seq_len + 1} tokens, but {corpus.description}"
            f" has {num_tokens}; set training.seq_len={max(1, num_tokens - 1)} or give more text"
        )
    highest = int(corpus.tokens.max())
    if highest >= vocab_size:
        raise DataError(
            f"model.vocab_size={vocab_size}: {corpus.description} has token {highest};"
            f" set model.vocab_size={highest + 1} or more"
        )


def stdlib_corpus(max_bytes: int) -> Corpus:
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
    return Corpus(np.concatenate(documents), f"the standard library in {root}")


def _stdlib_files(root: Path) -> list[Path]:
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT_FOLDERS]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def text_corpus(data: DataConfig) -> Corpus:
    """A UTF-8 file, or all ``*.txt`` below a folder in the order of their names."""
    if data.path is None:
        raise DataError("data.path=null: data.kind=text reads a file or folder; set data.path")
    try:
        documents = [_utf8_bytes(file) for file in text_files(data)]
    except ConfigError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"data.path={data.path}: {error.filename}: {error.strerror}") from error
    return Corpus(np.concatenate([encode_document(text) for text in documents]), f"data.path={data.path}")


def _utf8_bytes(file: Path) -> bytes:
    text = file.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"data.path: {file} is not UTF-8: byte {error.start} is 0x{text[error.start]:02x}") from error
    return text


def synthetic_corpus(vocab_size: int, num_tokens: int, seed: int) -> Corpus:
    """A sequence of period 61 over at most 64 of the vocabulary's ids, one token in ten replaced by a random one.

    What can be learned is the period; the noise keeps the loss above zero.
    """
    random = np.random.default_rng(seed)
    alphabet = random.choice(vocab_size, size=min(_ALPHABET, vocab_size), replace=False)
    period = random.choice(alphabet, size=_PERIOD)
    tokens = np.resize(period, num_tokens)
    is_noise = random.random(num_tokens) < _NOISE
    tokens[is_noise] = random.choice(alphabet, size=int(is_noise.sum()))
    typed: Tokens = tokens.astype(np.uint16) if vocab_size <= 2**16 else tokens.astype(np.int32)
    return Corpus(typed, f"synthetic tokens of seed {seed}")
