"""Rows in little memory: the same values come back, as rows, as columns and as numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hpctrain.analysis.logs.record_table import NUM_NEW_ROWS, RecordTable
from tests.analysis.logs.make_readings import table_of

VALUES: tuple[Any, ...] = (1, 2.5, True, False, None, "text", 2**60, 10**400, -0.5, [1, 2])
NUM_ROWS = 3 * NUM_NEW_ROWS + 5
"""Two thirds packed, the rest still new."""


def mixed_row(place: int) -> dict[str, Any]:
    """Columns of one kind, of one value, of all kinds, and with holes."""
    row: dict[str, Any] = {"iteration": place, "loss": place / 8, "attempt": 0, "mixed": VALUES[place % len(VALUES)]}
    if place >= NUM_NEW_ROWS + 7:
        row["late"] = place
    if place % 3 == 0:
        row["rare"] = True
    return row


@pytest.fixture(scope="module")
def table() -> RecordTable:
    return table_of([mixed_row(place) for place in range(NUM_ROWS)])


def test_rows_come_back_as_they_were(table: RecordTable) -> None:
    rows = [mixed_row(place) for place in range(NUM_ROWS)]
    assert list(table) == rows
    assert [table[place] for place in (0, NUM_NEW_ROWS, -1)] == [rows[0], rows[NUM_NEW_ROWS], rows[-1]]
    assert [type(value) for value in table[7].values()] == [type(value) for value in rows[7].values()]


@pytest.mark.parametrize("name", ["iteration", "loss", "attempt", "mixed", "late", "rare", "nowhere"])
def test_columns_are_those_of_the_rows(table: RecordTable, name: str) -> None:
    rows = [mixed_row(place) for place in range(NUM_ROWS)]
    assert table.column(name) == [row.get(name) for row in rows]
    assert table.has(name).tolist() == [name in row for row in rows]
    assert table.true(name).tolist() == [row.get(name) is True for row in rows]


def test_numbers_of_all_kinds_of_values(table: RecordTable) -> None:
    numbers = [1.0, 2.5, 1.0, 0.0, math.nan, math.nan, float(2**60), math.nan, -0.5, math.nan]
    expected = np.array([numbers[place % len(VALUES)] for place in range(NUM_ROWS)])
    np.testing.assert_array_equal(table.numbers("mixed"), expected)
    np.testing.assert_array_equal(table.numbers("loss"), np.arange(NUM_ROWS) / 8)
    assert np.isnan(table.numbers("nowhere")).all()
    late = table.numbers("late")
    assert np.flatnonzero(np.isfinite(late))[0] == late[-1] - (NUM_ROWS - 1) + NUM_NEW_ROWS + 7


@pytest.mark.parametrize("value", [False, None, "none", 3], ids=repr)
def test_filling_gives_a_value_to_rows_without_one_and_to_no_other(value: Any) -> None:
    table = table_of([mixed_row(place) for place in range(NUM_ROWS)])
    table.fill("rare", value)
    table.fill("other", value)
    expected = [True if place % 3 == 0 else value for place in range(NUM_ROWS)]
    assert table.column("rare") == expected
    assert table.column("other") == [value] * NUM_ROWS
    assert [type(cell) for cell in table.column("rare")] == [type(cell) for cell in expected]


def test_what_is_the_same_in_all_rows_needs_no_memory_a_row() -> None:
    """Eight bytes a number; a column of one value is kept once for ``NUM_NEW_ROWS`` rows."""
    table = table_of([{"loss": place / 8, "segment": 0, "none": None} for place in range(10 * NUM_NEW_ROWS)])
    kept = {
        name: sum(len(piece.kinds) + 8 * len(piece.numbers) for piece in column.pieces)
        for name, column in table._columns.items()
    }
    num_packed = table._num_packed
    assert num_packed >= 8 * NUM_NEW_ROWS
    assert kept["loss"] == 8 * num_packed + num_packed // NUM_NEW_ROWS
    assert kept["segment"] == kept["none"] == 9 * num_packed // NUM_NEW_ROWS


def test_numbers_are_a_copy_that_leaves_the_table_free_to_grow() -> None:
    table = table_of([mixed_row(place) for place in range(NUM_ROWS)])
    numbers = table.numbers("loss")
    numbers[:] = 0
    for place in range(NUM_ROWS, 2 * NUM_ROWS):
        table.append(place, mixed_row(place))
    assert table.numbers("loss").sum() == sum(place / 8 for place in range(2 * NUM_ROWS))
