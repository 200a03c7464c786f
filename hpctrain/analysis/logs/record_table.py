"""Rows of named values in little memory: at most nine bytes a cell once a row is old, a plain dictionary while it is new."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.events import Value

NUM_NEW_ROWS = 4096
"""So many rows at least stay dictionaries that can still be changed; as many are packed at once."""

_ABSENT, _NONE, _FALSE, _TRUE, _INT, _FLOAT, _OBJECT = range(7)
_MAX_EXACT_INT = 2**53
_KIND_OF_TYPE = {int: _INT, float: _FLOAT, bool: _TRUE, type(None): _NONE}


Column = npt.NDArray[np.float64] | npt.NDArray[np.int64] | list[str] | Value
"""Values of one name in several rows, one a row or the same in all; integers are at most 2^53."""


def part_of(values: Column, place: slice) -> Column:
    """The values of some rows."""
    return values[place] if isinstance(values, list | np.ndarray) else values


def value_at(values: Column, place: int) -> Value:
    """The value of one row."""
    if isinstance(values, np.ndarray):
        value: Value = values[place].item()
        return value
    return values[place] if isinstance(values, list) else values


class _Cells(NamedTuple):
    """Cells of one column in ``NUM_NEW_ROWS`` rows; what is the same in all of them is kept once."""

    kinds: bytes
    """What kind of value each is."""
    numbers: array[float]
    """The numbers; of an object its place in the column's ``objects``."""


_ALL_ABSENT = _Cells(bytes((_ABSENT,)), array("d", (0.0,)))


class _Column:
    """All cells of one name."""

    __slots__ = ("objects", "pieces", "places")

    def __init__(self, num_pieces: int) -> None:
        self.pieces = [_ALL_ABSENT] * num_pieces
        self.objects: list[object] = []
        self.places: dict[object, int] = {}

    def append(self, parts: Iterable[tuple[bytes, array[float]]]) -> None:
        """Add the cells of the next ``NUM_NEW_ROWS`` rows, as ``encoded`` and ``encoded_block`` give them."""
        kinds, numbers = zip(*parts, strict=True)
        if len(kinds) == 1:
            self._add(kinds[0], numbers[0])
        else:
            self._add(b"".join(kinds), array("d", b"".join(part.tobytes() for part in numbers)))

    def encoded(self, values: Sequence[object]) -> tuple[bytes, array[float]]:
        """Kind and number of each value."""
        types = set(map(type, values))
        if types == {float} or (types == {int} and max(values) <= _MAX_EXACT_INT <= min(values) + 2 * _MAX_EXACT_INT):  # type: ignore[type-var,operator]
            return bytes((_KIND_OF_TYPE[types.pop()],)) * len(values), array("d", values)  # type: ignore[arg-type]  # all are numbers
        pairs = [self._encoded(value) for value in values]
        return bytes(kind for kind, _ in pairs), array("d", [number for _, number in pairs])

    def encoded_block(self, values: object, length: int) -> tuple[bytes, array[float]]:
        """Kinds and numbers of a ``Column`` of so many rows."""
        if isinstance(values, list):
            return self.encoded(values)
        if isinstance(values, np.ndarray):
            kind = _FLOAT if values.dtype == np.float64 else _INT
            return bytes((kind,)) * length, array("d", values.astype(np.float64).tobytes())
        kind, number = self._encoded(values)
        return bytes((kind,)) * length, array("d", (number,)) * length

    def _add(self, kinds: bytes, numbers: array[float]) -> None:
        if kinds.count(kinds[0]) == len(kinds):
            kinds = kinds[:1]
        raw = numbers.tobytes()
        if raw == raw[: numbers.itemsize] * len(numbers):
            numbers = numbers[:1]
        self.pieces.append(_Cells(kinds, numbers))

    def _encoded(self, value: object) -> tuple[int, float]:
        kind = _KIND_OF_TYPE.get(type(value), _OBJECT)
        if value is _MISSING:
            return _ABSENT, 0.0
        if kind == _FLOAT or (kind == _INT and -_MAX_EXACT_INT <= value <= _MAX_EXACT_INT):  # type: ignore[operator]
            return kind, float(value)  # type: ignore[arg-type]
        if kind == _TRUE:
            return (_TRUE if value else _FALSE), 0.0
        return (_NONE, 0.0) if kind == _NONE else (_OBJECT, float(self._place(value)))

    def _place(self, value: object) -> int:
        """Equal texts are kept once."""
        if not isinstance(value, str):
            self.objects.append(value)
            return len(self.objects) - 1
        place = self.places.setdefault(value, len(self.objects))
        if place == len(self.objects):
            self.objects.append(value)
            if len(self.places) > NUM_NEW_ROWS:  # names repeat, time stamps do not
                self.places.clear()
        return place

    def fill(self, value: object) -> None:
        """Put ``value`` into all empty cells."""
        kind, number = self._encoded(value)
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            if _ABSENT not in piece.kinds:
                self.pieces.append(piece)
                continue
            kinds, numbers = (cells.copy() for cells in _unfolded(piece))
            absent = kinds == _ABSENT
            kinds[absent], numbers[absent] = kind, number
            self._add(kinds.tobytes(), array("d", numbers.tobytes()))

    def as_floats(self, piece: _Cells) -> npt.NDArray[np.float64]:
        """Cells as numbers; NaN for those that hold none."""
        kinds, numbers = _unfolded(piece)
        if len(piece.kinds) == 1 and piece.kinds[0] in (_INT, _FLOAT):
            return numbers
        floats = np.where((kinds == _ABSENT) | (kinds == _NONE), np.nan, numbers)
        floats[kinds == _TRUE] = 1.0
        for row in np.flatnonzero(kinds == _OBJECT).tolist():
            floats[row] = _as_float(self.objects[int(numbers[row])])
        return floats

    def values(self, piece: _Cells) -> Sequence[object]:
        """Cells as they were given; those that are all floats or all integers, as most are, by one call."""
        kinds, numbers = _unfolded(piece)
        if len(piece.kinds) == 1 and piece.kinds[0] == _FLOAT:
            return list(numbers.tolist())
        if len(piece.kinds) == 1 and piece.kinds[0] == _INT:
            return list(map(int, numbers.tolist()))
        return [self._decoded(kind, number) for kind, number in zip(kinds.tolist(), numbers.tolist(), strict=True)]

    def get(self, row: int) -> object:
        """One cell."""
        place, row = divmod(row, NUM_NEW_ROWS)
        kinds, numbers = self.pieces[place]
        return self._decoded(kinds[row if len(kinds) > 1 else 0], numbers[row if len(numbers) > 1 else 0])

    def _decoded(self, kind: int, number: float) -> object:
        if kind == _FLOAT:
            return number
        if kind == _INT:
            return int(number)
        if kind == _OBJECT:
            return self.objects[int(number)]
        return (_MISSING, None, False, True)[kind]


def _unfolded(piece: _Cells) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    """Kinds and numbers of each row."""
    kinds, numbers = np.frombuffer(piece.kinds, dtype=np.uint8), np.frombuffer(piece.numbers, dtype=np.float64)
    return np.broadcast_to(kinds, NUM_NEW_ROWS), np.broadcast_to(numbers, NUM_NEW_ROWS)


def _as_float(value: object) -> float:
    """An integer too large for a float's digits is rounded, one too large for any float is no number."""
    if not isinstance(value, int | float):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("nan")


class _Block(NamedTuple):
    """Rows by column."""

    columns: dict[str, Column]
    length: int

    def part(self, start: int, stop: int | None) -> _Block:
        """Some of the rows."""
        place = slice(start, stop)
        columns = {name: part_of(values, place) for name, values in self.columns.items()}
        return _Block(columns, len(range(self.length)[place]))

    def rows(self) -> Iterator[dict[str, object]]:
        """The rows as dictionaries."""
        cells: list[Iterable[object]] = [_cells(values, self.length) for values in self.columns.values()]
        for row in zip(*cells, strict=True):
            yield dict(zip(self.columns, row, strict=True))


def _cells(values: Column, length: int) -> Iterable[object]:
    if isinstance(values, np.ndarray):
        return list(values.tolist())
    return values if isinstance(values, list) else repeat(values, length)


class _Missing:
    """Stands for a cell whose row has no such key."""


_MISSING = _Missing()


def _transposed(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> Iterable[Sequence[object]]:
    """The cells of each column; the usual case, rows that all have all names, takes a third of the time."""
    try:
        return zip(*map(itemgetter(*names), rows), strict=True) if len(names) > 1 else [[row[names[0]] for row in rows]]
    except KeyError:
        return ([row.get(name, _MISSING) for row in rows] for name in names)


def _names(part: list[dict[str, object]] | _Block) -> Iterable[str]:
    return part.columns if isinstance(part, _Block) else chain.from_iterable(part)


class RecordTable(Sequence[dict[str, object]]):
    """A sequence of rows; each is a dictionary of the keys that it was given.

    >>> table = RecordTable()
    >>> table.append(7, {"iteration": 1, "loss": 2.5})
    >>> table.append(9, {"iteration": 2, "loss": None})
    >>> table[-1], table.line_numbers[1], table.column("loss")
    ({'iteration': 2, 'loss': None}, 9, [2.5, None])
    """

    def __init__(self) -> None:
        self.line_numbers = array("q")
        """Line of the file in which each row stands."""
        self._columns: dict[str, _Column] = {}
        self._num_packed = 0
        self._waiting: list[list[dict[str, object]] | _Block] = []
        """Rows between the packed and the new ones."""
        self._new: list[dict[str, object]] = []

    def append(self, line_number: int, row: dict[str, object]) -> None:
        """Add a row; the dictionary stays the table's own and may be changed while ``new_row`` gives it."""
        self._new.append(row)
        self.line_numbers.append(line_number)
        if len(self.line_numbers) - self._num_packed >= 2 * NUM_NEW_ROWS:
            self._pack()

    def append_columns(self, line_numbers: npt.NDArray[np.int64], columns: Mapping[str, Column]) -> None:
        """Add many rows that have the same names, in the order of ``columns``."""
        if self._new:
            self._waiting.append(self._new)
            self._new = []
        self._waiting.append(_Block(dict(columns), len(line_numbers)))
        self.line_numbers.frombytes(line_numbers.astype(np.int64).tobytes())
        while len(self) - self._num_packed >= 2 * NUM_NEW_ROWS:
            self._pack()

    def _pack(self) -> None:
        """Pack the oldest rows."""
        parts = self._oldest()
        for name in dict.fromkeys(chain.from_iterable(_names(part) for part in parts)):
            if name not in self._columns:
                self._columns[name] = _Column(self._num_packed // NUM_NEW_ROWS)
        names = list(self._columns)
        encoded: list[list[tuple[bytes, array[float]]]] = [[] for _ in names]
        for part in parts:
            if isinstance(part, _Block):
                for cells, (name, column) in zip(encoded, self._columns.items(), strict=True):
                    cells.append(column.encoded_block(part.columns.get(name, _MISSING), part.length))
            else:
                for cells, column, values in zip(
                    encoded, self._columns.values(), _transposed(part, names), strict=True
                ):
                    cells.append(column.encoded(values))
        for column, cells in zip(self._columns.values(), encoded, strict=True):
            column.append(cells)
        self._num_packed += NUM_NEW_ROWS

    def _oldest(self) -> list[list[dict[str, object]] | _Block]:
        """Take ``NUM_NEW_ROWS`` rows away."""
        parts: list[list[dict[str, object]] | _Block] = []
        missing = NUM_NEW_ROWS
        while missing and self._waiting:
            part = self._waiting.pop(0)
            length = part.length if isinstance(part, _Block) else len(part)
            if length > missing:
                rest, part = (
                    (part.part(missing, None), part.part(0, missing))
                    if isinstance(part, _Block)
                    else (part[missing:], part[:missing])
                )
                self._waiting.insert(0, rest)
            parts.append(part)
            missing -= min(length, missing)
        if missing:
            parts.append(self._new[:missing])
            self._new = self._new[missing:]
        return parts

    def _rows(self) -> list[dict[str, object]]:
        """The rows that are not packed, as dictionaries from now on."""
        if self._waiting:
            old = chain.from_iterable(part.rows() if isinstance(part, _Block) else part for part in self._waiting)
            self._new = [*old, *self._new]
            self._waiting = []
        return self._new

    def new_row(self, index: int) -> dict[str, object] | None:
        """The row itself if it can still be changed."""
        return self._rows()[index - self._num_packed] if index >= self._num_packed else None

    def fill(self, name: str, value: object) -> None:
        """Give ``value`` to all rows that lack ``name``; only for a table that is complete."""
        self._columns.setdefault(name, _Column(self._num_packed // NUM_NEW_ROWS)).fill(value)
        for new in self._rows():
            new.setdefault(name, value)

    @property
    def names(self) -> list[str]:
        """All keys of all rows, in the order of their first row."""
        return list(dict.fromkeys([*self._columns, *(name for row in self._rows() for name in row)]))

    def column(self, name: str) -> list[object]:
        """The values of one key, row by row; None where a row has none."""
        packed = self._columns.get(name)
        if packed is None:
            return [None] * self._num_packed + [row.get(name) for row in self._rows()]
        values = chain.from_iterable(map(packed.values, packed.pieces))
        return [None if value is _MISSING else value for value in values] + [row.get(name) for row in self._rows()]

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """The numbers of one key, row by row; True counts as 1, NaN stands where a row has none."""
        new = np.array([_as_float(row.get(name)) for row in self._rows()], dtype=np.float64)
        packed = self._columns.get(name)
        if packed is None:
            return np.concatenate((np.full(self._num_packed, np.nan), new))
        return np.concatenate((*map(packed.as_floats, packed.pieces), new))

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        """The rows that have the key, whatever its value."""
        return self._kind_is(name, lambda kinds: kinds != _ABSENT, [name in row for row in self._rows()])

    def true(self, name: str) -> npt.NDArray[np.bool_]:
        """The rows in which the key is True."""
        return self._kind_is(name, lambda kinds: kinds == _TRUE, [row.get(name) is True for row in self._rows()])

    def _kind_is(
        self, name: str, test: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.bool_]], new: list[bool]
    ) -> npt.NDArray[np.bool_]:
        packed = self._columns.get(name)
        if packed is None:
            return np.array([False] * self._num_packed + new, dtype=np.bool_)
        return np.concatenate((*(test(_unfolded(piece)[0]) for piece in packed.pieces), np.array(new, dtype=np.bool_)))

    def __len__(self) -> int:
        return len(self.line_numbers)

    @overload
    def __getitem__(self, index: int) -> dict[str, object]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, object]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, object] | list[dict[str, object]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index >= self._num_packed:
            return dict(self._rows()[index - self._num_packed])
        values = ((name, column.get(index)) for name, column in self._columns.items())
        return {name: value for name, value in values if value is not _MISSING}

    def __iter__(self) -> Iterator[dict[str, object]]:
        names = list(self._columns)
        for place in range(self._num_packed // NUM_NEW_ROWS):
            columns = [column.values(column.pieces[place]) for column in self._columns.values()]
            for values in zip(*columns, strict=True):
                yield {name: value for name, value in zip(names, values, strict=True) if value is not _MISSING}
        yield from map(dict, self._rows())
