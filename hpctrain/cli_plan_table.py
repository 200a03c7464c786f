"""``plan --table rows.csv -o out.csv``: reads and writes the files of the planned table."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from pathlib import Path

from hpctrain.errors import EXIT_OK, ConfigError
from hpctrain.plan.stated.cells import COLUMNS
from hpctrain.plan.stated.table import plan_rows
from hpctrain.text_table import printable
from hpctrain.units import counted

_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def plan_table_words(words: Sequence[str]) -> int:
    """Runs ``plan --table FILE -o FILE``, given the words after ``plan``.

    Raises:
        ConfigError: one of the two files is not given, or there are words that a table has no use for; and as ``plan_table``.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--table", type=Path, action="append", default=[])
    parser.add_argument("-o", "--output", type=Path, action="append", default=[])
    try:
        known, others = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    if others:
        raise ConfigError(f"{' '.join(others)}: a table is planned as its rows say, without further words")
    for option, files in (("--table", known.table), ("-o", known.output)):
        if len(files) != 1:
            raise ConfigError(f"plan --table FILE -o FILE: {option} FILE is {'given twice' if files else 'missing'}")
    return plan_table(known.table[0], known.output[0])


def plan_table(path: Path, output: Path) -> int:
    """Plans every row of a CSV file and writes them, the predictions beside, to another.

    The output appears whole or not at all.

    Args:
        path: a file with the header of the published results.
        output: where to write; an older file is replaced.

    Returns:
        The exit code: rows that cannot be planned say so in ``problem`` and are no failure of the whole.

    Raises:
        ConfigError: the input is missing, unreadable, no CSV or has another header; the output cannot be written.
    """
    if path.exists() and output.exists() and output.samefile(path):
        raise ConfigError(f"--output {output}: is the table itself; give another name")
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a folder; give the name of a file")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"--output {output}: no such folder as {folder}")
    header, rows = _read(path)
    planned = list(plan_rows(header, rows, path.name))
    try:
        _write(planned, output)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from error
    place = planned[0].index("problem")
    problems = sum(bool(row[place]) for row in planned[1:])
    unread = [name or "(without a name)" for name in header if name not in COLUMNS]
    told = f"; columns that no plan reads: {', '.join(unread)}" if unread else ""
    print(printable(f"table {output}: {counted(len(rows), 'row')}, {problems} with a problem{told}"))
    return EXIT_OK


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows; lines without a cell are left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            lines = [line for line in reader if line]
    except OSError as error:
        raise ConfigError(f"--table {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--table {path}: is no UTF-8 text at byte {error.start}") from error
    except csv.Error as error:
        raise ConfigError(f"--table {path}: line {reader.line_num}: {error}") from error
    if not lines:
        raise ConfigError(f"--table {path}: is empty; the first line must be the header of the published results")
    for separator, words in _OTHER_SEPARATORS.items():
        if len(lines[0]) == 1 and separator in lines[0][0]:
            raise ConfigError(f"--table {path}: its cells are separated by {words}; save it with commas")
    if lines[0][0].startswith("sep="):
        raise ConfigError(f"--table {path}: line 1: {','.join(lines[0])}: is a spreadsheet's own line; remove it")
    return lines[0], lines[1:]


def _write(rows: list[list[str]], output: Path) -> None:
    """Under another name first, so that a table is whole or not there; a pipe or device, such as /dev/stdout, is written to."""
    if output.exists() and not output.is_file():
        with output.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        return
    output = output.resolve()
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
