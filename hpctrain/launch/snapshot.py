"""The code of a job: a read-only copy of the package in ``run.root/.code``, so that edits while it waits change nothing.

A copy is named by the digest of what is in it, made beside and renamed, and shared by all runs of the same code. None is ever
removed here: a run that is resumed, requeued or looked into years later needs its own.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import py_compile
import secrets
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpctrain.errors import LaunchError, RecordError
from hpctrain.record.code_version import content_of, digests_of, files_below, job_sources, package_folder
from hpctrain.record.files import checked_json
from hpctrain.record.paths import SNAPSHOTS, RunPaths

_PACKAGE = "hpctrain"
_FILES = "files.json"
"""Digest of every file of the copy, compiled ones included."""
_DIGEST_LENGTH = 16
_READ_ONLY_FILE, _READ_ONLY_FOLDER = 0o444, 0o555


class Snapshot(NamedTuple):
    """A copy of the package."""

    folder: Path
    """What PYTHONPATH names: the folder that holds ``hpctrain/``."""
    sources: Mapping[str, str]
    """Digest of each Python file by its path inside the package."""


def take_snapshot(run_root: Path, package: Path | None = None) -> Snapshot:
    """The copy of ``package`` below ``run_root``, made if it is not there.

    A damaged one is left alone, since jobs may run from it, and another is made beside it; that is told on stderr.

    Args:
        run_root: the folder that holds the runs; it exists.
        package: whose files; None: those of this process.

    Raises:
        OSError: the folder cannot be written, or the device is full.
    """
    contents = job_sources(package or package_folder())
    sources = digests_of(contents)
    digest = _digest(sources)
    home = _snapshots_folder(run_root)
    for number in itertools.count(1):
        folder = home / (digest if number == 1 else f"{digest}-{number}")
        if not folder.exists():
            _make(folder, contents)
        damage = damage_of(folder, sources)
        if not damage:
            return Snapshot(folder, sources)
        print(f"hpctrain: {folder}: {damage}; another copy of the code is made beside it", file=sys.stderr)
    raise AssertionError("unreachable")


def python_path(snapshot: str, others: str) -> dict[str, str]:
    """The variables that make a Python import the copy, whatever else is installed or lies in the working directory.

    Args:
        snapshot: folder of the copy.
        others: PYTHONPATH so far, kept behind it; empty: none.

    >>> python_path("/runs/.code/1a2b", "/mine")
    {'PYTHONPATH': '/runs/.code/1a2b:/mine', 'PYTHONSAFEPATH': '1'}
    """
    return {"PYTHONPATH": ":".join(filter(None, (snapshot, others))), "PYTHONSAFEPATH": "1"}


def snapshot_of(run: RunPaths) -> str:
    """Folder of the copy that the run was submitted with, from its ``code.json``.

    Raises:
        LaunchError: there is none, or the record is damaged.
    """
    try:
        folder = str(checked_json(run.code)["snapshot"])
    except (RecordError, KeyError, TypeError) as error:
        why = str(error) if isinstance(error, RecordError) else str(run.code)
        raise LaunchError(f"{why}: names no copy of the code; submit the run anew") from None
    if not Path(folder, _PACKAGE).is_dir():
        raise LaunchError(f"{folder}: the code that {run.root} was submitted with is gone; submit the run anew")
    return folder


def damage_of(folder: Path, sources: Mapping[str, str]) -> str:
    """What is wrong with a copy of ``sources``; empty if nothing is."""
    try:
        recorded: dict[str, str] = json.loads((folder / _FILES).read_bytes())
        there = {f"{_PACKAGE}/{name}" for name in files_below(folder / _PACKAGE)}
        wrong = sorted(recorded.keys() ^ there)
        wrong += sorted(name for name in recorded.keys() & there if _digest_of(folder, name) != recorded[name])
    except (OSError, ValueError) as error:
        return f"damaged ({error})"
    wrong += sorted(name for name, digest in sources.items() if recorded.get(f"{_PACKAGE}/{name}") != digest)
    return f"damaged ({len(wrong)} files missing, changed or added, among them {wrong[0]})" if wrong else ""


def _digest_of(folder: Path, name: str) -> str:
    return hashlib.sha256(content_of(f"{folder}/{name}")).hexdigest()


def _digest(sources: Mapping[str, str]) -> str:
    """Of the files, and of the Python whose compiled form lies beside them."""
    text = json.dumps([sys.implementation.cache_tag, sorted(sources.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _snapshots_folder(run_root: Path) -> Path:
    """``run_root/.code``, open to whom ``run_root`` is: a group that shares it shares the copies."""
    folder = run_root / SNAPSHOTS
    try:
        folder.mkdir()
    except FileExistsError:
        return folder
    folder.chmod(stat.S_IMODE(run_root.stat().st_mode))
    return folder


def _make(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes the copy beside ``folder`` and renames it; one that another process has put there meanwhile stays."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        _write(temporary, contents)
        os.rename(temporary, folder)
    except OSError as error:
        _remove(temporary)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            # A write that fails names no file.
            raise OSError(error.errno, error.strerror, error.filename or str(folder)) from error


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        path = folder / _PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        # The copy is read-only: without this each rank would compile every module that it imports.
        py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    digests = {name: _digest_of(folder, name) for name in sorted(files_below(folder))}
    (folder / _FILES).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(_READ_ONLY_FOLDER if path.is_dir() else _READ_ONLY_FILE)


def _remove(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
