"""Appending step records: a lost line is counted and reported, training goes on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from hpctrain.record.schema import StepRecord


class StepWriter:
    """Appends to ``steps.jsonl``, whole lines with one write each time, flushed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lost_lines = 0

    def append(self, records: Iterable[StepRecord]) -> None:
        """Writes the records; a full or unwritable device costs lines and never the run."""
        lines = [json.dumps(dataclasses.asdict(record)) + "\n" for record in records]
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write("".join(lines))
        except OSError as error:
            self.lost_lines += len(lines)
            print(f"hpctrain: {self._path}: {error.strerror}; {self.lost_lines} step records lost so far", flush=True)
