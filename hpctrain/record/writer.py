"""Appending records a line each: a lost step record is counted and reported, and training goes on."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path

from hpctrain.record.schema import NodeSample, StepRecord, ValidationRecord


class StepWriter:
    """Appends to ``steps.jsonl``, whole lines with one write each time, flushed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lost_lines = 0

    def append(self, records: Iterable[StepRecord]) -> None:
        """Writes the records; a full or unwritable device costs lines and never the run."""
        lines = [json.dumps(dataclasses.asdict(record)) + "\n" for record in records]
        try:
            _append_whole(self._path, "".join(lines).encode())
        except OSError as error:
            self.lost_lines += len(lines)
            print(f"hpctrain: {self._path}: {error.strerror}; {self.lost_lines} step records lost so far", flush=True)


def _append_whole(path: Path, content: bytes) -> None:
    """Appends all of ``content`` or nothing: the part that fits on a full device would damage the first line after it."""
    with path.open("ab", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if stream.write(content) != len(content):
            os.ftruncate(stream.fileno(), size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class ValidationFile:
    """Appends to ``validation.jsonl``, like ``StepWriter``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: ValidationRecord) -> None:
        """Writes the record; a full or unwritable device costs the line and never the run."""
        try:
            _append_whole(self._path, (json.dumps(dataclasses.asdict(record)) + "\n").encode())
        except OSError as error:
            print(f"hpctrain: {self._path}: {error.strerror}; the validation of step {record.step} is lost", flush=True)


class SampleWriter:
    """Appends to ``nodes/<name>.jsonl``, one write a line, so that a process that ends anywhere leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Makes the folder, and ends a line that an earlier attempt left unfinished.

        Raises:
            OSError: the folder or the file cannot be written.
        """
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("ab+") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - 1))
            if stream.read(1) not in (b"", b"\n"):
                stream.write(b"\n")

    def append(self, sample: NodeSample) -> None:
        """Writes the sample.

        Raises:
            OSError: the folder is gone, or the device is full; then a part of the line may be left.
        """
        line = (json.dumps(dataclasses.asdict(sample)) + "\n").encode()
        # Opened each time: a file that is held open and removed would take all that follows.
        with self._path.open("ab", buffering=0) as stream:
            written = stream.write(line)
        if written != len(line):
            raise OSError(f"{self._path}: {written} of {len(line)} bytes written, the device is full")
