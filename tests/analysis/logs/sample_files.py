"""Where the samples are, and what of a reading must equal what a sample expects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from hpctrain.analysis.logs.log_json import write_log_json
from hpctrain.analysis.logs.log_reading import LogReading

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY.parent / "shared" / "logs"
OWN = REPOSITORY / "tests" / "data" / "logs"
SAMPLES = sorted(OWN.glob("*.json")) + sorted(SHARED.glob("*/*.json"))
"""Ours always; those of the collection where it lies beside the repository."""

RECORD_TOLERANCE = 1e-6
SUMMARY_TOLERANCE = 1e-3
"""Relative; derived values of the collection are rounded to three or four digits."""
NO_VALUES = ("rule", "tolerance", "notes", "flags", "split_records")
"""Of ``expected``: words, or checked by themselves."""


def log_json(reading: LogReading) -> str:
    """What ``read-log --json`` prints."""
    file = StringIO()
    write_log_json(reading, file)
    return file.getvalue()


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def log_of(sample: Path) -> Path:
    return sample.with_name(str(json.loads(sample.read_text(encoding="utf-8"))["file"]))


def differences(expected: Any, found: Any, path: str = "", tolerances: dict[str, float] | None = None) -> Iterator[str]:
    """Each place where ``found`` is not what is expected; keys that nobody expects are passed over, None may be absent."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            yield f"{path}: expected {expected}, found {found}"
            return
        for key, value in expected.items():
            yield from differences(value, found.get(key), f"{path}.{key}", tolerances)
    elif isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            yield f"{path}: expected {expected}, found {found}"
            return
        for place, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}[{place}]", tolerances)
    elif isinstance(expected, bool) or not isinstance(expected, int | float):
        if found is not expected and found != expected:
            yield f"{path}: expected {expected!r}, found {found!r}"
    else:
        absolute = (tolerances or {}).get(path.rpartition(".")[2], 0.0)
        relative = SUMMARY_TOLERANCE if path.startswith(".summary") else RECORD_TOLERANCE
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or abs(found - expected) > max(absolute * 1.0001, relative * abs(expected)):
            yield f"{path}: expected {expected!r}, found {found!r}"
