"""Reading a line at known places: lines of one shape differ in their digits only, so one of them is looked at closely."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hpctrain.analysis.logs.events import Value
from hpctrain.analysis.logs.printed import is_nan, number

MAX_PLANS = 2000
"""Shapes of one format that are kept: the widths of a dozen numbers in all their combinations."""

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_INT = re.compile(r"[+-]?\d{1,15}")
_FLOAT = re.compile(r"[+-]?\d{1,15}(?:\.\d{0,20})?(?:[eE][+-]?\d\d?)?")
"""With other digits it is still a number that a float holds."""

Reader = Callable[[str], Value]


class Place(NamedTuple):
    """Where the value of a field stands in the text, and what makes the value of it."""

    field: str
    start: int
    end: int
    read: Reader


def number_reader(text: str) -> Reader | None:
    """What reads this plain number, whatever its digits; None for all other text.

    >>> number_reader("12"), number_reader("-1.5e-06"), number_reader("nan")
    (<class 'int'>, <class 'float'>, None)
    """
    if _INT.fullmatch(text):
        return int
    return float if _FLOAT.fullmatch(text) else None


def shape_of(text: str) -> bytes:
    """The text with a 0 for every digit.

    >>> shape_of("loss: 2.37"), shape_of("loss: 9.01")
    (b'loss: 0.00', b'loss: 0.00')
    """
    return text.encode("utf-8", "surrogatepass").translate(_DIGITS)


class LinePlan:
    """The places of all fields of one shape, and what is the same in all lines of that shape.

    >>> plan = LinePlan([Place("iteration", 1, 4, int), Place("loss", 5, 8, float)], {"grad_norm": None})
    >>> plan.fields("[ 12 2.5]")
    {'iteration': 12, 'loss': 2.5, 'grad_norm': None}
    """

    __slots__ = ("_constants", "_places")

    def __init__(self, places: Iterable[Place], constants: Mapping[str, Value] | None = None) -> None:
        """``places`` in the order of the fields, ``constants`` after them; of two places of a field the last one counts."""
        self._places = [(place.field, slice(place.start, place.end), place.read) for place in places]
        self._constants = dict(constants or {})

    def fields(self, text: str) -> dict[str, Value]:
        """The fields of another line of the shape."""
        fields = {name: read(text[place]) for name, place, read in self._places}
        if self._constants:
            fields.update(self._constants)
        return fields


class PlanDraft:
    """Collects the places of one line while it is read for the first time.

    >>> draft = PlanDraft("loss 2.5 norm nan")
    >>> draft.put_number("loss", (5, 8))
    >>> draft.put_number("grad_norm", (14, 17))
    >>> draft.plan().fields("loss 9.1 norm nan")
    {'loss': 9.1, 'grad_norm': None, 'grad_norm_is_nan': True}
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: list[Place] = []
        self._constants: dict[str, Value] = {}

    def put(self, field: str, span: tuple[int, int], read: Reader) -> None:
        """A field whose reader makes a value of any text."""
        self._places.append(Place(field, *span, read))

    def put_number(self, field: str, span: tuple[int, int]) -> None:
        """A number, or NaN and infinity, which become None with ``FIELD_is_nan`` True."""
        text = self._text[slice(*span)]
        if is_nan(text):
            self.put_constants({field: None, f"{field}_is_nan": True})
        else:
            self.put(field, span, number_reader(text) or number)

    def put_constants(self, fields: Mapping[str, Value]) -> None:
        """What is the same in all lines of the shape."""
        self._constants.update(fields)

    def plan(self) -> LinePlan:
        """The plan for all lines of the shape."""
        return LinePlan(self._places, self._constants)


class LinePlans:
    """Plans by the shape of their lines; of more than ``MAX_PLANS`` shapes the first ones are kept.

    >>> plans = LinePlans()
    >>> plans.add("loss 2.5", LinePlan([Place("loss", 5, 8, float)]))
    >>> plans.fields("loss 9.1"), plans.fields("loss 10.1")
    ({'loss': 9.1}, None)
    """

    def __init__(self) -> None:
        self._plans: dict[bytes, LinePlan] = {}

    def add(self, text: str, plan: LinePlan) -> None:
        """Keep the plan for lines of the shape of ``text``."""
        if len(self._plans) < MAX_PLANS:
            self._plans[shape_of(text)] = plan

    def fields(self, text: str) -> dict[str, Value] | None:
        """The fields of a line of a known shape; None for any other."""
        plan = self._plans.get(shape_of(text))
        return None if plan is None else plan.fields(text)
