"""Writing and reading the small files of a run folder: replaced by rename, appended with a flush, read strictly."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from hpctrain.errors import RecordError
from hpctrain.record.submission_schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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


def json_text(value: Any) -> str:
    """The value as indented JSON in UTF-8; bytes of a name or variable that are none stay escapes.

    >>> json_text(["é", os.fsdecode(b"caf\\xe9")])
    '[\\n  "é",\\n  "caf\\\\udce9"\\n]\\n'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replaces ``path`` by the value, see ``json_text``."""
    write_text(path, json_text(value))


def write_record(path: Path, record: Any) -> None:
    """Replaces ``path`` by the record, a dataclass instance."""
    write_json(path, dataclasses.asdict(record))


def create_record(path: Path, record: Any) -> bool:
    """Creates ``path`` with the record; False if it was there already (somebody else was first)."""
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    temporary.write_text(json_text(dataclasses.asdict(record)), encoding="utf-8")
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


def open_regular(path: Path) -> BinaryIO:
    """Opens a file of a run folder for reading: the one door, so that a pipe in its place is an error and never waits.

    Raises:
        OSError: it is missing, may not be read, or is no regular file.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer; regular files do not heed it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise _no_regular_file(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _no_regular_file(path)


def _no_regular_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "no regular file", str(path))


def read_json(path: Path) -> Any:
    """What the JSON in ``path`` holds, its texts as ``plain_text``.

    Raises:
        OSError: see ``open_regular``.
        ValueError, RecursionError: no UTF-8 or no JSON; brackets in brackets without end.
    """
    with open_regular(path) as stream:
        content = stream.read()
    raw = json.loads(content.decode("utf-8"))
    return _plain_texts(raw) if _ESCAPED_SURROGATE.search(content) else raw


_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _plain_texts(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {plain_text(key): _plain_texts(value) for key, value in raw.items()}
    if isinstance(raw, list):
        return [_plain_texts(value) for value in raw]
    return plain_text(raw) if isinstance(raw, str) else raw


def plain_text(text: str) -> str:
    """The text with each surrogate spelled out, so that it can be written: bytes of a file's name that are no UTF-8, and halves.

    >>> plain_text(os.fsdecode(b"caf\\xe9")), plain_text(chr(0xD800))
    ('caf\\\\xe9', '\\\\ud800')
    """
    return _SURROGATE.sub(_spelled_out, text)


def _spelled_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def path_text(path: Path) -> str:
    """The path as text that can be printed and kept, whatever bytes its name is made of.

    >>> path_text(Path("runs") / os.fsdecode(b"caf\\xe9"))
    'runs/caf\\\\xe9'
    """
    return plain_text(str(path))


def read_record(path: Path, record_type: type[T]) -> T:
    """The record in ``path``.

    Raises:
        RecordError: the file is missing or no regular file, no JSON, of another schema version, or lacks a field.
    """
    return parse_record(checked_json(path), record_type, str(path))


def checked_json(path: Path) -> Any:
    """As ``read_json``, with the path in the error.

    Raises:
        RecordError: the file is missing, cannot be read, or is no JSON.
    """
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file; is its folder a run folder of hpctrain?") from error
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: {error}") from error


_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""Building one takes milliseconds, a steps file has thousands of lines."""


def parse_record(raw: Any, record_type: type[T], place: str) -> T:
    """One record from decoded JSON; ``place`` names its origin in errors."""
    from pydantic import (
        TypeAdapter,
        ValidationError,
    )  # a fifth of the time that a submission takes, which reads nothing

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
