"""The head of token files in Megatron's form: what ``PREFIX.idx`` says of itself, held against the sizes of both files.

``PREFIX.bin`` is all tokens one behind the other, little-endian. ``PREFIX.idx`` is, without gaps: 9 bytes of magic, the version
(uint64, 1), the code of the token's type (uint8), the number of sequences and that of document indices (uint64 each), the
sequences' sizes in tokens (int32), their byte offsets in ``PREFIX.bin`` (int64), and the document indices (int64): 0 and, for
each document, the number of sequences up to its end. Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py
(``_IndexWriter``, ``DType``). Free of numpy, so that a submission can ask.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.record.files import open_regular, path_text

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEAD = struct.Struct("<9sQBQQ")
"""Magic, version, type code, number of sequences, number of document indices: 34 bytes."""
TYPE_OF_CODE = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Codes of whole numbers; 6 and 7 are floats. Source: ``DType`` in the same file."""
CODE_OF_TYPE = {name: code for code, name in TYPE_OF_CODE.items()}
ITEM_BYTES = {"uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8}
_SMALL_VOCABULARY = 65_500
_SIZE, _POINTER = struct.Struct("<i"), struct.Struct("<q")


class TokenFileError(HpctrainError):
    """Token files that are not what they should be; says which file, and at which byte."""

    def __init__(self, path: Path, rule: str, fix: str = "", *, offset: int | None = None) -> None:
        """Joins the parts.

        Args:
            path: the file.
            rule: what is wrong with it, with numbers.
            fix: what to do.
            offset: byte of the file at which it is wrong; None where no byte is to blame.
        """
        self.path, self.offset = path, offset
        place = path_text(path) if offset is None else f"{path_text(path)}, byte {offset:,}"
        super().__init__(f"{place}: {rule}" + (f"; {fix}" if fix else ""))


@dataclass(frozen=True)
class IndexHeader:
    """What a pair of token files holds, checked against their sizes."""

    prefix: Path
    dtype: str
    """Of a token, as numpy names it."""
    num_sequences: int
    num_documents: int
    num_tokens: int
    bin_bytes: int
    idx_bytes: int

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def sizes_offset(self) -> int:
        """Byte of ``PREFIX.idx`` where the sequences' sizes begin."""
        return HEAD.size

    @property
    def pointers_offset(self) -> int:
        return self.sizes_offset + _SIZE.size * self.num_sequences

    @property
    def documents_offset(self) -> int:
        return self.pointers_offset + _POINTER.size * self.num_sequences


def token_dtype(vocab_size: int) -> str:
    """The type of tokens below ``vocab_size``. Source: ``DType.optimal_dtype`` in the same file.

    >>> token_dtype(65_499), token_dtype(65_500)
    ('uint16', 'int32')
    """
    return "uint16" if vocab_size < _SMALL_VOCABULARY else "int32"


def bin_path(prefix: Path) -> Path:
    """The file of the tokens."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """The file of the sizes and documents."""
    return prefix.with_name(f"{prefix.name}.idx")


def token_prefix(path: Path) -> Path:
    """``path`` without the ``.bin`` or ``.idx`` of a file that is there: what users name when they mean both.

    Touches the disk.

    Raises:
        TokenFileError: it is a folder, and no prefix.
    """
    if not path.name or (os.path.isdir(path) and not bin_path(path).exists()):
        raise TokenFileError(path, "is a folder", f"a prefix is meant; {_in_folder(path)}")
    if path.suffix in (".bin", ".idx") and path.is_file() and not bin_path(path).exists():
        return path.with_name(path.stem)
    return path


def read_header(prefix: Path) -> IndexHeader:
    """The head of ``prefix``, after checks whose cost does not grow with the files.

    Raises:
        TokenFileError: a file is missing, may not be read, is truncated or too long, is of another format or version, or its
            first and last entries contradict the size of ``PREFIX.bin``.
    """
    index, tokens = idx_path(prefix), bin_path(prefix)
    bin_bytes = _size_of(tokens, prefix)
    idx_bytes = _size_of(index, prefix)
    with open_regular(index) as stream:
        header = _parsed_head(stream.read(HEAD.size), prefix, bin_bytes, idx_bytes)
        _check_idx_length(header)
        _check_ends(stream.fileno(), header)
    return header


def _size_of(path: Path, prefix: Path) -> int:
    try:
        with open_regular(path) as stream:
            return os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        raise TokenFileError(path, "there is no such file", _what_is_there(path, prefix)) from None
    except OSError as error:
        raise TokenFileError(path, str(error.strerror)) from None


def _what_is_there(path: Path, prefix: Path) -> str:
    if prefix.with_name(f"{prefix.name}.partial").is_dir():
        return f"{path_text(prefix)}.partial is there: prepare was stopped, and the same command goes on"
    if not path.parent.is_dir():
        nearest = next(parent for parent in path.absolute().parents if parent.is_dir())
        return f"{path_text(nearest)} is there"
    return _in_folder(path.parent)


def _in_folder(folder: Path) -> str:
    others = sorted(path_text(other.with_suffix("")) for other in folder.glob("*.idx"))[:3]
    return f"token files there: {', '.join(others)}" if others else "python -m hpctrain prepare makes token files"


def _parsed_head(head: bytes, prefix: Path, bin_bytes: int, idx_bytes: int) -> IndexHeader:
    path = idx_path(prefix)
    if not head.startswith(MAGIC[: len(head)]) or not head:
        raise TokenFileError(
            path, f"begins with {head[:9]!r}, token files with {MAGIC!r}", "it is of another format", offset=0
        )
    if len(head) < HEAD.size:
        raise TokenFileError(path, f"ends here, its head has {HEAD.size} bytes", "it is truncated", offset=len(head))
    _, version, code, num_sequences, num_indices = HEAD.unpack(head)
    if version != VERSION:
        raise TokenFileError(path, f"version {version}, this hpctrain reads {VERSION}", offset=len(MAGIC))
    if code not in TYPE_OF_CODE:
        known = ", ".join(f"{number} {name}" for number, name in TYPE_OF_CODE.items())
        raise TokenFileError(path, f"token type {code} is none of whole numbers", f"known: {known}", offset=17)
    dtype = TYPE_OF_CODE[code]
    if num_indices == 0:
        raise TokenFileError(path, "no document indices, not even the first, which is 0", offset=26)
    return IndexHeader(
        prefix, dtype, num_sequences, num_indices - 1, bin_bytes // ITEM_BYTES[dtype], bin_bytes, idx_bytes
    )


def _check_idx_length(header: IndexHeader) -> None:
    path = idx_path(header.prefix)
    expected = header.documents_offset + _POINTER.size * (header.num_documents + 1)
    counts = f"{header.num_sequences:,} sequences and {header.num_documents:,} documents take {expected:,} bytes"
    if header.idx_bytes == expected + header.num_sequences > expected:
        raise TokenFileError(
            path, "a multimodal corpus (modes behind the documents), text is read only", offset=expected
        )
    if header.idx_bytes > expected:
        raise TokenFileError(path, f"{counts}, the file has {header.idx_bytes:,}", offset=expected)
    if header.idx_bytes < expected:
        raise TokenFileError(path, f"{counts}, the file ends here", "it is truncated", offset=header.idx_bytes)


def _check_ends(index: int, header: IndexHeader) -> None:
    """Holds the first and last entries of the index against the size of the tokens' file."""
    first_document, last_document = (
        _number(index, header.documents_offset + _POINTER.size * place, _POINTER) for place in (0, header.num_documents)
    )
    if first_document != 0 or last_document != header.num_sequences:
        rule = (
            f"documents go from sequence {first_document:,} to {last_document:,}, of {header.num_sequences:,} sequences"
        )
        raise TokenFileError(idx_path(header.prefix), rule, offset=header.documents_offset)
    if header.num_sequences == 0:
        end = 0
    else:
        first, end = _sequence(index, header, 0)[0], _sequence(index, header, header.num_sequences - 1)[1]
        if first != 0:
            rule = f"the first sequence is at byte {first:,} of the tokens, not 0"
            raise TokenFileError(idx_path(header.prefix), rule, offset=header.pointers_offset)
    if header.bin_bytes < end:
        raise _truncated_bin(index, header, end)
    if header.bin_bytes > end:
        rule = f"{header.bin_bytes - end:,} bytes more than its index knows of ({end:,})"
        raise TokenFileError(bin_path(header.prefix), rule, "the two files are not of one corpus", offset=end)


def _truncated_bin(index: int, header: IndexHeader, end: int) -> TokenFileError:
    """Names the first sequence that is not wholly there, found by halving."""
    low, high = 0, header.num_sequences - 1
    while low < high:
        middle = (low + high) // 2
        if _sequence(index, header, middle)[1] <= header.bin_bytes:
            low = middle + 1
        else:
            high = middle
    start, stop = _sequence(index, header, low)
    rule = f"ends here, in sequence {low:,} of bytes {start:,} to {stop:,}; its index knows of {end:,} bytes"
    return TokenFileError(bin_path(header.prefix), rule, "it is truncated", offset=header.bin_bytes)


def _sequence(index: int, header: IndexHeader, number: int) -> tuple[int, int]:
    """First byte of a sequence in the tokens' file, and the one behind it."""
    start = _number(index, header.pointers_offset + _POINTER.size * number, _POINTER)
    return start, start + header.item_bytes * _number(index, header.sizes_offset + _SIZE.size * number, _SIZE)


def _number(index: int, offset: int, form: struct.Struct) -> int:
    number: int = form.unpack(os.pread(index, form.size, offset))[0]
    return number
