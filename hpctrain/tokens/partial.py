"""``PREFIX.partial``: work that is under way, so that a later call of the same command goes on with it, and its last steps.

Workers leave a file for each unit; here they are joined in order, and ``state.json`` says how far. When all is there, the index
and the manifest are written beside the tokens; then the files get their names, the manifest last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hpctrain.errors import ConfigError, Problem
from hpctrain.record.files import path_text, read_json, write_json
from hpctrain.tokens.header import bin_path, idx_path
from hpctrain.tokens.job import JOB, STATE, TOKENIZER
from hpctrain.tokens.manifest import FileRecord, Manifest, file_digest, manifest_path, manifest_text, tokenizer_path
from hpctrain.tokens.unit_file import UnitFacts, read_facts, token_chunks, unit_path
from hpctrain.tokens.workers import PrepareError

TOKENS, SIZES, INDEX, MANIFEST, DIGESTS, LOCK = "tokens", "sizes", "index", "manifest.json", "digests.jsonl", "lock"


def partial_path(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.partial")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps others from the same work; the lock goes with this process, however it ends.

    Raises:
        PrepareError: another process has it.
    """
    path = folder / LOCK
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(path.open("wb"))
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that has just ended has removed the folder, and a lock without a name keeps nobody out.
            is_held = os.path.samestat(path.stat(), os.fstat(stream.fileno()))
        except (BlockingIOError, FileNotFoundError):
            is_held = False
        if not is_held:
            raise PrepareError(f"{path_text(folder)}: another prepare is at work on it right now")
        yield


@dataclass(frozen=True)
class State:
    """How much of the units has been joined."""

    next_unit: int = 0
    token_bytes: int = 0
    num_sizes: int = 0
    open_size: int | None = None
    """Tokens so far of a document that goes on in the next unit; None if none does."""
    num_empty: int = 0
    max_id: int = -1
    tokens_sha256: str = hashlib.sha256().hexdigest()
    sizes_sha256: str = hashlib.sha256().hexdigest()


class JoinedUnits:
    """The tokens and document sizes of all units so far, each in a file that grows."""

    def __init__(self, folder: Path) -> None:
        """Goes on where an earlier call ended: what is behind its last state is cut off.

        Args:
            folder: ``PREFIX.partial``.

        Raises:
            PrepareError: the files are not what the state says.
        """
        self._folder = folder
        path = folder / STATE
        try:
            # Without tokens it is what a call left that was killed after it had given all names.
            is_begun = path.exists() and (folder / TOKENS).exists()
            self.state = State(**read_json(path)) if is_begun else State()
        except (ValueError, TypeError) as error:
            raise _damaged(path, str(error)) from None
        self._tokens, self._tokens_digest = _resumed(folder / TOKENS, self.state.token_bytes, self.state.tokens_sha256)
        self._sizes, self._sizes_digest = _resumed(folder / SIZES, 8 * self.state.num_sizes, self.state.sizes_sha256)
        for leftover in folder.glob("unit-*"):
            number = leftover.name.removeprefix("unit-")
            if not number.isdigit() or int(number) < self.state.next_unit:
                leftover.unlink()

    def close(self) -> None:
        try:
            self._tokens.close()
        finally:
            self._sizes.close()

    def append_ready(self) -> None:
        """Joins the units that are next, as far as they are there.

        Raises:
            PrepareError: a unit's file is damaged.
            OSError: the disk is full.
        """
        while (path := unit_path(self._folder, self.state.next_unit)).exists():
            with path.open("rb") as stream:
                try:
                    self._append(stream)
                except (ValueError, KeyError, TypeError, struct.error) as error:
                    raise _damaged(path, str(error)) from None
            write_json(self._folder / STATE, dataclasses.asdict(self.state))
            path.unlink()

    def _append(self, stream: IO[bytes]) -> None:
        state = self.state
        facts, sizes = read_facts(stream)
        checksum = 0
        for content in token_chunks(stream, facts):
            checksum = zlib.crc32(content, checksum)
            self._tokens_digest.update(content)
            self._tokens.write(content)
        if checksum != facts.crc32:
            raise ValueError(f"its CRC-32 is {checksum:08x}, it was {facts.crc32:08x}")
        sizes, open_size = _joined_sizes(state.open_size, facts, sizes)
        content = sizes.astype("<i8").tobytes()
        self._sizes_digest.update(content)
        self._sizes.write(content)
        self._tokens.flush()
        self._sizes.flush()
        self.state = State(
            state.next_unit + 1,
            state.token_bytes + facts.token_bytes,
            state.num_sizes + len(sizes),
            open_size,
            state.num_empty + facts.num_empty,
            max(state.max_id, facts.max_id),
            self._tokens_digest.hexdigest(),
            self._sizes_digest.hexdigest(),
        )


def _joined_sizes(
    open_size: int | None, facts: UnitFacts, sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int | None]:
    """Sizes of the documents that a unit ends, and of the one that it leaves open."""
    assert facts.continues == (open_size is not None)
    if open_size is not None:
        sizes[0] += open_size
    return (sizes[:-1], int(sizes[-1])) if facts.is_open else (sizes, None)


def _resumed(path: Path, num_bytes: int, sha256: str) -> tuple[IO[bytes], hashlib._Hash]:
    """The file, open for more behind ``num_bytes``, and its digest so far."""
    digest = hashlib.sha256()
    stream = path.open("r+b" if path.exists() else "w+b")
    left = num_bytes
    while left and (content := stream.read(min(2**22, left))):
        digest.update(content)
        left -= len(content)
    if left or digest.hexdigest() != sha256:
        stream.close()
        rule = f"ends {left:,} bytes too early" if left else f"its SHA-256 is {digest.hexdigest()}, it was {sha256}"
        raise _damaged(path, rule)
    stream.truncate(num_bytes)
    stream.seek(num_bytes)
    return stream, digest


def _damaged(path: Path, rule: str) -> PrepareError:
    fix = f"remove {path_text(path.parent)} to begin anew"
    return PrepareError(f"{path_text(path)}: is damaged: {rule}; {fix}", ConfigError.exit_code)


def read_digests(folder: Path) -> dict[int, str]:
    """Checksums of inputs that are known already; a line that was cut off counts for nothing."""
    path = folder / DIGESTS
    if not path.exists():
        return {}
    digests = {}
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):
            number, digest = json.loads(line)
            digests[int(number)] = str(digest)
    return digests


def add_digest(folder: Path, number: int, digest: str) -> None:
    """Keeps the checksum of an input."""
    with (folder / DIGESTS).open("ab") as stream:
        # The line end in front ends a line that was cut off.
        stream.write(b"\n" + json.dumps([number, digest]).encode() + b"\n")


def synced_record(path: Path, name: str, sha256: str | None = None) -> FileRecord:
    """Size and checksum (computed where it is not known) of a file, which from here on survives a power cut."""
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())
    return FileRecord(name, path.stat().st_size, sha256 or file_digest(path))


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """From here on the work is done, and only names are missing."""
    temporary = folder / f"{MANIFEST}.tmp"
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(manifest_text(manifest))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, folder / MANIFEST)


def is_done(folder: Path) -> bool:
    """Whether only names are missing."""
    return (folder / MANIFEST).exists()


def give_names(folder: Path, prefix: Path, *, with_tokenizer: bool) -> None:
    """Moves the files to their places, the manifest last; can be called again if it was interrupted."""
    moves = [(TOKENS, bin_path(prefix)), (INDEX, idx_path(prefix))]
    if with_tokenizer:
        moves.append((TOKENIZER, tokenizer_path(prefix)))
    if (folder / TOKENS).exists():  # an older corpus's manifest must not stand beside new files
        manifest_path(prefix).unlink(missing_ok=True)
    for name, target in (*moves, (MANIFEST, manifest_path(prefix))):
        if (folder / name).exists():
            os.replace(folder / name, target)
    descriptor = os.open(prefix.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    remove_work(folder)


def remove_work(folder: Path) -> None:
    """The job goes first: what a kill leaves then is no work that a later call would go on with."""
    (folder / JOB).unlink(missing_ok=True)
    shutil.rmtree(folder)


def existing_output(prefix: Path, *, with_tokenizer: bool) -> list[Path]:
    """Files that a new corpus would replace."""
    paths = [bin_path(prefix), idx_path(prefix), manifest_path(prefix)]
    if with_tokenizer:
        paths.append(tokenizer_path(prefix))
    return [path for path in paths if os.path.lexists(path)]


def refuse_output(prefix: Path, paths: list[Path]) -> ConfigError:
    """What is told where a corpus is there already."""
    names = ", ".join(path.name for path in paths)
    rule = f"{names} {'is' if len(paths) == 1 else 'are'} there already"
    return ConfigError((Problem("--out", path_text(prefix), rule, "name another prefix, or replace with --force"),))
