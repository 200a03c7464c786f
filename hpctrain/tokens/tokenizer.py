"""Tokenizers: bytes, or a JSON file of Hugging Face's ``tokenizers``; and the training of a byte-level BPE."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpctrain.errors import ConfigError, Problem, known_names_hint
from hpctrain.record.files import path_text
from hpctrain.tokens.header import token_dtype
from hpctrain.tokens.manifest import TokenizerRecord

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = "bytes"
END_OF_TEXT = "<|endoftext|>"
"""What ends a document of a BPE that is trained here, its id 0. Source: GPT-2's name for it."""
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""Names that mean it in published tokenizers, where no ``tokenizer_config.json`` says which."""
_NUM_BYTES = 256
_MOST_IDS = 2**31
SMALLEST_BPE = _NUM_BYTES + 1
LARGEST_BPE = 2**24
"""The library makes room for all of them beforehand."""

Ids = NDArray[Any]


class Encoder(Protocol):
    """Texts to ids, in two steps: what a text gives is known before it is decided whether a token ends it."""

    def parts(self, texts: Sequence[str]) -> list[Any]:
        """What each text gives, with a length in tokens."""

    def joined(self, parts: list[Any], eod_id: int | None, num_ended: int) -> Ids:
        """All ids in order, in the corpus's dtype, ``eod_id`` behind each of the first ``num_ended`` parts, which are used up."""


class ByteEncoder:
    """The 256 bytes of UTF-8; 256 ends a document."""

    def parts(self, texts: Sequence[str]) -> list[bytes]:
        return [text.encode() for text in texts]

    def joined(self, parts: list[bytes], eod_id: int | None, num_ended: int) -> Ids:
        if eod_id is None:
            return np.frombuffer(b"".join(parts), np.uint8).astype("<u2")
        # Any byte holds the places of the ends.
        content = b"\0".join(parts) + b"\0" * (num_ended == len(parts))
        tokens = np.frombuffer(content, np.uint8).astype("<u2")
        tokens[np.cumsum([len(part) + 1 for part in parts[:num_ended]], dtype=np.int64) - 1] = eod_id
        return tokens


class JsonEncoder:
    """A tokenizer of Hugging Face's library; adds no special tokens, and takes those that are spelled out in a text for text."""

    def __init__(self, content: str, vocab_size: int) -> None:
        self._tokenizer = _loaded(content)
        self._dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")

    def parts(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            fix = "a tokenizer with a token for the unknown, or of bytes, has ids for every text"
            raise _refused("--tokenizer", "", f"has no ids for a text: {error}", fix) from None
        return [encoding.ids for encoding in encodings]

    def joined(self, parts: list[list[int]], eod_id: int | None, num_ended: int) -> Ids:
        if eod_id is not None:
            for part in parts[:num_ended]:
                part.append(eod_id)
        flat = array("I", chain.from_iterable(parts))  # half the time of numpy's own reading of lists
        return np.frombuffer(flat, np.uint32).astype(self._dtype)


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer that is known to work, and what of it goes into the manifest."""

    record: TokenizerRecord
    content: str | None
    """The JSON; None of bytes."""

    def encoder(self) -> Encoder:
        if self.content is None:
            return ByteEncoder()
        return JsonEncoder(self.content, self.record.vocab_size)


def bytes_choice(ends_documents: bool) -> TokenizerChoice:
    """UTF-8 as it is, for a vocabulary of 257."""
    digest = hashlib.sha256(b"hpctrain bytes: ids 0 to 255 are UTF-8's bytes, 256 ends a document").hexdigest()
    eod_id = _NUM_BYTES if ends_documents else None
    return TokenizerChoice(TokenizerRecord("bytes", BYTES, digest, _NUM_BYTES + 1, eod_id, None), None)


def json_choice(path: Path, eod: str | None, ends_documents: bool, name: str = "") -> TokenizerChoice:
    """The tokenizer in a JSON file, as ``Tokenizer.save`` and Hugging Face's repositories have it.

    Args:
        path: of the file.
        eod: the token that ends a document; None: ``eos_token`` of a ``tokenizer_config.json`` beside it, else the one of the
            usual names that it has.
        ends_documents: whether such a token is needed at all.
        name: for the manifest; the file's where it is empty.

    Raises:
        ConfigError: it cannot be read, is no tokenizer, is random (BPE dropout), or the token is not in it or not clear.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = f"--tokenizer {path / 'tokenizer.json'}" if os.path.isdir(path) else f"name a tokenizer.json, or {BYTES}"
        raise _refused("--tokenizer", path, str(error.strerror), fix) from None
    try:
        text = content.decode("utf-8")
        tokenizer = _loaded(text)
    except Exception as error:  # the library raises nothing narrower
        fix = "convert it to tokenizer.json with transformers" if path.suffix == ".model" else "name a tokenizer.json"
        raise _refused("--tokenizer", path, f"is no JSON of a tokenizer: {error}", fix) from None
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        rule = f"model.dropout={dropout:.3g} makes ids random, so that no work could go on after a stop"
        raise _refused("--tokenizer", path, rule, "set it to null in the file")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise _refused("--tokenizer", path, "its vocabulary is empty", "name another file")
    if (highest := max(vocabulary.values())) >= _MOST_IDS:
        rule = f"gives ids up to {highest:,}, and a token file has int32 at most"
        raise _refused("--tokenizer", path, rule, "give its tokens smaller ids")
    eod_token = _end_token(path, vocabulary, eod) if ends_documents else None
    record = TokenizerRecord(
        "huggingface",
        name or path_text(Path(path.name)),
        hashlib.sha256(content).hexdigest(),
        highest + 1,
        None if eod_token is None else vocabulary[eod_token],
        eod_token,
    )
    return TokenizerChoice(record, text)


@functools.lru_cache(maxsize=1)
def _loaded(content: str) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    # Files of models for sentences say how these are cut and filled up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _end_token(path: Path, vocabulary: dict[str, int], eod: str | None) -> str:
    if eod is not None:
        if eod not in vocabulary:
            close = known_names_hint(eod, [name for name in vocabulary if name.startswith(("<", "["))][:50])
            raise _refused("--eod", eod, f"is no token of {path}", close)
        return eod
    stated = _configured_end(path.with_name("tokenizer_config.json"))
    if stated is not None and stated in vocabulary:
        return stated
    usual = [name for name in _ENDS if name in vocabulary]
    if len(usual) != 1:
        found = f"it has {' and '.join(usual)}" if usual else f"it has none of {', '.join(_ENDS)}"
        rule = f"which token ends a document is not clear: {found}"
        raise _refused("--tokenizer", path, rule, "--eod TOKEN names it, --no-eod does without")
    return usual[0]


def _configured_end(path: Path) -> str | None:
    """``eos_token`` of a ``tokenizer_config.json``: a text, or an object with it in ``content``."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(
            "--tokenizer", path, f"cannot be read: {error}", "mend it, or name the token: --eod TOKEN"
        ) from None
    token = raw.get("eos_token") if isinstance(raw, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """The JSON of a byte-level BPE that is trained on the texts; the same texts give the same JSON.

    Text is split as GPT-2's tokenizer does; id 0 ends a document. Where the texts do not give enough pairs that occur twice, the
    vocabulary stays smaller. Source: Sennrich et al. 2016 (BPE), Radford et al. 2019 (on bytes); ``tokenizers`` does it.

    Args:
        texts: of the corpus.
        vocab_size: at least ``SMALLEST_BPE``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True))


def _refused(key: str, value: object, rule: str, fix: str) -> ConfigError:
    return ConfigError((Problem(key, str(value), rule, fix),))
