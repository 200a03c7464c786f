"""Writing a report beside its place and renaming it, so that a reader sees the old or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replaces ``path`` by the content; leaves nothing behind where that fails.

    Raises:
        OSError: the folder is missing or cannot be written, ``path`` is a folder, the disk is full.
    """
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
