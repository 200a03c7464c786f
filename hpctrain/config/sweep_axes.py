"""The axes of a sweep, and the values among them that can be set without composing anew.

Hydra takes a tenth of a second for one point. Where an override only sets a value, and nothing else in the configuration looks
at that value, setting it in what Hydra composed for another point gives the same; a test holds this point by point.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import QuotedString

_PLAIN_WORD = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class PlainValue(NamedTuple):
    """A scalar that means the same wherever it stands."""

    value: str | int | float | bool | None


class Axis(NamedTuple):
    """What one typed override stands for: one text, or in a sweep one for each value."""

    key: str
    texts: tuple[str, ...]
    values: tuple[PlainValue, ...] = ()
    """The same, where all of them are plain."""


def plain_values(elements: Sequence[Any]) -> tuple[PlainValue, ...]:
    """Hydra's parsed elements as plain values; empty if one of them is none.

    >>> plain_values([1, 2.5, True, None, "abc"])[3:]
    (PlainValue(value=None), PlainValue(value='abc'))
    >>> plain_values([1, [2]]), plain_values(["${nodes}"]), plain_values([math.nan])
    ((), (), ())
    """
    found = [_plain_value(element) for element in elements]
    return tuple(value for value in found if value is not None) if None not in found else ()


def _plain_value(element: Any) -> PlainValue | None:
    match element:
        case None | bool() | int():
            return PlainValue(element)
        case float():
            return PlainValue(element) if math.isfinite(element) else None
        case QuotedString():
            return (
                None if "$" in element.text or "\\" in element.text or "?" in element.text else PlainValue(element.text)
            )
        case str():
            return PlainValue(element) if _PLAIN_WORD.fullmatch(element) else None
    return None


def settable_axes(axes: Sequence[Axis], groups: Collection[str]) -> tuple[int, ...]:
    """Which axes only set a value: several plain values of a key that no other override touches."""
    keys = [axis.key for axis in axes]
    return tuple(
        index
        for index, axis in enumerate(axes)
        if len(axis.texts) > 1
        and axis.values
        and axis.key not in groups
        and "@" not in axis.key
        and not any(_touch(axis.key, other) for place, other in enumerate(keys) if place != index)
    )


def _touch(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def refers_to_others(values: Any) -> bool:
    """Whether an unresolved configuration has interpolations."""
    if isinstance(values, Mapping):
        return any(refers_to_others(value) for value in values.values())
    if isinstance(values, (list, tuple)):
        return any(refers_to_others(value) for value in values)
    return isinstance(values, str) and "${" in values


def can_be_set(values: Mapping[str, Any], key: str) -> bool:
    """Whether everything above a dotted key is a mapping."""
    section: Any = values
    for name in key.split(".")[:-1]:
        section = section.get(name) if isinstance(section, Mapping) else None
    return isinstance(section, Mapping)


def with_value(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The values with one changed; what is not on the way to it is shared.

    >>> with_value({"a": {"b": 1, "c": 2}, "d": {}}, "a.b", 3)
    {'a': {'b': 3, 'c': 2}, 'd': {}}
    """
    name, _, rest = key.partition(".")
    return {**values, name: with_value(values[name], rest, value) if rest else value}
