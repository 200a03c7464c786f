"""Folders of foreign logs: which files count, and that one bad file stops nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hpctrain.analysis.logs.log_files import LOG_NAME, find_logs, load_logs

OWN = Path(__file__).parents[2] / "data" / "logs"
GOOD = "maxtext_three_generations_of_the_line.log"


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        ("train.log", True),
        ("slurm-1234_5.out", True),
        ("rank0.ERR.gz", True),
        ("main_log.txt", True),
        ("train.log.1", True),
        ("pretrain.o8123456", True),
        ("steps.jsonl", False),
        ("plan.json", False),
        (".log", False),
        ("weights.pt", False),
    ],
)
def test_logs_are_told_by_their_names(name: str, is_log: bool) -> None:
    assert bool(LOG_NAME.fullmatch(name)) is is_log


def test_run_folders_are_left_out_and_folders_named_like_logs_are_walked(tmp_path: Path) -> None:
    for name in ("a.log", "run/logs/batch.log", "deep/x.log/b.out", "deep/notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_logs(tmp_path, {(tmp_path / "run").resolve()})]
    assert found == ["a.log", "deep/x.log/b.out"]


def test_a_file_that_is_named_counts_whatever_its_name(tmp_path: Path) -> None:
    shutil.copy(OWN / GOOD, tmp_path / "console")
    assert load_logs(find_logs(tmp_path / "console")).runs[0].summary.source == "maxtext"


def test_each_bad_file_is_told_and_the_good_one_read(tmp_path: Path) -> None:
    shutil.copy(OWN / GOOD, tmp_path)
    (tmp_path / "empty.log").touch()
    (tmp_path / "noise.log").write_text("hello\n" * 100)
    (tmp_path / "one_line.log").write_bytes(b"x" * 50_000_000)
    (tmp_path / "pipe.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo.log")
    (tmp_path / "folder.log").mkdir()
    logs = load_logs(find_logs(tmp_path))
    assert [run.summary.source for run in logs.runs] == ["maxtext"] * len(logs.runs)
    assert len(logs.runs) >= 1
    told = {Path(problem.split(":")[0]).name: problem for problem in logs.problems}
    assert set(told) == {"empty.log", "noise.log", "one_line.log", "pipe.log", "fifo.log"}
    assert "is empty" in told["empty.log"]
    assert "none of a known system" in told["noise.log"]
    assert "No such file" in told["pipe.log"]
    assert "is no regular file" in told["fifo.log"]
