"""Which files ``data=text data.path=... data.validation_path=...`` mean; asked at submission and again by every rank."""

from __future__ import annotations

import os
from pathlib import Path

from hpctrain.config.schema import DataConfig
from hpctrain.errors import ConfigError, Problem


def text_files(data: DataConfig, key: str = "data.path") -> list[Path]:
    """The file at ``data.path``, or all ``*.txt`` below that folder, sorted.

    Args:
        data: where it is, and how large it may be.
        key: ``data.validation_path`` for what is named there.

    Raises:
        ConfigError: nothing is there, or no file (a pipe, say, which ranks would wait for), it is larger than
            ``data.max_bytes``, or what is to be validated is trained on.
    """
    named = data.validation_path if key == "data.validation_path" else data.path
    assert named is not None  # the plan asks for it

    def refused(rule: str, fix: str) -> ConfigError:
        return ConfigError((Problem(key, named, rule, fix),))

    path = Path(os.path.expanduser(named))
    if not path.exists():
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        raise refused("there is no such file or folder", f"{nearest} is there")
    files = sorted(file for file in path.rglob("*.txt") if not file.is_dir()) if path.is_dir() else [path]
    if not files:
        raise refused("the folder holds no *.txt", "name a file or another folder")
    if odd := [file for file in files if not file.is_file()]:
        what = "is no regular file" if odd[0].exists() else "is a link to a file that is not there"
        raise refused(f"{odd[0]} {what}", "take it away, or name another file")
    unreadable = [file for file in files if not os.access(file, os.R_OK)]
    if unreadable:
        raise refused(f"{unreadable[0]} may not be read", "ask its owner, or name another file")
    num_bytes = sum(file.stat().st_size for file in files)
    if num_bytes == 0:
        raise refused(f"the text is empty ({len(files)} file(s) of 0 bytes)", "name another file")
    if num_bytes > data.max_bytes:
        raise refused(
            f"the text has {num_bytes:,} bytes, data.max_bytes={data.max_bytes:,}: every rank holds it in memory,"
            " two bytes a byte",
            f"set data.max_bytes={num_bytes} or name less",
        )
    if key == "data.validation_path":
        trained = {file.resolve() for file in text_files(data)}
        shared = [file for file in files if file.resolve() in trained]
        if shared:
            raise refused(
                f"data.path={data.path} has {shared[0]} too ({len(shared)} of {len(files)} file(s)): it would be trained on",
                "name text that data.path does not hold, or set data.validation_fraction instead",
            )
    return files
