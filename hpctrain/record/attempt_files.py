"""Which starts of a run left a file."""

from __future__ import annotations

import os
import re

from hpctrain.errors import RecordError
from hpctrain.record.paths import RunPaths

_ATTEMPT_FILE = re.compile(r"(?P<number>\d+)(\.failure)?\.json")


def attempt_numbers(run: RunPaths) -> list[int]:
    """Numbers of all starts that left a file, in order.

    Raises:
        RecordError: the folder cannot be listed.
    """
    try:
        names = os.listdir(run.attempts)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{run.attempts}: {error.strerror}") from error
    return sorted({int(match["number"]) for name in names if (match := _ATTEMPT_FILE.fullmatch(name))})
