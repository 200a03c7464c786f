"""The Python that the ranks use."""

from __future__ import annotations

import sys
from pathlib import Path


def interpreter() -> str:
    """The absolute interpreter of the submitting process (of its virtual environment, not what a link points to)."""
    return str(Path(sys.executable).absolute())
