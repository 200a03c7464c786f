"""Which source files of this package a job runs, their digests, and which of them differ from those of the submission."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import hpctrain

_NOT_IN_JOBS = ("analysis", "rehearse", "_conf", "_slurm", "_published", "__pycache__")
"""Folders of the package that nothing in a job imports or reads: its configuration is frozen, its report and its rehearsal are
made elsewhere."""


def package_folder() -> Path:
    """Where this process's package lies."""
    return Path(hpctrain.__file__).resolve().parent


def job_sources(package: Path) -> dict[str, bytes]:
    """The content of every Python file that a job may import, by its path inside the package."""
    names = [name for name in files_below(package, _NOT_IN_JOBS) if name.endswith(".py")]
    return {name: content_of(f"{package}/{name}") for name in sorted(names)}


def content_of(path: str) -> bytes:
    """The file's bytes, without Python's buffer between."""
    with open(path, "rb", buffering=0) as stream:
        return stream.readall()


def files_below(folder: Path, left_out: Collection[str] = ()) -> list[str]:
    """Paths of all regular files below ``folder``, relative to it, but for those in its own folders ``left_out``.

    As texts, since every submission looks at some hundred files twice.
    """
    found: list[str] = []
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        try:
            entries = list(os.scandir(f"{folder}/{prefix}"))
        except OSError:  # may not be listed: its files are missing from what is found
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if prefix or entry.name not in left_out:
                    prefixes.append(f"{prefix}{entry.name}/")
            elif entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path):
                found.append(prefix + entry.name)
    return found


def digests_of(sources: Mapping[str, bytes]) -> dict[str, str]:
    """SHA-256 of each, by the same name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sources.items()}


def source_digests() -> dict[str, str]:
    """SHA-256 of every Python file of this process's package that a job may import, by its path inside it."""
    return digests_of(job_sources(package_folder()))


def changed_sources(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Files that were added, removed or edited between two ``source_digests``.

    >>> changed_sources({"a.py": "1", "b.py": "2"}, {"a.py": "1", "b.py": "3", "c.py": "4"})
    ['b.py', 'c.py']
    """
    return sorted(name for name in recorded.keys() | here.keys() if recorded.get(name) != here.get(name))
