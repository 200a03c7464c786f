"""Writing and reading the small files of a run folder: replaced by rename, appended with a flush, read strictly."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hpctrain.errors import RecordError
from hpctrain.record.schema import SCHEMA_VERSION

T = TypeVar("T")


def replace_file(path: Path, content: bytes) -> None:
    """Writes beside ``path`` and renames, so that a reader sees the old or the new file, never a part.

    Leaves nothing behind where that fails.

    Raises:
        OSError: the folder is missing or cannot be written, ``path`` is a folder, the disk is full.
    """
    # A name may have 255 bytes, so that a long one leaves no room for more.
    name = os.fsdecode(os.fsencode(path.name)[:_MAX_KEPT_BYTES])
    temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


_MAX_KEPT_BYTES = 200
"""Of a file's name in that of the one that is written beside it."""


def write_text(path: Path, text: str) -> None:
    """Replaces ``path`` by the text in UTF-8, see ``replace_file``."""
    replace_file(path, text.encode())


def write_record(path: Path, record: Any) -> None:
    """Replaces ``path`` by the record (a dataclass instance) as indented JSON."""
    write_text(path, json.dumps(dataclasses.asdict(record), indent=2) + "\n")


def create_record(path: Path, record: Any) -> bool:
    """Creates ``path`` with the record; False if it was there already (somebody else was first)."""
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(dataclasses.asdict(record), indent=2) + "\n", encoding="utf-8")
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: created exclusively, and for a moment seen empty.
        return _create_without_link(path, temporary.read_bytes())
    finally:
        temporary.unlink()
    return True


def _create_without_link(path: Path, content: bytes) -> bool:
    try:
        with path.open("xb") as stream:
            stream.write(content)
    except FileExistsError:
        return False
    return True


def read_record(path: Path, record_type: type[T]) -> T:
    """The record in ``path``.

    Raises:
        RecordError: the file is missing, no JSON, of another schema version, or lacks a field.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file; is its folder a run folder of hpctrain?") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: {error}") from error
    return parse_record(raw, record_type, str(path))


_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""Building one takes milliseconds, a steps file has thousands of lines."""


def parse_record(raw: Any, record_type: type[T], place: str) -> T:
    """One record from decoded JSON; ``place`` names its origin in errors."""
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"{place}: schema_version={version}, this hpctrain reads {SCHEMA_VERSION}")
    try:
        if record_type not in _adapters:
            _adapters[record_type] = TypeAdapter(record_type)
        record: T = _adapters[record_type].validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise RecordError(f"{place}: {key}: {first['msg']}") from error
    return record
