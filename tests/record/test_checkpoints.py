"""Which checkpoints of a run folder count, whatever lies beside them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import RecordError
from hpctrain.record.checkpoints import (
    checkpoint_name,
    complete_checkpoints,
    free_name,
    read_checkpoints,
    remove_old,
    remove_unfinished,
    set_aside_after,
)
from hpctrain.record.files import write_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import CheckpointFile
from tests.record.checkpoint_folder import make_checkpoint, make_record


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "a run [x] $y")


def steps(run: RunPaths) -> list[int]:
    return [checkpoint.step for checkpoint in complete_checkpoints(run)]


def reasons(run: RunPaths) -> dict[str, str]:
    return {checkpoint.folder.name: checkpoint.reason for checkpoint in read_checkpoints(run).unusable}


def test_a_run_without_checkpoints(run: RunPaths) -> None:
    assert complete_checkpoints(run) == []
    run.checkpoints.mkdir(parents=True)
    assert complete_checkpoints(run) == []


def test_the_step_inside_decides_and_neither_name_nor_time(run: RunPaths) -> None:
    newest = make_checkpoint(run, 300, name="step-00000001")
    make_checkpoint(run, 20, name="step-00000900")
    make_checkpoint(run, 100)
    os.utime(newest, (1, 1))
    (run.checkpoints / "latest").write_text("step-00000900")
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("900")
    assert steps(run) == [20, 100, 300]
    assert complete_checkpoints(run)[-1].folder == newest


def test_of_two_with_one_step_the_later_attempt_is_the_newest(run: RunPaths) -> None:
    make_checkpoint(run, 10, name="step-00000010-attempt-2", attempt=2)
    make_checkpoint(run, 10, attempt=1)
    assert [checkpoint.record.attempt for checkpoint in complete_checkpoints(run)] == [1, 2]


def test_what_is_read_is_what_was_written(run: RunPaths) -> None:
    make_checkpoint(run, 7)
    (checkpoint,) = complete_checkpoints(run)
    assert checkpoint.record == make_record(7)
    assert type(checkpoint.record.model["tie_embeddings"]) is bool


def change_file(folder: Path) -> None:
    (folder / "rank-1.pt").write_bytes(b"short")


def remove_file(folder: Path) -> None:
    (folder / "rank-0.pt").unlink()


def empty_marker(folder: Path) -> None:
    (folder / "complete.json").write_text("")


def remove_marker(folder: Path) -> None:
    (folder / "complete.json").unlink()


def pipe_as_marker(folder: Path) -> None:
    (folder / "complete.json").unlink()
    os.mkfifo(folder / "complete.json")


def rewrite(**changes: Any) -> Any:
    def damage(folder: Path) -> None:
        write_record(folder / "complete.json", dataclasses.replace(make_record(30), **changes))

    return damage


DAMAGES = {
    "a file of another size": (change_file, "rank-1.pt: has 5 bytes, complete.json says 100"),
    "a file that is gone": (remove_file, "rank-0.pt: No such file or directory"),
    "an empty marker": (empty_marker, "complete.json: Expecting value"),
    "no marker": (remove_marker, "complete.json: no such file"),
    "a pipe as marker": (pipe_as_marker, "complete.json: no regular file"),
    "another schema": (rewrite(schema_version=99), "schema_version=99, this hpctrain reads 1"),
    "no step": (rewrite(step=0), "step=0, world_size=2, 2 files"),
    "no files": (rewrite(files=()), "step=30, world_size=2, 0 files"),
    "a way out of the folder": (
        rewrite(files=(CheckpointFile("../../plan.json", 3, 0),)),
        "'../../plan.json' is no name of a file in this folder",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_an_older_one_is_the_newest(name: str, run: RunPaths) -> None:
    make_checkpoint(run, 20)
    damaged = make_checkpoint(run, 30)
    damage, reason = DAMAGES[name]
    damage(damaged)
    assert steps(run) == [20]
    (unusable,) = read_checkpoints(run).unusable
    assert unusable.folder == damaged
    assert unusable.was_complete
    assert reason in unusable.reason


def test_sizes_are_looked_at_unless_the_caller_only_wants_to_know_the_step(run: RunPaths) -> None:
    change_file(make_checkpoint(run, 30))
    assert complete_checkpoints(run) == []
    assert [checkpoint.step for checkpoint in complete_checkpoints(run, check_files=False)] == [30]


def test_what_is_half_written_or_foreign_does_not_count(run: RunPaths) -> None:
    make_checkpoint(run, 10)
    make_checkpoint(run, 20, name="step-00000020.partial")
    make_checkpoint(run, 30, name="step-00000030.removed")
    make_checkpoint(run, 40, name="step-00000040.set-aside")
    make_checkpoint(run, 50, name="global_step50")
    assert steps(run) == [10]
    assert reasons(run) == {"step-00000020.partial": "its saving never ended"}
    assert not read_checkpoints(run).unusable[0].was_complete
    assert [folder.name for folder in remove_unfinished(run)] == ["step-00000020.partial", "step-00000030.removed"]
    assert sorted(os.listdir(run.checkpoints)) == ["global_step50", "step-00000010", "step-00000040.set-aside"]


def test_a_folder_that_cannot_be_listed_is_no_run_without_checkpoints(run: RunPaths) -> None:
    run.root.mkdir()
    run.checkpoints.write_text("a file")
    with pytest.raises(RecordError, match="checkpoints: Not a directory"):
        complete_checkpoints(run)


@pytest.mark.parametrize(("keep", "left"), [(1, [40]), (2, [30, 40]), (4, [10, 20, 30, 40]), (9, [10, 20, 30, 40])])
def test_the_newest_stay(keep: int, left: list[int], run: RunPaths) -> None:
    for step in (30, 10, 40, 20):
        make_checkpoint(run, step)
    removed = remove_old(run, keep)
    assert steps(run) == left
    assert sorted(os.listdir(run.checkpoints)) == [checkpoint_name(step) for step in left]
    assert [folder.name for folder in removed] == [
        checkpoint_name(step) for step in (10, 20, 30, 40) if step not in left
    ]


def test_damaged_ones_do_not_count_as_kept(run: RunPaths) -> None:
    for step in (10, 20, 30):
        make_checkpoint(run, step)
    remove_file(run.checkpoints / "step-00000030")
    assert remove_old(run, 2) == []
    assert steps(run) == [10, 20]


def test_what_could_not_be_loaded_does_not_take_a_place(run: RunPaths) -> None:
    for step in (10, 20, 30, 40):
        make_checkpoint(run, step)
    rejected = (run.checkpoints / "step-00000030", run.checkpoints / "step-00000010")
    assert remove_old(run, 2, rejected) == []
    assert remove_old(run, 1, rejected) == [run.checkpoints / "step-00000020"]
    assert steps(run) == [10, 30, 40]


def test_of_a_link_only_the_link_is_removed(run: RunPaths, tmp_path: Path) -> None:
    elsewhere = make_checkpoint(RunPaths(tmp_path / "other"), 10)
    make_checkpoint(run, 20)
    (run.checkpoints / "step-00000010").symlink_to(elsewhere)
    assert steps(run) == [10, 20]
    remove_old(run, 1)
    assert steps(run) == [20]
    assert (elsewhere / "complete.json").exists()


def test_a_new_checkpoint_never_takes_the_name_of_one_that_is_there(run: RunPaths) -> None:
    assert free_name(run, 10, attempt=2) == "step-00000010"
    empty_marker(make_checkpoint(run, 10))
    assert free_name(run, 10, attempt=2) == "step-00000010-attempt-2"
    assert free_name(run, 123456789, attempt=1) == "step-123456789"


@pytest.mark.parametrize(("step", "left"), [(0, []), (10, [10]), (15, [10]), (20, [10, 20])])
def test_going_back_to_a_step_sets_the_later_ones_aside(step: int, left: list[int], run: RunPaths) -> None:
    for saved in (10, 20):
        make_checkpoint(run, saved)
    remove_marker(make_checkpoint(run, 30))
    moved = set_aside_after(run, step)
    assert steps(run) == left
    assert read_checkpoints(run).unusable == ()
    assert len(moved) == 3 - len(left)
    assert all(folder.is_dir() and folder.name.endswith(".set-aside") for folder in moved)


def test_setting_aside_twice_keeps_both(run: RunPaths) -> None:
    make_checkpoint(run, 10)
    set_aside_after(run, 0)
    make_checkpoint(run, 10)
    (moved,) = set_aside_after(run, 0)
    assert moved.name == "step-00000010.set-aside-2"
    assert sorted(os.listdir(run.checkpoints)) == ["step-00000010.set-aside", "step-00000010.set-aside-2"]
