"""The checkpoints of a run: which are complete, which is the newest, and what stays.

``checkpoints/step-<8 digits>/`` holds the ranks' files and ``complete.json``. It comes into being by one rename of
``step-<8 digits>.partial``, so a folder of that name is complete unless somebody damaged it. The step that counts is the one in
``complete.json``; neither names nor times nor DeepSpeed's ``latest`` are asked. Light: no torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import RecordError
from hpctrain.record.files import read_record
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import CheckpointRecord

COMPLETE_FILE = "complete.json"
PARTIAL, REMOVED, SET_ASIDE = ".partial", ".removed", ".set-aside"
_FINAL_NAME = re.compile(r"step-\d{8,}(-attempt-\d+)?")


def checkpoint_name(step: int) -> str:
    """The folder of a step.

    >>> checkpoint_name(1200)
    'step-00001200'
    """
    return f"step-{step:08}"


@dataclass(frozen=True)
class Checkpoint:
    """A complete one."""

    folder: Path
    record: CheckpointRecord

    @property
    def step(self) -> int:
        return self.record.step


@dataclass(frozen=True)
class UnusableCheckpoint:
    """A folder that is not, or no longer, a complete checkpoint."""

    folder: Path
    reason: str

    @property
    def was_complete(self) -> bool:
        """False: its saving never ended, so nothing was promised."""
        return not self.folder.name.endswith(PARTIAL)


@dataclass(frozen=True)
class Checkpoints:
    """What ``checkpoints/`` holds."""

    complete: tuple[Checkpoint, ...]
    """By the step inside; of two with the same step the later attempt's last."""
    unusable: tuple[UnusableCheckpoint, ...]


def complete_checkpoints(run: RunPaths, check_files: bool = True) -> list[Checkpoint]:
    """The complete checkpoints of a run by the step inside, the newest last.

    Args:
        run: the run folder.
        check_files: look at the size of every file; False: trust ``complete.json``.

    Raises:
        RecordError: the folder is there and cannot be listed.
    """
    return list(read_checkpoints(run, check_files).complete)


def read_checkpoints(run: RunPaths, check_files: bool = True) -> Checkpoints:
    """Complete and unusable checkpoints, see ``complete_checkpoints``."""
    complete, unusable = [], []
    for name in _names(run):
        folder = run.checkpoints / name
        if name.endswith(PARTIAL):
            unusable.append(UnusableCheckpoint(folder, "its saving never ended"))
        elif _FINAL_NAME.fullmatch(name):
            try:
                record = read_complete(folder)
                if check_files:
                    check_file_sizes(folder, record)
            except RecordError as error:
                unusable.append(UnusableCheckpoint(folder, str(error)))
            else:
                complete.append(Checkpoint(folder, record))
    complete.sort(key=lambda checkpoint: (checkpoint.step, checkpoint.record.attempt))
    return Checkpoints(tuple(complete), tuple(unusable))


def _names(run: RunPaths) -> list[str]:
    try:
        return sorted(os.listdir(run.checkpoints))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{run.checkpoints}: {error.strerror}") from error


def read_complete(folder: Path) -> CheckpointRecord:
    """What ``complete.json`` in ``folder`` says.

    Raises:
        RecordError: it is missing or damaged.
    """
    place = folder / COMPLETE_FILE
    record = read_record(place, CheckpointRecord)
    if record.step < 1 or record.world_size < 1 or not record.files:
        raise RecordError(f"{place}: step={record.step}, world_size={record.world_size}, {len(record.files)} files")
    if odd := [file.name for file in record.files if file.name in ("", ".", "..") or "/" in file.name]:
        raise RecordError(f"{place}: {odd[0]!r} is no name of a file in this folder")
    return record


def check_file_sizes(folder: Path, record: CheckpointRecord) -> None:
    """Raises RecordError unless every file is there with its size."""
    for file in record.files:
        path = folder / file.name
        try:
            found = path.stat().st_size
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}") from error
        if found != file.num_bytes:
            raise RecordError(f"{path}: has {found} bytes, {COMPLETE_FILE} says {file.num_bytes}")


def free_name(run: RunPaths, step: int, attempt: int) -> str:
    """A name for a new checkpoint: one that is there already, complete or damaged, is never written over."""
    name = checkpoint_name(step)
    return f"{name}-attempt-{attempt}" if os.path.lexists(run.checkpoints / name) else name


def remove_unfinished(run: RunPaths) -> list[Path]:
    """Removes what an earlier attempt left half written or half removed; returns the folders that went."""
    left = [run.checkpoints / name for name in _names(run) if name.endswith((PARTIAL, REMOVED))]
    for folder in left:
        _remove(folder)
    return left


def remove_old(run: RunPaths, keep: int, rejected: Collection[Path] = ()) -> list[Path]:
    """Removes all but the newest ``keep`` complete checkpoints; returns those that went.

    Args:
        run: the run folder.
        keep: at least 1.
        rejected: folders that look complete and could not be loaded; neither counted nor removed.

    Raises:
        OSError: one of them cannot be removed.
    """
    folders = [checkpoint.folder for checkpoint in complete_checkpoints(run)]
    old = [folder for folder in folders if folder not in rejected][:-keep]
    for folder in old:
        # Renamed first: a half removed one must not look like a damaged one.
        renamed = folder.with_name(folder.name + REMOVED)
        os.rename(folder, renamed)
        _remove(renamed)
    return old


def _remove(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def set_aside_after(run: RunPaths, step: int) -> list[Path]:
    """Renames all checkpoints of later steps, so that the run goes on from ``step`` (0: from the beginning).

    Damaged ones go too, since nobody knows their step. Nothing is removed: taking ``.set-aside`` off the name brings one back.

    Returns:
        The folders by their new names.

    Raises:
        OSError: one of them cannot be renamed.
    """
    found = read_checkpoints(run)
    folders = [checkpoint.folder for checkpoint in found.complete if checkpoint.step > step]
    folders += [checkpoint.folder for checkpoint in found.unusable if checkpoint.was_complete]
    moved = []
    for folder in folders:
        target = folder.with_name(folder.name + SET_ASIDE)
        number = 2
        while os.path.lexists(target):
            target = folder.with_name(f"{folder.name}{SET_ASIDE}-{number}")
            number += 1
        os.rename(folder, target)
        moved.append(target)
    return moved


def told(checkpoints: Sequence[Checkpoint | UnusableCheckpoint]) -> str:
    """Names for a message."""
    return ", ".join(checkpoint.folder.name for checkpoint in checkpoints)
