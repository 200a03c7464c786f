"""Reading and writing Megatron's ``.bin`` and ``.idx``: memory maps over both files, whole checks, the index of many sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpctrain.tokens.header import (
    CODE_OF_TYPE,
    HEAD,
    MAGIC,
    VERSION,
    IndexHeader,
    TokenFileError,
    bin_path,
    idx_path,
    read_header,
)
from hpctrain.tokens.manifest import Manifest, read_manifest

Ids = NDArray[np.integer[Any]]
MAX_SEQUENCE_TOKENS = 2**31 - 1
"""Sizes are int32; a longer document is several sequences."""
_CHUNK = 2**20
"""Entries of the index that are looked at together."""


@dataclass(frozen=True)
class TokenFiles:
    """A corpus on disk; nothing of it is in memory till it is touched."""

    header: IndexHeader
    manifest: Manifest | None
    """None where there is no ``PREFIX.json``: the files are another program's."""
    tokens: Ids
    """All tokens in order, (num_tokens,), read-only."""
    sizes: NDArray[np.int32]
    """Tokens of each sequence, (num_sequences,)."""
    pointers: NDArray[np.int64]
    """First byte of each sequence in ``PREFIX.bin``, (num_sequences,)."""
    document_indices: NDArray[np.int64]
    """First sequence of each document, and the number of sequences, (num_documents + 1,)."""

    @property
    def num_tokens(self) -> int:
        return self.header.num_tokens

    @property
    def num_documents(self) -> int:
        return self.header.num_documents

    def document_offsets(self) -> NDArray[np.int64]:
        """First token of each document, and the number of tokens, (num_documents + 1,); in memory, 8 bytes a document."""
        ends = np.append(np.asarray(self.pointers) // self.header.item_bytes, self.num_tokens)
        return ends[np.asarray(self.document_indices)]


def open_tokens(prefix: Path) -> TokenFiles:
    """Maps ``PREFIX.bin`` and ``PREFIX.idx`` into memory, after the checks of ``read_header``; the cost does not grow with them.

    Raises:
        TokenFileError: see ``read_header``; or the manifest is none, or is of other files than these (by sizes and counts).
    """
    header = read_header(prefix)
    manifest = read_manifest(prefix)
    if manifest is not None:
        manifest.check_fits(header)
    index = idx_path(prefix)
    num_sequences = header.num_sequences
    return TokenFiles(
        header,
        manifest,
        _mapped(bin_path(prefix), header.dtype, 0, header.num_tokens),
        _mapped(index, "int32", header.sizes_offset, num_sequences),
        _mapped(index, "int64", header.pointers_offset, num_sequences),
        _mapped(index, "int64", header.documents_offset, header.num_documents + 1),
    )


def _mapped(path: Path, dtype: str, offset: int, count: int) -> NDArray[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    if count == 0:  # an empty file cannot be mapped
        return np.empty(0, kind)
    try:
        return np.asarray(np.memmap(path, dtype=kind, mode="r", offset=offset, shape=(count,)))
    except OSError as error:
        raise TokenFileError(path, str(error.strerror)) from None


def check_structure(files: TokenFiles) -> None:
    """Holds every entry of the index against the others; reads all of ``PREFIX.idx``.

    Raises:
        TokenFileError: a negative size, a sequence that does not begin where the one before ends, documents out of order.
    """
    header, path = files.header, idx_path(files.header.prefix)
    end = 0
    for start in range(0, header.num_sequences, _CHUNK):
        sizes = files.sizes[start : start + _CHUNK].astype(np.int64)
        if (sizes < 0).any():
            number = start + int(np.argmax(sizes < 0))
            rule = f"sequence {number:,} has {files.sizes[number]} tokens"
            raise TokenFileError(path, rule, "it is damaged", offset=header.sizes_offset + 4 * number)
        ends = end + np.cumsum(sizes) * header.item_bytes
        expected = np.append(end, ends[:-1])
        wrong = files.pointers[start : start + _CHUNK] != expected
        if wrong.any():
            place = int(np.argmax(wrong))
            number = start + place
            rule = f"sequence {number:,} begins at byte {files.pointers[number]:,}, the one before ends at {expected[place]:,}"
            raise TokenFileError(path, rule, "it is damaged", offset=header.pointers_offset + 8 * number)
        end = int(ends[-1])
    for start in range(0, header.num_documents, _CHUNK):
        steps = np.diff(files.document_indices[start : start + _CHUNK + 1])
        if (steps < 0).any():
            number = start + int(np.argmax(steps < 0)) + 1
            rule = f"document {number:,} begins before the one in front of it"
            raise TokenFileError(path, rule, "it is damaged", offset=header.documents_offset + 8 * number)


def check_ids(files: TokenFiles, vocab_size: int, told: Callable[[int], None] = lambda num_bytes: None) -> int:
    """The highest token id, -1 of no tokens; reads all of ``PREFIX.bin``.

    Args:
        files: the corpus.
        vocab_size: ids go from 0 to one below it.
        told: called with the number of bytes that were read since its last call.

    Raises:
        TokenFileError: a token outside the vocabulary, with its number, document and byte.
    """
    header, highest = files.header, -1
    for start in range(0, header.num_tokens, 8 * _CHUNK):
        tokens = files.tokens[start : start + 8 * _CHUNK]
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocab_size:
            place = int(np.argmax((tokens < 0) | (tokens >= vocab_size)))
            number = start + place
            document = int(np.searchsorted(files.document_offsets(), number, side="right")) - 1
            rule = f"token {number:,} (document {document:,}) is {tokens[place]}, the vocabulary has 0 to {vocab_size - 1:,}"
            raise TokenFileError(bin_path(header.prefix), rule, offset=number * header.item_bytes)
        highest = max(highest, high)
        told(tokens.nbytes)
    return highest


def write_index(stream: BinaryIO, dtype: str, document_sizes: NDArray[np.int64]) -> None:
    """Writes the index of documents that follow one another in ``PREFIX.bin``.

    Args:
        stream: the file ``PREFIX.idx``, empty.
        dtype: of a token, see ``token_dtype``.
        document_sizes: tokens of each document, (num_documents,); one beyond ``MAX_SEQUENCE_TOKENS`` becomes several sequences.

    Raises:
        OSError: the disk is full.
    """
    item_bytes = np.dtype(dtype).itemsize
    num_sequences = sum(int(sequences.sum()) for sequences in _sequences_of(document_sizes))
    stream.write(HEAD.pack(MAGIC, VERSION, CODE_OF_TYPE[dtype], num_sequences, len(document_sizes) + 1))
    for sizes in _sequence_sizes(document_sizes):
        stream.write(sizes.astype("<i4").tobytes())
    end = 0
    for sizes in _sequence_sizes(document_sizes):
        ends = end + np.cumsum(sizes) * item_bytes
        stream.write((ends - sizes * item_bytes).astype("<i8").tobytes())
        end = int(ends[-1])
    stream.write(np.zeros(1, "<i8").tobytes())
    last = 0
    for sequences in _sequences_of(document_sizes):
        ends = last + np.cumsum(sequences)
        stream.write(ends.astype("<i8").tobytes())
        last = int(ends[-1])


def _sequences_of(document_sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """How many sequences each document is, in chunks."""
    for start in range(0, len(document_sizes), _CHUNK):
        sizes = document_sizes[start : start + _CHUNK]
        yield np.maximum(1, -(-sizes // MAX_SEQUENCE_TOKENS))


def _sequence_sizes(document_sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Tokens of each sequence, in chunks; all sequences of a document but its last are full."""
    starts = range(0, len(document_sizes), _CHUNK)
    for start, sequences in zip(starts, _sequences_of(document_sizes), strict=True):
        sizes = np.full(int(sequences.sum()), MAX_SEQUENCE_TOKENS, np.int64)
        last = np.cumsum(sequences) - 1
        sizes[last] = document_sizes[start : start + _CHUNK] - (sequences - 1) * MAX_SEQUENCE_TOKENS
        yield sizes
