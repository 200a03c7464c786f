"""What a call of ``prepare`` has to do, as the file in ``PREFIX.partial`` by which all its processes and later calls know it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.config.strict_values import read_strictly
from hpctrain.errors import ConfigError, Problem
from hpctrain.record.files import path_text, read_json, write_json, write_text
from hpctrain.tokens.documents import Reading
from hpctrain.tokens.inputs import InputFile, Segment, Unit
from hpctrain.tokens.tokenizer import BYTES, END_OF_TEXT, TokenizerChoice, bytes_choice, json_choice

SCHEMA_VERSION = 1
"""Of the files in ``PREFIX.partial``, and of what becomes of a text: work of another version is not gone on with."""
JOB, UNITS, TOKENIZER, STATE = "job.json", "units.json", "tokenizer.json", "state.json"


@dataclass(frozen=True)
class Job:
    """All that the result depends on; not how many workers do it."""

    schema_version: int
    inputs: tuple[InputFile, ...]
    tokenizer: str
    """``bytes``, or the SHA-256 of a JSON file, or empty: a BPE is trained."""
    tokenizer_name: str
    train_bpe: int | None
    """Its vocabulary."""
    eod: str | None
    """The token that ends a document; None: by the tokenizer's own files."""
    ends_documents: bool
    field: str
    split_at: str | None
    unit_bytes: int
    versions: dict[str, str]
    """Of hpctrain and the libraries that the result may depend on."""

    @property
    def reading(self) -> Reading:
        return Reading(self.field, self.split_at)


def save_job(folder: Path, job: Job, units: list[Unit], tokenizer: str | None) -> None:
    """Writes what the workers read; ``job.json`` last, so that a folder with it is complete.

    Raises:
        OSError: the disk is full.
    """
    if tokenizer is not None:
        (folder / TOKENIZER).write_bytes(tokenizer.encode())
    rows = [[dataclasses.astuple(segment) for segment in unit] for unit in units]
    write_text(folder / UNITS, json.dumps(rows, separators=(",", ":")))
    write_json(folder / JOB, dataclasses.asdict(job))


def load_job(folder: Path) -> Job | None:
    """The job of an earlier call; None if it was ended before there was one.

    Raises:
        ConfigError: it is damaged, or of another version.
    """
    path = folder / JOB
    try:
        raw = read_json(path)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"is damaged: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise _unusable(path, f"schema_version={version}, this hpctrain reads {SCHEMA_VERSION}")
    try:
        return read_strictly(Job, raw)
    except ConfigError as error:
        raise _unusable(path, str(error).replace("\n", "; ")) from None


def load_units(folder: Path) -> list[Unit]:
    """The units of the job, in order."""
    rows: list[list[list[int]]] = read_json(folder / UNITS)
    return [tuple(Segment(*row) for row in unit) for unit in rows]


def check_same(earlier: Job, now: Job, folder: Path) -> None:
    """Raises ConfigError if the work in the folder was begun for something else; names all that differs."""
    # A name says more than a digest.
    untold = {"tokenizer"} if earlier.tokenizer_name != now.tokenizer_name else set()
    problems = [
        Problem("--out", path_text(folder), f"holds work that was begun with {rule}", fix)
        for field in dataclasses.fields(Job)
        if field.name not in untold
        for rule, fix in _difference(field.name, getattr(earlier, field.name), getattr(now, field.name))
    ]
    if problems:
        raise ConfigError(problems)


def _difference(name: str, earlier: Any, now: Any) -> list[tuple[str, str]]:
    if earlier == now:
        return []
    fix = "the command of then goes on with it, --force begins anew"
    if name != "inputs":
        return [(f"{name.replace('_', ' ')} {_shown(earlier)}, it is {_shown(now)} now", fix)]
    for before, after in zip(earlier, now, strict=False):
        if before.path != after.path:
            return [(f"{before.path} where {after.path} is now", fix)]
        if before != after:
            rule = f"another {before.path} ({before.num_bytes:,} bytes, {after.num_bytes:,} now; or its time differs)"
            return [(rule, "--force begins anew")]
    return [(f"{len(earlier):,} files, {len(now):,} are named now", fix)]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return repr(value)


def tokenizer_of(job: Job, folder: Path) -> TokenizerChoice:
    """The job's tokenizer, from the copy in its folder.

    Raises:
        ConfigError: the copy is not what the job says.
    """
    if job.tokenizer == BYTES:
        return bytes_choice(job.ends_documents)
    path = folder / TOKENIZER
    eod = END_OF_TEXT if job.train_bpe is not None else job.eod
    choice = json_choice(path, eod, job.ends_documents, job.tokenizer_name)
    if job.tokenizer and choice.record.digest != job.tokenizer:
        raise _unusable(path, f"its SHA-256 is {choice.record.digest}, it was {job.tokenizer}")
    return choice


def _unusable(path: Path, rule: str) -> ConfigError:
    return ConfigError((Problem("--out", path_text(path), rule, "--force begins anew"),))
