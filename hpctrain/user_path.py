"""A path as somebody typed it, from the root of the file system."""

from __future__ import annotations

import os
from pathlib import Path


def user_path(typed: str) -> Path:
    """The absolute path, ``~`` put in; a ``~name`` without such a user stays as it is, where pathlib raises RuntimeError.

    >>> user_path("/runs/../a b"), user_path("/x/~nobody-of-that-name")
    (PosixPath('/runs/../a b'), PosixPath('/x/~nobody-of-that-name'))
    >>> user_path("~nobody-of-that-name/runs").name
    'runs'
    """
    return Path(os.path.expanduser(typed)).absolute()
