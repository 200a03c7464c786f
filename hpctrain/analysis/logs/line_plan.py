"""Reading a line at known places: lines of one shape differ in their digits only, so one of them is looked at closely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.analysis.logs.events import Value

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)

PlaceKind = Literal["int", "float", "ms", "rate", "text"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the value of a field stands in the text."""

    field: str
    start: int
    end: int
    kind: PlaceKind
    """``ms`` become seconds, a ``rate`` of zero is missing."""


def shape_of(text: str) -> bytes | None:
    """The text with a 0 for every digit; None if it holds other than ASCII.

    >>> shape_of("loss: 2.37"), shape_of("loss: 9.01")
    (b'loss: 0.00', b'loss: 0.00')
    """
    try:
        return text.encode("ascii").translate(_DIGITS)
    except UnicodeEncodeError:
        return None


class LinePlan:
    """The places of all fields of one shape, and what is the same in all lines of that shape.

    >>> plan = LinePlan([Place("time_per_iteration_s", 6, 11, "ms")], {"loss": None})
    >>> plan.fields("time: 123.4 |")
    {'time_per_iteration_s': 0.1234, 'loss': None}
    """

    __slots__ = ("_floats", "_ints", "_ms", "_rates", "_template", "_texts")

    def __init__(self, places: list[Place], constants: dict[str, Value]) -> None:
        """``places`` in the order of the fields, ``constants`` after them."""
        self._template: dict[str, Value] = {**{place.field: None for place in places}, **constants}
        by_kind: dict[str, list[tuple[str, int, int]]] = {kind: [] for kind in ("int", "float", "ms", "rate", "text")}
        for place in places:
            by_kind[place.kind].append((place.field, place.start, place.end))
        self._ints, self._floats, self._ms = by_kind["int"], by_kind["float"], by_kind["ms"]
        self._rates, self._texts = by_kind["rate"], by_kind["text"]

    def fields(self, text: str) -> dict[str, Value]:
        """The fields of another line of the shape."""
        fields = self._template.copy()
        for name, start, end in self._ints:
            fields[name] = int(text[start:end])
        for name, start, end in self._floats:
            fields[name] = float(text[start:end])
        for name, start, end in self._ms:
            # The exponent moves the decimal point; a division would round.
            fields[name] = float(text[start:end] + "e-3") or None
        for name, start, end in self._rates:
            fields[name] = float(text[start:end]) or None
        for name, start, end in self._texts:
            fields[name] = text[start:end]
        return fields
