"""``plan --table``: files in, files out, and what is said when they are none."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from hpctrain.cli_plan_table import plan_table, plan_table_words
from hpctrain.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from hpctrain.plan.stated.cells import COLUMNS
from hpctrain.plan.stated.table import ADDED

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["bigscience.csv", "llm-foundry.csv", "nanotron.csv", "field-reports.csv"])
def test_published_files_come_back_with_their_plans(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.csv"
    assert plan_table(PUBLISHED / name, output) == EXIT_OK
    before, after = read(PUBLISHED / name), read(output)
    assert [{column: row[column] for column in COLUMNS} for row in after] == before
    assert all(row["pred_step_time_s"] or row["problem"] for row in after)
    told = sum(bool(row["problem"]) for row in after)
    assert capsys.readouterr().out == f"table {output}: {len(before)} rows, {told} with a problem\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_a_spreadsheets_file_and_an_older_output(tmp_path: Path) -> None:
    """A byte-order mark, Windows line ends and empty lines; the older table is replaced."""
    row = ["x", "", "Llama-7B", "6.7", *[""] * 31]
    text = "\r\n".join([",".join(COLUMNS), "", ",".join(row), ""])
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    output = tmp_path / "out.csv"
    output.write_text("older", encoding="utf-8")
    assert plan_table(tmp_path / "rows.csv", output) == EXIT_OK
    (planned,) = read(output)
    assert planned["problem"] == "rows.csv row 1: does not state num_gpus"


def test_columns_that_nobody_reads_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text(",".join([*COLUMNS, "grad_accum", ""]) + "\n", encoding="utf-8")
    assert plan_table(tmp_path / "rows.csv", tmp_path / "out.csv") == EXIT_OK
    told = capsys.readouterr().out
    assert told.endswith("0 rows, 0 with a problem; columns that no plan reads: grad_accum, (without a name)\n")


def test_a_table_without_a_header_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("s,,GPT 13B,13\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match="the first line is no header, it has no column of a table: s, , GPT 13B, 13;"
    ):
        plan_table(tmp_path / "rows.csv", tmp_path / "out.csv")


def test_a_header_alone_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    assert plan_table(tmp_path / "rows.csv", tmp_path / "out.csv") == EXIT_OK
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == ",".join([*COLUMNS, *ADDED]) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--table .*rows.csv: No such file or directory"),
        (b"", "--table .*rows.csv: is empty; the first line must be the header"),
        (b"a,b\n1,2\n", "rows.csv header: the first line is no header, it has no column of a table: a, b; needed"),
        (";".join(COLUMNS).encode(), "--table .*rows.csv: its cells are separated by semicolons; save it with commas"),
        ("\t".join(COLUMNS).encode(), "--table .*rows.csv: its cells are separated by tabs; save it with commas"),
        (b"sep=,\na,b\n", "--table .*rows.csv: line 1: sep=,: is a spreadsheet's own line; remove it"),
        (b"a\xff\xfe,b\n", "--table .*rows.csv: is no UTF-8 text at byte 1"),
        (b'a,"b" c\n', "--table .*rows.csv: line 1: "),
    ],
    ids=["missing", "empty", "header", "semicolons", "tabs", "sep", "bytes", "quotes"],
)
def test_a_file_that_is_no_table(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        plan_table(path, tmp_path / "out.csv")
    assert caught.value.exit_code == EXIT_CONFIG
    assert not (tmp_path / "out.csv").exists()


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--table .*: Is a directory"):
        plan_table(tmp_path, tmp_path / "out.csv")


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--output .*/none/out.csv: no such folder"):
        plan_table(table, tmp_path / "none" / "out.csv")
    with pytest.raises(ConfigError, match=r"--output .*rows.csv: is the table itself"):
        plan_table(table, table)
    (tmp_path / "linked.csv").symlink_to(table)
    with pytest.raises(ConfigError, match=r"is the table itself"):
        plan_table(table, tmp_path / "linked.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"--output .*folder: is a folder; give the name of a file"):
        plan_table(table, tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder", "linked.csv", "rows.csv"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """As a device does: renaming a table over it would put a file in its place, for every process of the machine."""
    table, pipe = tmp_path / "rows.csv", tmp_path / "pipe"
    table.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert plan_table(table, pipe) == EXIT_OK
        assert os.read(reader, 65536).decode() == ",".join([*COLUMNS, *ADDED]) + "\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["pipe", "rows.csv"]


def test_a_link_leads_to_the_table(tmp_path: Path) -> None:
    table, there, link = tmp_path / "rows.csv", tmp_path / "there.csv", tmp_path / "out.csv"
    table.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    there.write_text("older", encoding="utf-8")
    link.symlink_to(there)
    assert plan_table(table, link) == EXIT_OK
    assert link.is_symlink()
    assert there.read_text(encoding="utf-8").startswith("source,ref")


def test_columns_without_a_name_are_passed_on(tmp_path: Path) -> None:
    """As spreadsheets leave them behind the last column."""
    table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text(",".join([*COLUMNS, "", ""]) + "\n", encoding="utf-8")
    assert plan_table(table, output) == EXIT_OK
    assert output.read_text(encoding="utf-8") == ",".join([*COLUMNS, "", "", *ADDED]) + "\n"


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_the_words_of_the_command_line(option: str, tmp_path: Path) -> None:
    table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    assert plan_table_words(["--table", str(table), option, str(output)]) == EXIT_OK
    assert output.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "rows.csv"], "plan --table FILE -o FILE: -o FILE is missing"),
        (["-o", "out.csv"], "plan --table FILE -o FILE: --table FILE is missing"),
        (["--table"], "argument --table: expected one argument"),
        (["--table", "a.csv", "-o", "b.csv", "model=530b"], "model=530b: a table is planned as its rows say"),
    ],
    ids=["no-output", "no-table", "no-name", "overrides"],
)
def test_words_that_do_not_belong_together(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_table_words(words)
