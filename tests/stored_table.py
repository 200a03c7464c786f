"""A table of measured rows in a CSV file of the project, filled row by row by a command that takes long."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Row = dict[str, str]


def read_table(path: Path) -> dict[str, Row]:
    """Rows by their first column, ``case``; none where there is no file yet."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as stream:
        return {row["case"]: row for row in csv.DictReader(stream)}


def write_table(path: Path, columns: Sequence[str], rows: Mapping[str, Row], cases: Iterable[str]) -> None:
    """Stores the rows in the order of the cases; those of no case any more are dropped."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[case] for case in cases if case in rows)
