"""The tokens of one unit as a file: all tokens, the sizes of its documents (int64), a line of JSON about them, its length."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hpctrain.tokens.documents import Batch
from hpctrain.tokens.tokenizer import Encoder

_LENGTH = struct.Struct("<Q")
_COPY_BYTES = 2**22


@dataclass(frozen=True)
class UnitFacts:
    """What stands at the end of the file."""

    token_bytes: int
    num_documents: int
    """Of which a part is here."""
    continues: bool
    """The first is the rest of the last one of the unit before."""
    is_open: bool
    """The last one goes on in the next unit."""
    num_empty: int
    max_id: int
    crc32: int
    """Of the tokens: finds damage on the way into the corpus, which has a SHA-256."""


def unit_path(folder: Path, number: int) -> Path:
    return folder / f"unit-{number:08d}"


class UnitWriter:
    """Encodes batches, and writes the file when all are there; till then it has another name."""

    def __init__(self, path: Path, encoder: Encoder, eod_id: int | None, *, continues: bool) -> None:
        """Opens the file.

        Args:
            path: of the finished file.
            encoder: text to ids.
            eod_id: goes behind each document; None: nothing does.
            continues: the first text goes on with a document of the unit before.
        """
        self._path, self._encoder, self._eod_id, self._continues = path, encoder, eod_id, continues
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._stream = self._temporary.open("wb")
        self._checksum = 0
        self._sizes: list[NDArray[np.int64]] = []
        self._open_size: int | None = 0 if continues else None
        """Tokens so far of a document that goes on."""
        self._token_bytes, self._num_empty, self._max_id = 0, 0, -1

    def add(self, batch: Batch) -> None:
        """Encodes and writes a batch; a document that gives no token is left out as one without text is.

        Raises:
            OSError: the disk is full.
        """
        self._num_empty += batch.num_empty
        if not batch.texts:
            return
        parts = self._encoder.parts(batch.texts)
        # A piece without a token still belongs to its document.
        first, last = self._open_size is not None, len(parts) - batch.is_open
        kept = [part for place, part in enumerate(parts) if part or (place == 0 and first) or place == last]
        self._num_empty += len(parts) - len(kept)
        if not kept:
            return
        num_ended = len(kept) - batch.is_open
        sizes = np.fromiter(map(len, kept), np.int64, len(kept))
        if self._eod_id is not None:
            sizes[:num_ended] += 1
        tokens = self._encoder.joined(kept, self._eod_id, num_ended)
        if len(tokens):
            self._max_id = max(self._max_id, int(tokens.max()))
        self._stream.write(tokens.data)
        self._checksum = zlib.crc32(tokens.data, self._checksum)
        self._token_bytes += tokens.nbytes
        if self._open_size is not None:
            sizes[0] += self._open_size
        self._open_size = int(sizes[-1]) if batch.is_open else None
        self._sizes.append(sizes[:-1] if batch.is_open else sizes)

    def finish(self) -> None:
        """Writes sizes and facts, and gives the file its name.

        Raises:
            OSError: the disk is full.
        """
        is_open = self._open_size is not None
        if self._open_size is not None:
            self._sizes.append(np.array([self._open_size], np.int64))
        sizes = np.concatenate(self._sizes) if self._sizes else np.empty(0, np.int64)
        facts = UnitFacts(
            self._token_bytes,
            len(sizes),
            self._continues,
            is_open,
            self._num_empty,
            self._max_id,
            self._checksum,
        )
        line = json.dumps(dataclasses.asdict(facts)).encode()
        with self._stream as stream:
            stream.write(sizes.astype("<i8").tobytes() + line + _LENGTH.pack(len(line)))
        os.replace(self._temporary, self._path)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        with contextlib.suppress(OSError):  # what the disk did not take before it does not take now
            self._stream.close()
        self._temporary.unlink(missing_ok=True)


def read_facts(stream: IO[bytes]) -> tuple[UnitFacts, NDArray[np.int64]]:
    """Facts and sizes of an open unit file.

    Raises:
        ValueError, KeyError, struct.error, OSError: it is damaged.
    """
    end = stream.seek(-_LENGTH.size, os.SEEK_END)
    (length,) = _LENGTH.unpack(stream.read())
    if length > end:
        raise ValueError(f"ends with a length of {length:,} bytes, and has {end:,}")
    stream.seek(end - length)
    facts = UnitFacts(**json.loads(stream.read(length)))
    stream.seek(facts.token_bytes)
    sizes = np.frombuffer(stream.read(8 * facts.num_documents), "<i8").astype(np.int64)
    return facts, sizes


def token_chunks(stream: IO[bytes], facts: UnitFacts) -> Iterator[bytes]:
    """The tokens' bytes of an open unit file, some at a time."""
    stream.seek(0)
    left = facts.token_bytes
    while left:
        content = stream.read(min(_COPY_BYTES, left))
        if not content:
            raise ValueError(f"ends {left:,} bytes too early")
        left -= len(content)
        yield content
