"""Rows of named values in little memory: nine bytes a cell once a row is old, a plain dictionary while it is new."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import overload

import numpy as np
import numpy.typing as npt

NUM_NEW_ROWS = 4096
"""So many rows at least stay dictionaries that can still be changed; as many are packed at once."""

_ABSENT, _NONE, _FALSE, _TRUE, _INT, _FLOAT, _OBJECT = range(7)
_MAX_EXACT_INT = 2**53
_KIND_OF_TYPE = {int: _INT, float: _FLOAT, bool: _TRUE, type(None): _NONE}


class _Column:
    """Cells of one name: what kind of value each is, and its number (of an object: its place in ``objects``)."""

    __slots__ = ("kinds", "numbers", "objects", "places")

    def __init__(self, num_rows: int) -> None:
        self.kinds = bytearray(num_rows)
        self.numbers = array("d", bytes(8 * num_rows))
        self.objects: list[object] = []
        self.places: dict[object, int] = {}

    def extend(self, values: Sequence[object]) -> None:
        types = set(map(type, values))
        if types == {float} or (types == {int} and max(values) <= _MAX_EXACT_INT <= min(values) + 2 * _MAX_EXACT_INT):  # type: ignore[type-var,operator]
            self.kinds += bytes((_KIND_OF_TYPE[types.pop()],)) * len(values)
            self.numbers.extend(values)  # type: ignore[arg-type]  # all are numbers
        elif types == {_Missing} or types == {type(None)}:
            self.kinds += bytes((_ABSENT if values[0] is _MISSING else _NONE,)) * len(values)
            self.numbers.frombytes(bytes(8 * len(values)))
        else:
            for value in values:
                self._append(value)

    def _append(self, value: object) -> None:
        kind = _KIND_OF_TYPE.get(type(value), _OBJECT)
        number = 0.0
        if value is _MISSING:
            kind = _ABSENT
        elif kind == _FLOAT or (kind == _INT and -_MAX_EXACT_INT <= value <= _MAX_EXACT_INT):  # type: ignore[operator]
            number = float(value)  # type: ignore[arg-type]
        elif kind == _TRUE:
            kind = _TRUE if value else _FALSE
        elif kind != _NONE:
            kind, number = _OBJECT, float(self._place(value))
        self.kinds.append(kind)
        self.numbers.append(number)

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
        self._append(value)
        kind, number = self.kinds.pop(), self.numbers.pop()
        kinds = np.frombuffer(self.kinds, dtype=np.uint8)
        absent = kinds == _ABSENT
        kinds[absent] = kind
        np.frombuffer(self.numbers, dtype=np.float64)[absent] = number

    def as_floats(self) -> npt.NDArray[np.float64]:
        """All cells as numbers; NaN for those that hold none."""
        kinds = np.frombuffer(self.kinds, dtype=np.uint8)
        floats = np.frombuffer(self.numbers, dtype=np.float64).copy()
        floats[(kinds == _ABSENT) | (kinds == _NONE)] = np.nan
        floats[kinds == _TRUE] = 1.0
        for row in np.flatnonzero(kinds == _OBJECT).tolist() if self.objects else ():
            floats[row] = _as_float(self.objects[int(self.numbers[row])])
        return floats

    def is_there(self) -> npt.NDArray[np.bool_]:
        """Where cells are not empty."""
        there: npt.NDArray[np.bool_] = np.frombuffer(self.kinds, dtype=np.uint8) != _ABSENT
        return there

    def is_true(self) -> npt.NDArray[np.bool_]:
        """Where the cells hold True."""
        true: npt.NDArray[np.bool_] = np.frombuffer(self.kinds, dtype=np.uint8) == _TRUE
        return true

    def get(self, row: int) -> object:
        kind = self.kinds[row]
        if kind == _FLOAT:
            return self.numbers[row]
        if kind == _INT:
            return int(self.numbers[row])
        if kind == _OBJECT:
            return self.objects[int(self.numbers[row])]
        return (_MISSING, None, False, True)[kind]

    def cells(self, start: int, stop: int) -> Sequence[object]:
        """The cells of some rows; those that are all floats or all integers, as most are, by one call."""
        kinds = self.kinds[start:stop]
        if kinds.count(_FLOAT) == len(kinds):
            return self.numbers[start:stop].tolist()
        if kinds.count(_INT) == len(kinds):
            return list(map(int, self.numbers[start:stop]))
        return [self.get(row) for row in range(start, start + len(kinds))]


def _as_float(value: object) -> float:
    """An integer too large for a float's digits is rounded, one too large for any float is no number."""
    if not isinstance(value, int | float):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("nan")


class _Missing:
    """Stands for a cell whose row has no such key."""


_MISSING = _Missing()


def _transposed(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> Iterable[Sequence[object]]:
    """The cells of each column; the usual case, rows that all have all names, takes a third of the time."""
    try:
        return zip(*map(itemgetter(*names), rows), strict=True) if len(names) > 1 else [[row[names[0]] for row in rows]]
    except KeyError:
        return ([row.get(name, _MISSING) for row in rows] for name in names)


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
        self._new: list[dict[str, object]] = []

    def append(self, line_number: int, row: dict[str, object]) -> None:
        """Add a row; the dictionary stays the table's own and may be changed while ``new_row`` gives it."""
        self._new.append(row)
        self.line_numbers.append(line_number)
        if len(self._new) >= 2 * NUM_NEW_ROWS:
            self._pack()

    def _pack(self) -> None:
        rows = self._new[:NUM_NEW_ROWS]
        self._new = self._new[NUM_NEW_ROWS:]
        for name in dict.fromkeys(chain.from_iterable(rows)):
            if name not in self._columns:
                self._columns[name] = _Column(self._num_packed)
        for column, values in zip(self._columns.values(), _transposed(rows, list(self._columns)), strict=True):
            column.extend(values)
        self._num_packed += len(rows)

    def new_row(self, index: int) -> dict[str, object] | None:
        """The row itself if it can still be changed."""
        return self._new[index - self._num_packed] if index >= self._num_packed else None

    def fill(self, name: str, value: object) -> None:
        """Give ``value`` to all rows that lack ``name``; only for a table that is complete."""
        self._columns.setdefault(name, _Column(self._num_packed)).fill(value)
        for new in self._new:
            new.setdefault(name, value)

    @property
    def names(self) -> list[str]:
        """All keys of all rows, in the order of their first row."""
        return list(dict.fromkeys([*self._columns, *(name for row in self._new for name in row)]))

    def column(self, name: str) -> list[object]:
        """The values of one key, row by row; None where a row has none."""
        packed = self._columns.get(name)
        old = [None] * self._num_packed if packed is None else packed.cells(0, self._num_packed)
        values = [None if value is _MISSING else value for value in old]
        return values + [row.get(name) for row in self._new]

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """The numbers of one key, row by row; True counts as 1, NaN stands where a row has none."""
        new = np.array([_as_float(row.get(name)) for row in self._new], dtype=np.float64)
        packed = self._columns.get(name)
        old = np.full(self._num_packed, np.nan) if packed is None else packed.as_floats()
        return np.concatenate((old, new))

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        """The rows that have the key, whatever its value."""
        new = np.array([name in row for row in self._new], dtype=np.bool_)
        packed = self._columns.get(name)
        old = np.zeros(self._num_packed, dtype=np.bool_) if packed is None else packed.is_there()
        return np.concatenate((old, new))

    def true(self, name: str) -> npt.NDArray[np.bool_]:
        """The rows in which the key is True."""
        new = np.array([row.get(name) is True for row in self._new], dtype=np.bool_)
        packed = self._columns.get(name)
        old = np.zeros(self._num_packed, dtype=np.bool_) if packed is None else packed.is_true()
        return np.concatenate((old, new))

    def __len__(self) -> int:
        return self._num_packed + len(self._new)

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
            return dict(self._new[index - self._num_packed])
        values = ((name, column.get(index)) for name, column in self._columns.items())
        return {name: value for name, value in values if value is not _MISSING}

    def __iter__(self) -> Iterator[dict[str, object]]:
        names = list(self._columns)
        for start in range(0, self._num_packed, NUM_NEW_ROWS):
            columns = [column.cells(start, start + NUM_NEW_ROWS) for column in self._columns.values()]
            for values in zip(*columns, strict=True):
                yield {name: value for name, value in zip(names, values, strict=True) if value is not _MISSING}
        yield from map(dict, self._new)


def table_of(rows: Sequence[Mapping[str, object]]) -> RecordTable:
    """A table of rows that are no lines of a file; their line number is 0."""
    table = RecordTable()
    for row in rows:
        table.append(0, dict(row))
    return table
