"""``steps.jsonl`` to columns at the disk's speed, and exactly as strictly as ``record.lines.parse_step``.

``StepWriter`` writes every record with the same text around its values. A block of lines in which that text stands byte by byte
where it should, and nothing but JSON numbers between, is read as columns; any other block is read line by line. So damage
costs time and never changes a number. A block is held against the layout of its first line's schema version; where a newer
version went on with an older one's file, one block holds both and is read line by line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hpctrain.record.files import open_regular
from hpctrain.record.lines import MAX_LINE_BYTES, STEP_HINTS, parse_step
from hpctrain.record.schema import StepRecord

BLOCK_BYTES = 16 << 20
"""Read at once, so that memory stays flat in the size of the file."""

_HINTS: dict[str, Any] = get_type_hints(StepRecord)
_DTYPES = {name: np.dtype(hint if hint in (int, bool) else float) for name, hint in _HINTS.items()}
_LINE_END = b"}\n"
_WORD = 8

_SIGN, _COLON, _POINT, _ZERO, _NULL = b"-:.0n"
_MAY_FOLLOW_ZERO = np.isin(np.arange(256), list(b".eE,}"))


class _Layout:
    """How ``StepWriter`` writes, or wrote, a line of one schema version."""

    def __init__(self, version: int, hints: dict[str, Any]) -> None:
        self.version = version
        self.hints = hints
        self.is_flag = np.array([[hint is bool] for hint in hints.values()])
        self.may_be_null = np.array([[hint == float | None] for hint in hints.values()])
        self.texts = [("{" if number == 0 else ", ") + f'"{name}": ' for number, name in enumerate(hints)]
        """What stands before each value of a line."""
        self.text_lengths = np.array([[len(text)] for text in self.texts])


_LAYOUTS = {
    f'{{"schema_version": {version},'.encode(): _Layout(version, hints) for version, hints in STEP_HINTS.items()
}
"""By the beginning of a line."""


@dataclass(frozen=True)
class StepColumns:
    """The records of one file in its order."""

    columns: dict[str, NDArray[Any]]
    """By the fields of ``StepRecord`` without ``schema_version``; None is NaN."""
    num_lines: int
    """Whole lines; a last line without its end is still being written and is no line."""
    damaged_lines: int
    first_damage: str
    """Place and reason of the first damaged line; empty if there is none."""


NO_STEPS = StepColumns(
    {name: np.empty(0, dtype) for name, dtype in _DTYPES.items() if name != "schema_version"}, 0, 0, ""
)


def read_steps(path: Path) -> StepColumns:
    """All whole lines of ``steps.jsonl``; a file that is not there has none.

    Raises:
        OSError: the file cannot be read.
    """
    found = _Found()
    try:
        with open_regular(path) as stream:
            for block in _blocks(stream):
                if block is None:
                    found.add_damage(f"more than {MAX_LINE_BYTES:,} bytes in one line")
                else:
                    found.add(block)
    except FileNotFoundError:
        return NO_STEPS  # no step has ended yet
    columns = NO_STEPS.columns
    if found.parts:
        columns = {name: np.concatenate([part[name] for part in found.parts]) for name in columns}
    return StepColumns(columns, found.num_lines, found.damaged_lines, found.first_damage)


def _blocks(stream: BinaryIO) -> Iterator[bytes | None]:
    """Whole lines, many at once; None stands for one line that is longer than ``MAX_LINE_BYTES`` and than what was read."""
    rest, dropping = b"", False
    while chunk := stream.read(BLOCK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if not end:
            dropping = dropping or len(rest) + len(chunk) > MAX_LINE_BYTES
            rest = b"" if dropping else rest + chunk
            continue
        start = 0
        if dropping:
            yield None
            start, dropping = chunk.index(b"\n") + 1, False
        if rest or start < end:
            yield rest + chunk[start:end]
        rest = chunk[end:]


@dataclass
class _Found:
    """What the blocks read so far hold."""

    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    num_lines: int = 0
    damaged_lines: int = 0
    first_damage: str = ""

    def add(self, block: bytes) -> None:
        columns = _read_columns(block)
        if columns is not None:
            self.num_lines += len(columns["step"])
            self.parts.append(columns)
            return
        records = []
        # Not splitlines: a carriage return inside a line does not end it.
        for line in block[:-1].split(b"\n"):
            try:
                records.append(parse_step(line))
            except ValueError as error:
                self.add_damage(str(error))
            else:
                self.num_lines += 1
        self.parts.append(
            {
                name: np.array([getattr(record, name) for record in records], dtype=dtype)
                for name, dtype in _DTYPES.items()
            }
        )

    def add_damage(self, reason: str) -> None:
        self.num_lines += 1
        self.damaged_lines += 1
        self.first_damage = self.first_damage or f"line {self.num_lines}: {reason}"


def _read_columns(block: bytes) -> dict[str, NDArray[Any]] | None:
    """The block's columns, or None where only the strict reader can tell what it holds."""
    layout = next((layout for start, layout in _LAYOUTS.items() if block.startswith(start)), None)
    if layout is None:
        return None
    text = np.frombuffer(block, np.uint8)
    bounds = _bounds(text, layout)
    if bounds is None or not _texts_stand(text, bounds, layout.texts):
        return None
    nulls = _nulls(text, bounds, layout)
    if nulls is None:
        return None
    # Without a copy: a string array is offsets into the block.
    offsets = np.append(bounds.T.ravel(), len(block)).astype(np.int32)
    pieces = pa.StringArray.from_buffers(bounds.size, pa.py_buffer(offsets.data), pa.py_buffer(block))
    places = np.arange(0, bounds.size, len(bounds), dtype=np.int32)
    columns: dict[str, NDArray[Any]] = {}
    for number, name in enumerate(layout.hints):
        values = pieces.take(pa.array(places + np.int32(2 * number + 1)))
        column = _flags(values) if _HINTS[name] is bool else _numbers(values, _DTYPES[name], nulls[number])
        if column is None:
            return None
        columns[name] = column
    if (columns["schema_version"] != layout.version).any():
        return None
    lacking = (name for name in _HINTS if name not in layout.hints)
    return columns | {name: np.full(bounds.shape[1], np.nan) for name in lacking}


def _bounds(text: NDArray[np.uint8], layout: _Layout) -> NDArray[np.int64] | None:
    """Where each text and each value of a line should begin, ``(33, lines)``; None if the colons are not those of records.

    A value begins behind a colon, and the text before it has its known length, so colons are all that must be looked for.
    """
    colons = np.flatnonzero(text == _COLON)
    num_values = len(layout.hints)
    num_lines, rest = divmod(len(colons), num_values)
    if rest or not num_lines:
        return None
    bounds = np.empty((2 * num_values + 1, num_lines), np.int64)
    bounds[1::2] = colons.reshape(num_lines, num_values).T + len(": ")
    bounds[:-1:2] = bounds[1::2] - layout.text_lengths
    bounds[-1, :-1] = bounds[0, 1:] - len(_LINE_END)
    bounds[-1, -1] = len(text) - len(_LINE_END)
    is_rising = bounds[0, 0] == 0 and (bounds[1:] > bounds[:-1]).all()
    return bounds if is_rising and (bounds[-1] - bounds[0]).max() < MAX_LINE_BYTES else None


def _texts_stand(text: NDArray[np.uint8], bounds: NDArray[np.int64], texts: list[str]) -> bool:
    """Between the values stand the keys in their order, and lines end where they should, byte by byte."""
    words = np.ndarray((len(text) - _WORD + 1,), "<u8", buffer=text, strides=(1,))  # the eight bytes from each byte on
    for starts, expected in zip(bounds[:-1:2], texts, strict=True):
        for place in (*range(0, len(expected) - _WORD, _WORD), len(expected) - _WORD):
            word = int.from_bytes(expected[place : place + _WORD].encode(), "little")
            if (words[starts + place] != word).any():
                return False
    return bool((text[bounds[-1]] == _LINE_END[0]).all() and (text[bounds[-1] + 1] == _LINE_END[1]).all())


def _nulls(text: NDArray[np.uint8], bounds: NDArray[np.int64], layout: _Layout) -> NDArray[np.bool_] | None:
    """Which values begin as ``null``, ``(16, lines)``; None if another one does not begin and end as a JSON number.

    Flags are looked at elsewhere. What lies between is left to pyarrow, which takes what JSON takes, and besides these: a
    sign ``+``, a missing digit beside the point or at the end, zeros in front, base 16, and words for what is not finite.
    """
    starts, ends = bounds[1::2], bounds[2::2]
    first = text[starts]
    nulls = (first == _NULL) & layout.may_be_null
    is_number = _is_digit(first)
    if (first == _SIGN).any():
        starts = starts + (first == _SIGN)
        first = text[starts]
        is_number = _is_digit(first)
    is_number &= _is_digit(text[ends - 1])
    zeros = starts[first == _ZERO]
    points = np.flatnonzero(text == _POINT)
    is_good = (
        (is_number | nulls | layout.is_flag).all()
        and _MAY_FOLLOW_ZERO[text[zeros + 1]].all()
        and _is_digit(text[points + 1]).all()
    )
    return nulls if is_good else None


def _is_digit(signs: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (signs - _ZERO) < 10  # below "0" it wraps around


def _all_equal(values: Any, expected: str) -> bool:
    return bool(pc.all(pc.equal(values, pa.scalar(expected))).as_py())


def _numbers(values: Any, dtype: np.dtype[Any], nulls: NDArray[np.bool_]) -> NDArray[Any] | None:
    """The column, null as NaN; None if a value is no number or out of range."""
    if nulls.any():
        if not _all_equal(values.filter(pa.array(nulls)), "null"):
            return None
        values = pc.if_else(pa.array(nulls), pa.scalar(None, pa.string()), values)
    try:
        column: NDArray[Any] = pc.cast(values, pa.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False)
    except (pa.ArrowException, ValueError):
        return None
    is_good = column >= 0 if dtype.kind == "i" else np.isfinite(column) | nulls
    return column if is_good.all() else None


def _flags(values: Any) -> NDArray[np.bool_] | None:
    is_true = pc.equal(values, pa.scalar("true"))
    if not pc.all(pc.or_(is_true, pc.equal(values, pa.scalar("false")))).as_py():
        return None
    column: NDArray[np.bool_] = is_true.to_numpy(zero_copy_only=False)
    return column
