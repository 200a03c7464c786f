"""Rows of named values in little memory: nine bytes a cell once a row is old, a plain dictionary while it is new."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

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

    def extend(self, values: list[object]) -> None:
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

    def get(self, row: int) -> object:
        kind = self.kinds[row]
        if kind == _FLOAT:
            return self.numbers[row]
        if kind == _INT:
            return int(self.numbers[row])
        if kind == _OBJECT:
            return self.objects[int(self.numbers[row])]
        return (_MISSING, None, False, True)[kind]


class _Missing:
    """Stands for a cell whose row has no such key."""


_MISSING = _Missing()


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
        for name in dict.fromkeys(name for row in rows for name in row):
            if name not in self._columns:
                self._columns[name] = _Column(self._num_packed)
        for name, column in self._columns.items():
            column.extend([row.get(name, _MISSING) for row in rows])
        self._num_packed += len(rows)

    def new_row(self, index: int) -> dict[str, object] | None:
        """The row itself if it can still be changed."""
        return self._new[index - self._num_packed] if index >= self._num_packed else None

    def fill(self, name: str, value: object) -> None:
        """Give ``value`` to all rows that lack ``name``; only for a table that is complete."""
        column = self._columns.setdefault(name, _Column(self._num_packed))
        filling = _Column(0)
        filling.extend([value])
        for row, kind in enumerate(column.kinds):
            if kind == _ABSENT:
                column.kinds[row] = filling.kinds[0]
                column.numbers[row] = filling.numbers[0]
        for new in self._new:
            new.setdefault(name, value)

    @property
    def names(self) -> list[str]:
        """All keys of all rows, in the order of their first row."""
        return list(dict.fromkeys([*self._columns, *(name for row in self._new for name in row)]))

    def column(self, name: str) -> list[object]:
        """The values of one key, row by row; None where a row has none."""
        packed = self._columns.get(name)
        old = [None] * self._num_packed if packed is None else [packed.get(row) for row in range(self._num_packed)]
        values = [None if value is _MISSING else value for value in old]
        return values + [row.get(name) for row in self._new]

    def numbers(self, name: str) -> array[float]:
        """The numbers of one key, row by row; NaN where a row has none."""
        nan = float("nan")
        return array("d", [float(v) if isinstance(v, int | float) else nan for v in self.column(name)])

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
        return (self[index] for index in range(len(self)))


def table_of(rows: Sequence[Mapping[str, object]]) -> RecordTable:
    """A table of rows that are no lines of a file; their line number is 0."""
    table = RecordTable()
    for row in rows:
        table.append(0, dict(row))
    return table
