"""Which files ``data=text data.path=...`` means; asked at submission and again by every rank."""

from __future__ import annotations

import os
from pathlib import Path

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError, Problem


def text_files(data: DataConfig) -> list[Path]:
    """The file at ``data.path``, or all ``*.txt`` below that folder, sorted.

    Raises:
        ConfigError: nothing is there, or it is larger than ``data.max_bytes``.
    """
    assert data.path is not None  # the plan asks for it
    path = Path(data.path).expanduser()
    if not path.exists():
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        raise _refused(data, "there is no such file or folder", f"{nearest} is there")
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise _refused(data, "the folder holds no *.txt", "name a file or another folder")
    unreadable = [file for file in files if not os.access(file, os.R_OK)]
    if unreadable:
        raise _refused(data, f"{unreadable[0]} may not be read", "ask its owner, or name another file")
    num_bytes = sum(file.stat().st_size for file in files)
    if num_bytes == 0:
        raise _refused(data, f"the text is empty ({len(files)} file(s) of 0 bytes)", "name another file")
    if num_bytes > data.max_bytes:
        raise _refused(
            data,
            f"the text has {num_bytes:,} bytes, data.max_bytes={data.max_bytes:,}: every rank holds it in memory,"
            " two bytes a byte",
            f"set data.max_bytes={num_bytes} or name less",
        )
    return files


def _refused(data: DataConfig, rule: str, fix: str) -> ConfigError:
    return ConfigError((Problem("data.path", str(data.path), rule, fix),))
