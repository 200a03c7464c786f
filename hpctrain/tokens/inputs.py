"""Which files a corpus is made of, of which kind, and how their work is cut into units that do not depend on who does them."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpctrain.errors import ConfigError, HpctrainError, Problem
from hpctrain.record.files import path_text

Kind = Literal["text", "jsonl", "parquet"]
KINDS: tuple[Kind, ...] = ("text", "jsonl", "parquet")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_KIND_OF_SUFFIX: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
UNIT_BYTES = 2**22
"""Of input in one unit: two seconds of a BPE tokenizer, so that a kill costs little, and all workers end together."""
_GOOD_CUTS = (re.compile(rb"\S\n(?=\S)"), re.compile(rb"\S(?= \S)"))
_CUT_WINDOW = 2**20


class InputError(HpctrainError):
    """An input file that cannot be read as what it should be; says where."""

    def __init__(self, path: str | Path, place: str, rule: str, fix: str = "") -> None:
        """Joins the parts: ``place`` is a byte, line or row, or empty where the whole file is to blame."""
        head = f"{path_text(Path(path))}, {place}" if place else path_text(Path(path))
        super().__init__(f"{head}: {rule}" + (f"; {fix}" if fix else ""))


@dataclass(frozen=True)
class InputFile:
    """One input; it must stay as it is till the work is done."""

    path: str
    kind: Kind
    compression: str | None
    num_bytes: int
    changed_ns: int
    """Its modification time."""


@dataclass(frozen=True)
class Segment:
    """A part of one file: bytes (of a compressed file always all of them), or row groups of Parquet."""

    file: int
    """Its number among the inputs."""
    start: int
    stop: int
    num_bytes: int
    """Of the file on disk; row groups by their compressed size."""


Unit = tuple[Segment, ...]
"""What one worker does in one go; the corpus is the units' tokens in order."""


def find_inputs(words: Sequence[str], kind: Kind | None) -> tuple[InputFile, ...]:
    """The inputs, in the order in which they were named.

    Args:
        words: paths.
        kind: of all of them; None: by the names' endings (``.jsonl``, ``.ndjson``, ``.json``: JSON lines; ``.parquet``, ``.pq``;
            all else is text), after ``.gz`` or ``.zst``.

    Raises:
        ConfigError: a file is missing, no regular file, unreadable or named twice, or the kinds differ; all problems at once.
    """
    problems: list[Problem] = []
    found: list[InputFile] = []
    first_named: dict[tuple[int, int], str] = {}
    for word in words:
        path = Path(word)
        if rule_and_fix := _no_input(path, word):
            problems.append(Problem("FILES", word, *rule_and_fix))
            continue
        status = path.stat()
        same = first_named.setdefault((status.st_dev, status.st_ino), word)
        if len(first_named) == len(found):
            problems.append(Problem("FILES", word, f"is the same file as {same}", "name it once"))
            continue
        compression = COMPRESSIONS.get(path.suffix.lower())
        named = path.with_suffix("") if compression else path
        of_name = kind or _KIND_OF_SUFFIX.get(named.suffix.lower(), "text")
        found.append(InputFile(word, of_name, compression, status.st_size, status.st_mtime_ns))
        if compression and status.st_size == 0:
            problems.append(Problem("FILES", word, f"has 0 bytes, which is no {compression}", "it is truncated"))
        if of_name == "parquet" and compression:
            problems.append(Problem("FILES", word, "Parquet is compressed inside", f"unpack it to {path_text(named)}"))
    counts = Counter(file.kind for file in found)
    if len(counts) > 1:
        of_kind = "; ".join(f"{kind}: {next(f.path for f in found if f.kind == kind)}" for kind in counts)
        fix = "prepare each kind by itself and blend them in training, or state --kind for all"
        problems.append(Problem("FILES", f"{len(found)} files", f"are of {len(counts)} kinds ({of_kind})", fix))
    if problems:
        raise ConfigError(problems)
    return tuple(found)


def _no_input(path: Path, word: str) -> tuple[str, str] | None:
    """Why a path is no input, and what to do; None if it is one."""
    if word == "-":
        return "standard input cannot be read twice, so no work could go on after a stop", "write it to a file first"
    if path_text(path) != str(path):
        return "its name is not UTF-8, and the manifest could not tell it", "rename it, or link to it by another name"
    if not word:
        return "is empty", "name a file"
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        nearest = next(parent for parent in path.absolute().parents if os.path.exists(parent))
        return "there is no such file", f"{path_text(nearest)} is there"
    except OSError as error:
        return str(error.strerror), "name another file"
    if path.is_dir():
        return "is a folder", f"name its files: {word.rstrip('/')}/*"
    if not path.is_file():
        return "is no regular file", "write what it gives to a file first"
    if not os.access(path, os.R_OK):
        return "may not be read", "ask its owner, or name another file"
    return None


def check_unchanged(file: InputFile) -> None:
    """Raises InputError if the file is not the one that it was when the work began."""
    try:
        status = os.stat(file.path)
    except OSError as error:
        raise InputError(file.path, "", str(error.strerror), "it was there when the work began") from None
    if (status.st_size, status.st_mtime_ns) != (file.num_bytes, file.changed_ns):
        rule = f"was changed during the work: {file.num_bytes:,} bytes when it began, {status.st_size:,} now"
        raise InputError(file.path, "", rule, "the same command with --force begins anew")


def plan_units(files: Sequence[InputFile], split_at: str | None, unit_bytes: int, field: str) -> list[Unit]:
    """All work, cut into units of about ``unit_bytes``: ends of lines, documents or row groups; small files go together.

    Args:
        files: of one kind.
        split_at: what ends a document of text, None: the end of the file.
        unit_bytes: of one unit. A compressed file, a row group and a document that ``split_at`` ends are never cut.
        field: the column of Parquet.

    Raises:
        InputError: a Parquet file is none, or has no such column of text.
    """
    units: list[Unit] = []
    gathered: list[Segment] = []
    for number, file in enumerate(files):
        for segment in _segments(number, file, split_at, unit_bytes, field):
            gathered.append(segment)
            if sum(part.num_bytes for part in gathered) >= unit_bytes:
                units.append(tuple(gathered))
                gathered = []
    return [*units, tuple(gathered)] if gathered else units


def _segments(number: int, file: InputFile, split_at: str | None, unit_bytes: int, field: str) -> list[Segment]:
    if file.kind == "parquet":
        from hpctrain.tokens.parquet import row_group_bytes

        return [
            Segment(number, group, group + 1, num_bytes)
            for group, num_bytes in enumerate(row_group_bytes(file.path, field))
        ]
    if file.num_bytes <= unit_bytes or file.compression:
        return [Segment(number, 0, file.num_bytes, file.num_bytes)]
    if file.kind == "jsonl":
        next_cut = _after_delimiter(b"\n")
    else:
        next_cut = _after_good_line if split_at is None else _after_delimiter(split_at.encode())
    segments, start = [], 0
    with open(file.path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while start < file.num_bytes:
            target = start + unit_bytes
            stop = next_cut(content, target) if target < file.num_bytes else file.num_bytes
            segments.append(Segment(number, start, stop, stop - start))
            start = stop
    return segments


def _after_delimiter(delimiter: bytes) -> Callable[[mmap.mmap, int], int]:
    """The end of the first delimiter at or behind a byte, of those that a reader from the file's start would see as one.

    Of delimiters that overlap, as of blank lines in a row, only the first is sure to be seen so.
    """
    length = len(delimiter)

    def cut(content: mmap.mmap, target: int) -> int:
        place = content.find(delimiter, target)
        while place >= 0:
            overlapping = content.find(delimiter, max(0, place - length + 1), place + length - 1)
            if overlapping < 0:
                return place + length
            place = content.find(delimiter, place + 1)
        return len(content)

    return cut


def _after_good_line(content: mmap.mmap, target: int) -> int:
    """Where plain text can be cut with the least harm, at or behind a byte; see ``documents.piece_end``."""
    window = content[target - 1 : target + _CUT_WINDOW]
    for pattern in _GOOD_CUTS:
        if match := pattern.search(window):
            return target - 1 + match.end()
    stop = target
    while stop < len(content) and content[stop] & 0xC0 == 0x80:  # inside a character of UTF-8
        stop += 1
    return stop
