"""Lines of the growing files of a run folder, read strictly: what is damaged is never taken for a measurement."""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any, get_type_hints

from hpctrain.record.schema import (
    SCHEMA_VERSION,
    STEP_FIELDS_SINCE_2,
    STEP_SCHEMA_VERSION,
    NodeSample,
    StepRecord,
    ValidationRecord,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_LINE_BYTES = 1 << 20
"""Longer lines are damage: a step takes 450 bytes, a look at a node with 16 GPUs 2,000."""

INT_LIMIT = 2**63
"""Whole numbers are kept in 64 bits, with a sign."""

UNIX_TIME_LIMIT_S = 253402300800
"""The year 10000, which no calendar of Python reaches. A choice; no clock of a run shows it."""

_STEP_HINTS: dict[str, Any] = get_type_hints(StepRecord)
STEP_HINTS: dict[int, dict[str, Any]] = {
    1: {name: hint for name, hint in _STEP_HINTS.items() if name not in STEP_FIELDS_SINCE_2},
    STEP_SCHEMA_VERSION: _STEP_HINTS,
}
"""Fields of a line of ``steps.jsonl`` with their types, in the order in which they are written, by schema version."""
_VALIDATION_HINTS: dict[str, Any] = get_type_hints(ValidationRecord)


@functools.cache
def _node_sample() -> TypeAdapter[NodeSample]:
    from pydantic import TypeAdapter  # slow to import, and who submits reads no samples

    return TypeAdapter(NodeSample)


def parse_step(line: bytes) -> StepRecord:
    """One whole line of ``steps.jsonl``, strictly: every key once, no other key, each value of its JSON type and in range.

    What a line of an older version has not is None.

    Python's words ``NaN`` and ``Infinity`` are numbers here; whole numbers are 0 to 2^63 - 1.

    Raises:
        ValueError: the line is no step record of this schema; the text says why.
    """
    raw = _parse_object(line, tuple(STEP_HINTS))
    return StepRecord(**_checked_values(raw, STEP_HINTS[raw["schema_version"]]))


def parse_validation(line: bytes) -> ValidationRecord:
    """One whole line of ``validation.jsonl``, as strictly as ``parse_step``.

    Raises:
        ValueError: the line is no validation record of this schema; the text says why.
    """
    return ValidationRecord(**_checked_values(_parse_object(line, (SCHEMA_VERSION,)), _VALIDATION_HINTS))


def _checked_values(raw: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    if raw.keys() != hints.keys():
        different = ", ".join(sorted(raw.keys() ^ hints.keys()))
        raise ValueError(f"missing or unknown: {different}")
    return {name: _checked(name, value, hints[name]) for name, value in raw.items()}


def _parse_object(line: bytes, versions: tuple[int, ...]) -> dict[str, Any]:
    """A JSON object of one of these schema versions, each key once."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line):,} bytes in one line, at most {MAX_LINE_BYTES:,}")
    try:
        raw = json.loads(line.decode("utf-8"), object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError("brackets in brackets without end") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version not in versions or type(version) is not int:
        raise ValueError(f"schema_version={version}, this hpctrain reads {' and '.join(map(str, versions))}")
    return dict(raw)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands twice")
    return record


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value as its field's type."""
    if hint is int:
        if type(value) is int and 0 <= value < INT_LIMIT:
            return value
    elif hint is bool:
        if type(value) is bool:
            return value
    elif type(value) is float or (value is None and hint == float | None):
        return value
    elif type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{name}: a number of {len(str(value))} digits") from error
    raise ValueError(f"{name}={_shown(value)}: out of range or of the wrong type")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]} …"


def number_problem(values: dict[str, Any]) -> str:
    """Text if a number among the values cannot be kept: not finite, or a whole one beyond 64 bits; else empty.

    >>> number_problem({"exit_code": -9, "started_at_s": 1.5})
    ''
    >>> number_problem({"exit_code": 2**63})
    'exit_code=9223372036854775808 is out of range (64 bits)'
    """
    for name, value in values.items():
        if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
            return f"{name}={_shown(value)} is out of range (64 bits)"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name}={value} is no finite number"
    return ""


def parse_node_sample(line: bytes) -> NodeSample:
    """One whole line of ``nodes/<name>.jsonl``: each value of its JSON type, every number finite and within 64 bits.

    Raises:
        ValueError: the line is no look at a node of this schema; the text says why.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line):,} bytes in one line, at most {MAX_LINE_BYTES:,}")
    sample = _node_sample().validate_json(line, strict=True)
    if sample.schema_version != SCHEMA_VERSION:
        raise ValueError(f"schema_version={sample.schema_version}, this hpctrain reads {SCHEMA_VERSION}")
    sums = {f"sum of {name}": sum(getattr(gpu, name) for gpu in sample.gpus) for name in ("used_bytes", "total_bytes")}
    for values in (vars(sample), *map(vars, sample.gpus), sums):
        problem = number_problem(values)
        if problem:
            raise ValueError(problem)
    return sample
