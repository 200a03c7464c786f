"""Which source files of this package a job runs, their digests, and which of them differ from those of the submission."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import hpctrain

_NOT_IN_JOBS = ("analysis", "_conf", "_slurm", "_published", "__pycache__")
"""Folders of the package that nothing in a job imports or reads: its configuration is frozen, its report is made elsewhere."""


def package_folder() -> Path:
    """Where this process's package lies."""
    return Path(hpctrain.__file__).resolve().parent


def job_sources(package: Path) -> dict[str, bytes]:
    """The content of every Python file that a job may import, by its path inside the package."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _NOT_IN_JOBS:
            found[name.as_posix()] = path.read_bytes()
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
