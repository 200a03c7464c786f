"""Which source files of this package are there, and which of them differ from those of the submission."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import hpctrain


def source_digests() -> dict[str, str]:
    """SHA-256 of every Python file of the package, by its path inside it."""
    package = Path(hpctrain.__file__).resolve().parent
    return {
        str(path.relative_to(package)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*.py"))
    }


def changed_sources(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Files that were added, removed or edited between two ``source_digests``.

    >>> changed_sources({"a.py": "1", "b.py": "2"}, {"a.py": "1", "b.py": "3", "c.py": "4"})
    ['b.py', 'c.py']
    """
    return sorted(name for name in recorded.keys() | here.keys() if recorded.get(name) != here.get(name))
