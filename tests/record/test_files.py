"""Small files: replaced whole, created once, read strictly."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import RecordError
from hpctrain.record.files import create_record, open_regular, read_record, replace_file, write_record, write_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_config, read_overrides, search_runs
from hpctrain.record.schema import AttemptRecord, StepRecord
from hpctrain.record.writer import StepWriter


def attempt(number: int = 1, **changes: Any) -> AttemptRecord:
    return dataclasses.replace(AttemptRecord(1, number, "7", "running", started_at_s=100.0), **changes)


def step(number: int, loss: float | None = 2.0) -> StepRecord:
    return StepRecord(2, 1, number, 0.0, loss, 1e-3, 1.0, False, 0.1, 0.01, 64, 1000)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    write_record(tmp_path / "1.json", attempt(message="é\n"))
    assert read_record(tmp_path / "1.json", AttemptRecord) == attempt(message="é\n")
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]


def test_only_the_first_creates(tmp_path: Path) -> None:
    assert create_record(tmp_path / "f.json", attempt(message="first"))
    assert not create_record(tmp_path / "f.json", attempt(message="second"))
    assert read_record(tmp_path / "f.json", AttemptRecord).message == "first"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "Expecting"),
        ("[]", "schema_version=None, this hpctrain reads 1"),
        ('{"schema_version": 2}', "schema_version=2, this hpctrain reads 1"),
        ('{"schema_version": 1}', "Field required"),
        ("[" * 200_000, "recursion"),
    ],
    ids=["half", "list", "newer", "fields", "deep"],
)
def test_what_is_no_record_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "1.json").write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=expected) as caught:
        read_record(tmp_path / "1.json", AttemptRecord)
    assert "1.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file"):
        read_record(tmp_path / "1.json", AttemptRecord)
    with pytest.raises(RecordError, match="run folder of hpctrain"):
        read_config(RunPaths(tmp_path))
    with pytest.raises(RecordError, match="no such folder"):
        search_runs(tmp_path / "none")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, make_socket], ids=["pipe", "socket"])
def test_what_is_no_regular_file_is_told_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Opening a pipe as a file waits until somebody writes into it."""
    run = RunPaths(tmp_path)
    run.attempts.mkdir()
    for path in (run.attempt(1), run.steps, run.config):
        make(path)
    with pytest.raises(OSError, match="no regular file"):
        open_regular(run.steps)
    with pytest.raises(RecordError, match=r"1\.json: no regular file"):
        read_attempts(run)
    with pytest.raises(RecordError, match=r"config\.yaml: no regular file"):
        read_config(run)
    with pytest.raises(RecordError, match=r"steps\.jsonl: no regular file"):
        list(StepsFile(run.steps).new_records())


def test_a_link_to_a_regular_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"x"
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_regular(tmp_path)


def test_texts_that_cannot_be_written_are_spelled_out(tmp_path: Path) -> None:
    """Ranks name files in their messages, and a file's name may be any bytes."""
    write_record(tmp_path / "1.json", attempt(message=os.fsdecode(b"caf\xe9.txt"), versions={"\ud800": "\U0001f600"}))
    record = read_record(tmp_path / "1.json", AttemptRecord)
    assert (record.message, record.versions) == ("caf\\xe9.txt", {"\\ud800": "\U0001f600"})


def test_a_configuration_that_is_no_text(tmp_path: Path) -> None:
    RunPaths(tmp_path).config.write_bytes(b"\xe9")
    with pytest.raises(RecordError, match=r"config\.yaml: 'utf-8' codec can't decode"):
        read_config(RunPaths(tmp_path))


@pytest.mark.parametrize("text", ["model:\n  architect", "[]", "", "x: 1"])
def test_a_damaged_configuration_is_named(tmp_path: Path, text: str) -> None:
    run = RunPaths(tmp_path)
    run.config.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=r"config\.yaml: "):
        read_config(run)


def test_overrides_that_are_no_list_are_named(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    run.overrides.write_text("null", encoding="utf-8")
    with pytest.raises(RecordError, match=r"overrides\.json: is no list of overrides"):
        read_overrides(run)


def test_steps_are_read_as_they_grow_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    steps = StepsFile(path)
    assert list(steps.new_records()) == []
    StepWriter(path).append([step(1), step(2, loss=None)])
    assert [record.step for record in steps.new_records()] == [1, 2]
    half = json.dumps(dataclasses.asdict(step(3)))
    with path.open("a", encoding="utf-8") as stream:
        stream.write(half[:20])
    assert list(steps.new_records()) == []
    with path.open("a", encoding="utf-8") as stream:
        stream.write(half[20:] + "\nnot a record\n")
    assert [record.step for record in steps.new_records()] == [3]
    assert steps.damaged_lines == 1


def test_a_full_device_costs_lines_and_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    writer = StepWriter(Path("/dev/full"))
    writer.append([step(1), step(2)])
    writer.append([step(3)])
    assert writer.lost_lines == 3
    assert "3 step records lost" in capsys.readouterr().out


def test_a_failure_counts_before_the_end_marker_is_there(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    run.attempts.mkdir()
    write_record(run.attempt(1), attempt(world_size=4, master_addr="n1"))
    failed = attempt(
        state="failed", end_reason="exception", exit_code=1, failed_rank=2, failed_node="n2", message="boom"
    )
    write_record(run.failure(1), failed)
    write_record(run.attempt(2), attempt(2))
    write_record(run.failure(3), attempt(3, state="failed"))
    first, second, third = read_attempts(run)
    assert (third.attempt, third.state) == (3, "failed")
    assert (first.state, first.failed_rank, first.world_size, first.message) == ("failed", 2, 4, "boom")
    assert second.state == "running"


def test_a_file_is_never_seen_in_part(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with path.open(encoding="utf-8") as reader:
        write_text(path, "new" * 1000)
        assert reader.read() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    "name", ["n" * 255, "ü" * 127, os.fsdecode(b"\xe9" * 255)], ids=["long", "two bytes", "no text"]
)
def test_the_longest_name_can_be_replaced(tmp_path: Path, name: str) -> None:
    for content in (b"old", b"new"):
        replace_file(tmp_path / name, content)
    assert (tmp_path / name).read_bytes() == b"new"
    assert os.listdir(tmp_path) == [name]


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", b"text")
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "a.json", b"text")
    assert os.listdir(tmp_path) == ["folder"]
