"""Runs as CSV, Parquet, LaTeX and Markdown, and what cannot be written."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from hpctrain.analysis.frames import Frames, load_frames
from hpctrain.analysis.report.run_columns import RUN_COLUMNS, RunColumn, all_columns, cell_number, cell_text
from hpctrain.analysis.report.table_files import latex_text, markdown_text
from hpctrain.analysis.report.write_report import SUFFIXES, check_report_path, write_report
from hpctrain.errors import ConfigError, RecordError
from tests.analysis.make_runs import Attempt, make_run, toy_config
from tests.analysis.report.report_runs import HOSTILE_NAME


@pytest.fixture
def frames(tmp_path: Path) -> Frames:
    make_run(tmp_path / "runs" / HOSTILE_NAME)
    make_run(tmp_path / "runs" / "a_|_b $5 \\", toy_config(nodes=1))
    make_run(
        tmp_path / "runs" / "failed", attempts=[Attempt([1.0] * 3, end={"state": "failed", "end_reason": "killed"})]
    )
    return load_frames([tmp_path / "runs"])


def test_csv_has_every_column_of_every_run(frames: Frames, tmp_path: Path) -> None:
    write_report(frames, tmp_path / "runs.csv")
    table = pd.read_csv(tmp_path / "runs.csv")
    assert list(table.columns) == list(frames.runs.columns)
    assert table["run"].tolist() == frames.runs["run"].tolist()
    assert sorted(table["valid"]) == [False, True, True]
    good = table[table["run"] == HOSTILE_NAME].iloc[0]
    assert (good["step_time_s"], good["tokens_per_s"], good["peak_memory_bytes"]) == (0.5, 2048.0, 2**30)
    assert table.loc[table["run"] == "failed", "reason"].item() == "failed (killed), 3 of 10 steps recorded"


def test_parquet_gives_the_frame_back(frames: Frames, tmp_path: Path) -> None:
    write_report(frames, tmp_path / "runs.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), frames.runs)


def test_markdown_shows_valid_runs_and_names_as_they_are(frames: Frames) -> None:
    lines = markdown_text(frames.runs).splitlines()
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert header[:4] == ["Run", "Model", "Hardware", "Nodes"]
    assert header[10:13] == ["Step time (s)", "Tokens/s", "Model TFLOP/s/GPU"]
    rows = [line for line in lines[2:] if line.startswith("|")]
    assert len(rows) == 2
    assert any(row.startswith(r"| a\_\|\_b $5 \\") for row in rows)
    assert any(r"\<script\>alert('x')\<∕script\> " in row for row in rows)
    assert lines[-1] == "2 run(s); medians of the steady steps; -: not measured; left out as not valid: 1"


def test_latex_escapes_what_is_special_there(frames: Frames) -> None:
    text = latex_text(frames.runs)
    assert text.startswith(r"% \usepackage{booktabs}; 2 run(s)")
    assert r"a\_\textbar{}\_b \$5 \textbackslash" in text
    assert r"MFU (\%)" in text
    assert text.count(r"\\") == 3, "a header and two rows"
    assert "failed" not in text


@pytest.mark.parametrize("text", [markdown_text, latex_text], ids=["markdown", "latex"])
def test_no_valid_run_gives_a_sentence(tmp_path: Path, text: object) -> None:
    make_run(tmp_path / "failed", attempts=[Attempt([], end={"state": "failed", "end_reason": "killed"})])
    assert callable(text)
    assert "0 run(s); medians of the steady steps; -: not measured; left out as not valid: 1" in text(
        load_frames([tmp_path]).runs
    )


def test_columns_without_any_value_are_left_out_of_a_paper(frames: Frames) -> None:
    runs = frames.runs.assign(mfu=pd.array([pd.NA] * 3, dtype="Float64"))
    assert "MFU" not in latex_text(runs)


@pytest.mark.parametrize("name", ["report", "report.pdf", "report.htm"])
def test_another_suffix_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_report_path(tmp_path / name)
    text = str(error.value)
    assert text.startswith(f"-o={tmp_path}/{name}: the suffix must be one of .html, .csv, .parquet, .tex, .md; ")
    assert text.endswith("report.html is the whole report")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_folder_is_named(frames: Frames, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "nosuch" / f"report{suffix}"
    with pytest.raises(RecordError, match=f"-o {path}: there is no folder {path.parent}; make it, or name another one"):
        write_report(frames, path)


def test_a_folder_is_no_file(frames: Frames, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RecordError, match=r"report.html: is a folder; name a file"):
        write_report(frames, tmp_path / "report.html")


def test_what_cannot_be_written_says_why_and_leaves_nothing(frames: Frames, tmp_path: Path) -> None:
    full = Path("/dev/full")
    assert full.exists(), "a Linux device that is always full"
    place = tmp_path / f".runs.csv.{os.getpid()}.tmp"
    place.symlink_to(full)
    with pytest.raises(
        RecordError, match=r"runs.csv: cannot be written: No space left on device; name a file elsewhere"
    ):
        write_report(frames, tmp_path / "runs.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


def test_an_old_report_is_replaced_as_a_whole(frames: Frames, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("old")
    inode = path.stat().st_ino
    write_report(frames, path)
    assert path.stat().st_ino != inode
    assert path.read_text().startswith("folder,run,")


def test_described_columns_are_those_of_the_frame(frames: Frames) -> None:
    described = {column.key for column in RUN_COLUMNS}
    assert described <= set(frames.runs.columns)
    assert [column.key for column in all_columns(frames.runs)][: len(RUN_COLUMNS)] == [c.key for c in RUN_COLUMNS]
    assert {column.key for column in all_columns(frames.runs)} == set(frames.runs.columns)


@pytest.mark.parametrize(
    ("value", "column", "number", "text"),
    [
        pytest.param(3 * 2**30, RunColumn("", "", "bytes", "GiB"), 3.0, "3", id="bytes"),
        pytest.param(0.12345, RunColumn("", "", "share", "%"), 12.345, "12.3", id="share"),
        pytest.param(174_600_000_000, RunColumn("", "", "number", "B"), 174.6, "174.6", id="parameters"),
        pytest.param(12_345.6, RunColumn("", "", "count"), 12_345.6, "12,346", id="count"),
        pytest.param(float("inf"), RunColumn("", "", "number"), None, "inf", id="not finite"),
        pytest.param(float("nan"), RunColumn("", "", "number"), None, "-", id="no number"),
        pytest.param(pd.NA, RunColumn("", "", "number"), None, "-", id="missing"),
        pytest.param(True, RunColumn("", "", "flag"), None, "yes", id="flag"),
        pytest.param("zero3", RunColumn("", ""), None, "zero3", id="text"),
    ],
)
def test_cells(value: object, column: RunColumn, number: float | None, text: str) -> None:
    assert cell_number(value, column) == (None if number is None else pytest.approx(number))
    assert cell_text(value, column) == text


def test_parquet_keeps_a_run_of_no_value(tmp_path: Path) -> None:
    make_run(tmp_path / "run", attempts=[])
    write_report(load_frames([tmp_path]), tmp_path / "r.parquet")
    table = pd.read_parquet(io.BytesIO((tmp_path / "r.parquet").read_bytes()))
    assert table["step_time_s"].isna().all()


def test_a_name_that_is_too_long_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"^-o .*a.csv: cannot be written: File name too long; name a file elsewhere$"
    ):
        check_report_path(tmp_path / f"{'a' * 252}.csv")


def test_a_closed_folder_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def closed(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", closed)  # the tests may run as root, to whom no folder is closed
    with pytest.raises(RecordError, match=r"r.csv: cannot be written: Permission denied; name a file elsewhere$"):
        check_report_path(tmp_path / "r.csv")


def test_a_name_of_a_suffix_only_gets_a_name_that_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"; report\.html is the whole report$"):
        check_report_path(tmp_path / ".html")


@pytest.mark.parametrize("suffix", [".csv", ".md", ".tex"])
def test_names_command_no_terminal_and_a_row_stays_one_line(tmp_path: Path, suffix: str) -> None:
    make_run(tmp_path / "runs" / "a\x1b[31mscarlet\nb")
    write_report(load_frames([tmp_path / "runs"]), tmp_path / f"r{suffix}")
    text = (tmp_path / f"r{suffix}").read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "x1b" in text
    assert sum("scarlet" in line for line in text.splitlines()) == 1


def test_csv_cells_are_data_as_they_are(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "=1+1")
    write_report(load_frames([tmp_path / "runs"]), tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text().splitlines()[1].split(",")[1] == "=1+1"


@pytest.mark.parametrize("name", ["[2pt]", "*star", "a|b"])
def test_latex_takes_no_name_for_an_argument(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / name)
    lines = latex_text(load_frames([tmp_path]).runs).splitlines()
    row = lines[lines.index(r"\midrule") + 1]
    expected = {"[2pt]": "{}[2pt]", "*star": "{}*star", "a|b": r"a\textbar{}b"}
    assert row.split("&")[0].strip() == expected[name]


@pytest.mark.parametrize("text", [markdown_text, latex_text], ids=["markdown", "latex"])
def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path, text: Callable[[pd.DataFrame], str]) -> None:
    for place in ("old/run0", "new/run0", "new/run1"):
        make_run(tmp_path / place)
    rows = [line for line in text(load_frames([tmp_path]).runs).splitlines() if "run0" in line or "run1" in line]
    assert sorted(re.findall(r"[a-z/]*run\d", "\n".join(rows))) == ["new/run0", "old/run0", "run1"]
