"""Documents from parts of input files: text, JSON lines and Parquet, plain or compressed, in batches of text."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from hpctrain.errors import known_names_hint
from hpctrain.tokens.inputs import InputError, InputFile, Segment

BATCH_CHARS = 2**20
"""Of text that is encoded together."""
PIECE_CHARS = 2**20
"""A longer document is encoded in pieces: a tokenizer needs a hundred times the room of its text."""
_READ_BYTES = 2**20
_BOM = "\ufeff"
_OTHER_FORMATS = {
    b"\xff\xfe": "it is UTF-16: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "it is UTF-16: iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "it is compressed: let its name end with .gz",
    b"\x28\xb5\x2f\xfd": "it is compressed: let its name end with .zst",
    b"BZh": "it is compressed: unpack it with bunzip2",
    b"\xfd7zXZ": "it is compressed: unpack it with unxz",
    b"PK\x03\x04": "it is an archive: unpack it with unzip",
    b"PAR1": "it is Parquet: --kind parquet",
}
"""How files begin that are no text."""


class Batch(NamedTuple):
    """Texts in order; each is a document, or a piece of one."""

    texts: list[str]
    is_open: bool
    """The last text is a piece whose document goes on in the next batch."""
    num_empty: int
    """Documents without text that were left out."""
    num_bytes: int
    """Of the file on disk since the batch before."""


class Reading(NamedTuple):
    """How documents are found in files."""

    field: str
    split_at: str | None


def segment_batches(file: InputFile, segment: Segment, reading: Reading) -> Iterator[Batch]:
    """The documents of a part of a file.

    A document of plain text is a file, or what ``split_at`` ends; of a file that is cut into parts, all parts but the last end
    with an open batch. A byte order mark at a file's start is left out.

    Raises:
        InputError: not UTF-8, no JSON, no such field, no text in it, truncated; with the byte, line or row.
    """
    if file.kind == "parquet":
        return _batched(_parquet_texts(file, segment, reading.field))
    if file.kind == "jsonl":
        return _batched(_json_texts(file, segment, reading.field))
    if reading.split_at is not None:
        return _batched(_split_texts(file, segment, reading.split_at))
    return _batched(_whole_texts(file, segment))


class _Texts(NamedTuple):
    """Some documents, and how many bytes of the file on disk they took."""

    texts: list[str | None]
    num_bytes: int
    is_open: bool = False
    """The last one is a piece, whose document goes on."""


def _batched(groups: Iterable[_Texts]) -> Iterator[Batch]:
    """Joins documents to batches of about ``BATCH_CHARS``, cuts long ones, leaves out empty ones."""
    texts: list[str] = []
    room, num_bytes, num_empty = BATCH_CHARS, 0, 0
    for group in groups:
        num_bytes += group.num_bytes
        for place, text in enumerate(group.texts):
            if not text:
                num_empty += 1
                continue
            goes_on = group.is_open and place == len(group.texts) - 1
            start = 0
            while start < len(text):
                stop = piece_end(text, start)
                texts.append(text[start:stop] if start or stop < len(text) else text)
                room -= stop - start
                start = stop
                if goes_on or start < len(text):
                    yield Batch(texts, True, num_empty, num_bytes)
                elif room <= 0:
                    yield Batch(texts, False, num_empty, num_bytes)
                else:
                    continue
                texts, room, num_bytes, num_empty = [], BATCH_CHARS, 0, 0
    if texts or num_bytes or num_empty:
        yield Batch(texts, False, num_empty, num_bytes)


def piece_end(text: str, start: int) -> int:
    """Where the piece that begins at ``start`` ends.

    Best behind a line end, else in front of a blank, between two characters that are none: tokenizers that split text as GPT-2's,
    cl100k's and Llama 3's give the same ids there as without the cut. Else behind any line end, else anywhere.

    >>> piece_end("no more than one piece", 0)
    22
    """
    limit = start + PIECE_CHARS
    if len(text) <= limit:
        return len(text)
    for mark, length in (("\n", 1), (" ", 0)):
        place = text.rfind(mark, start, limit)
        while place > start:
            if not text[place - 1].isspace() and not text[place + 1].isspace():
                return place + length
            place = text.rfind(mark, start, place)
    any_line = text.rfind("\n", start, limit)
    return limit if any_line < 0 else any_line + 1


def _whole_texts(file: InputFile, segment: Segment) -> Iterator[_Texts]:
    """A file, or a part of it, as pieces of one document."""
    text, num_bytes = "", 0
    for chunk in _plain(file, segment):
        text += chunk.text
        num_bytes += chunk.num_bytes
        while len(text) > PIECE_CHARS:
            stop = piece_end(text, 0)
            yield _Texts([text[:stop]], num_bytes, is_open=True)
            text, num_bytes = text[stop:], 0
    yield _Texts([text], num_bytes, is_open=segment.stop < file.num_bytes)


def _split_texts(file: InputFile, segment: Segment, split_at: str) -> Iterator[_Texts]:
    for texts, num_bytes, is_last in _ended(_plain(file, segment), split_at):
        yield _Texts([*texts[:-1]] if is_last and not texts[-1] else [*texts], num_bytes)


def _json_texts(file: InputFile, segment: Segment, field: str) -> Iterator[_Texts]:
    line_start = segment.start
    for lines, num_bytes, _ in _ended(_decoded(file, segment), "\n"):
        texts: list[str | None] = []
        for line in lines:
            bare = line.removeprefix(_BOM) if line_start == 0 else line
            if bare and not bare.isspace():
                texts.append(_field_text(bare, file, line_start, field))
            line_start += len(line) + 1 if line.isascii() else len(line.encode()) + 1
        yield _Texts(texts, num_bytes)


def _ended(chunks: Iterable[_Decoded], end: str) -> Iterator[tuple[list[str], int, bool]]:
    """What each ``end`` ends, with the bytes on disk that it took; last of all what is behind the last one."""
    parts: list[str] = []
    seam = ""
    for chunk in chunks:
        parts.append(chunk.text)
        if end in seam + chunk.text:
            *texts, rest = "".join(parts).split(end)
            parts = [rest]
            yield texts, chunk.num_bytes, False
        else:  # a long one: joined once, when its end is there
            yield [], chunk.num_bytes, False
        seam = (seam + chunk.text)[1 - len(end) :] if len(end) > 1 else ""
    yield ["".join(parts)], 0, True


def _field_text(line: str, file: InputFile, line_start: int, field: str) -> str | None:
    """The text of one line; None where the field is null."""
    rule, fix = "", ""
    try:
        text = json.loads(line)[field]
        if text is None or (isinstance(text, str) and (text.isascii() or _is_writable(text))):
            return text
        rule = f"the field {field!r} holds half a character (a lone surrogate)" if isinstance(text, str) else ""
        rule = rule or f"the field {field!r} is {type(text).__name__}, no text"
    except json.JSONDecodeError as error:
        rule = f"is no JSON: {error.msg} at character {error.pos + 1:,} (the line has {len(line):,})"
        fix = "each line must be one object"
    except RecursionError:
        rule = "is no JSON that can be read: brackets in brackets without end"
    except ValueError as error:  # a number of more than 4,300 digits
        rule = f"is no JSON that can be read: {str(error).partition(';')[0]}"
    except (KeyError, TypeError, IndexError):
        value = json.loads(line)
        if isinstance(value, dict):
            rule, fix = f"has no field {field!r}", f"--field NAME; {known_names_hint(field, value)}"
        else:
            rule, fix = f"is {type(value).__name__}, no object", "each line must be one object"
    raise _line_error(file, line_start, rule, fix)


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _line_error(file: InputFile, line_start: int, rule: str, fix: str) -> InputError:
    """Counts the lines in front of the one that is wrong."""
    whole = Segment(0, 0, file.num_bytes, file.num_bytes)
    number, left = 1, line_start
    for content, _ in _chunks(file, whole):
        number += content[:left].count(b"\n")
        left -= len(content)
        if left <= 0:
            break
    of_what = "byte" if file.compression is None else "byte (unpacked)"
    return InputError(file.path, f"line {number:,} ({of_what} {line_start:,})", rule, fix)


def _parquet_texts(file: InputFile, segment: Segment, field: str) -> Iterator[_Texts]:
    from hpctrain.tokens.parquet import group_texts

    for group in range(segment.start, segment.stop):
        for texts in group_texts(file.path, field, group):
            yield _Texts(texts, 0)
    yield _Texts([], segment.num_bytes)


class _Decoded(NamedTuple):
    text: str
    num_bytes: int


def _plain(file: InputFile, segment: Segment) -> Iterator[_Decoded]:
    """As ``_decoded``, without a byte order mark at the start of the file."""
    is_first = segment.start == 0
    for chunk in _decoded(file, segment):
        yield chunk._replace(text=chunk.text.removeprefix(_BOM)) if is_first else chunk
        is_first = is_first and not chunk.text


def _decoded(file: InputFile, segment: Segment) -> Iterator[_Decoded]:
    """The text of a part of a file, as it comes, and the bytes on disk that it took."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    offset = segment.start
    for content, num_bytes in _chunks(file, segment):
        num_pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(content)
        except UnicodeDecodeError as error:
            raise _not_utf8(file, offset - num_pending + error.start, error.object[error.start]) from None
        offset += len(content)
        yield _Decoded(text, num_bytes)
    if pending := decoder.getstate()[0]:
        raise _not_utf8(file, offset - len(pending), pending[0], " and the file ends in the middle of a character")


def _not_utf8(file: InputFile, offset: int, byte: int, more: str = "") -> InputError:
    place = f"byte {offset:,}" + (" (unpacked)" if file.compression else "")
    with open(file.path, "rb") as raw:
        head = raw.read(8)
    known = next((advice for magic, advice in _OTHER_FORMATS.items() if head.startswith(magic)), None)
    if file.compression is not None or known is None:
        known = "it is truncated" if more else "convert it: iconv -f LATIN1 -t UTF-8"
    fix = known
    return InputError(file.path, place, f"is not UTF-8: 0x{byte:02x}{more}", fix)


def _chunks(file: InputFile, segment: Segment) -> Iterator[tuple[bytes, int]]:
    """Unpacked bytes of a part of a file, and how many bytes on disk they took.

    Raises:
        InputError: a compressed file is truncated or damaged, or a part ends too early.
    """
    with open(file.path, "rb") as raw:
        if file.compression is None:
            raw.seek(segment.start)
            left = segment.stop - segment.start
            while left:
                content = raw.read(min(_READ_BYTES, left))
                if not content:
                    rule = "ends here, it was longer when the work began"
                    raise InputError(file.path, f"byte {segment.stop - left:,}", rule)
                left -= len(content)
                yield content, len(content)
            return
        done = 0
        with _unpacked(raw, file) as stream:
            while content := _read_unpacked(stream, raw, file):
                place = raw.tell()
                yield content, place - done
                done = place
        if file.num_bytes > done:
            yield b"", file.num_bytes - done


def _unpacked(raw: IO[bytes], file: InputFile) -> contextlib.AbstractContextManager[Any]:
    if file.compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")  # type: ignore[arg-type]


def _read_unpacked(stream: Any, raw: IO[bytes], file: InputFile) -> bytes:
    try:
        content: bytes = stream.read(_READ_BYTES)
    except (EOFError, OSError, zlib.error, ValueError) as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            file.path, f"byte {raw.tell():,} or shortly before", words, "it is truncated or damaged"
        ) from None
    return content
