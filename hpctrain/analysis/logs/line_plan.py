"""Reading a line at known places: lines of one shape differ in their digits only, so one of them is looked at closely."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from hpctrain.analysis.logs.events import AlikeLines, Value
from hpctrain.analysis.logs.printed import is_nan, number
from hpctrain.analysis.logs.record_table import Column

MAX_PLANS = 2000
"""Shapes of one format that are kept: the widths of a dozen numbers in all their combinations."""

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_INT = re.compile(r"[+-]?\d{1,15}")
_FLOAT = re.compile(r"[+-]?\d{1,15}(?:\.\d{0,20})?(?:[eE][+-]?\d\d?)?")
"""With other digits it is still a number that a float holds."""

_MAX_EXACT_DIGITS = 15
"""All numbers of so many digits are below 2^53."""
_DECIMAL = re.compile(rb"([+-]?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?)(\d\d?))?")
_TENS = 10 ** np.arange(_MAX_EXACT_DIGITS - 1, -1, -1, dtype=np.int64)
_POWERS = np.array([float(f"1e{power}") for power in range(23)])
"""Those that a float holds exactly."""

Reader = Callable[[str], Value]
Texts = npt.NDArray[np.uint8]
"""ASCII of shape (lines, characters); all lines have their digits at the same places, and are the same elsewhere."""


def float_or_none(text: str) -> float | None:
    """A rounded zero is missing."""
    return float(text) or None


def seconds_of_ms(text: str) -> float | None:
    """The exponent moves the decimal point; a division would round."""
    return float(text + "e-3") or None


_POWER_OF_READER: dict[Reader, int] = {float: 0, float_or_none: 0, seconds_of_ms: -3}
"""Readers of floats, and by which power of ten they multiply."""


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


def _integers(digits: Texts) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = (digits - ord("0")).astype(np.int64) @ _TENS[len(_TENS) - digits.shape[1] :]
    return values


def decimals(texts: Texts, power: int) -> npt.NDArray[np.float64] | None:
    """The numbers that ``float`` makes of the texts, times ten to ``power``; None where that takes more than one rounding.

    A mantissa below 2^53 and a power of ten up to 22 are exact floats, so that their quotient or product is the nearest float.
    Source: W. D. Clinger, How to Read Floating Point Numbers Accurately, PLDI 1990.
    """
    match = _DECIMAL.fullmatch(texts[0].tobytes())
    if match is None:
        return None
    places = [*range(*match.span(2)), *range(*match.span(3))]
    if len(places) > _MAX_EXACT_DIGITS:
        return None
    mantissas = _integers(texts[:, places]).astype(np.float64)
    power -= len(match[3] or b"")
    exponents = _integers(texts[:, slice(*match.span(5))]) if match[5] else np.zeros(1, dtype=np.int64)
    powers = power + (-exponents if match[4] == b"-" else exponents)
    if np.abs(powers).max() >= len(_POWERS):
        return None
    scales = _POWERS[np.abs(powers)]
    values: npt.NDArray[np.float64] = np.where(powers < 0, mantissas / scales, mantissas * scales)
    return np.negative(values) if match[1] == b"-" else values


def integers(texts: Texts) -> npt.NDArray[np.int64] | None:
    """The numbers that ``int`` makes of the texts; None for texts of another form."""
    match = _DECIMAL.fullmatch(texts[0].tobytes())
    if match is None or match.span(2) != (len(match[1]), texts.shape[1]) or len(match[2]) > _MAX_EXACT_DIGITS:
        return None
    values = _integers(texts[:, slice(*match.span(2))])
    return np.negative(values) if match[1] == b"-" else values


def _strings(texts: Texts) -> list[str]:
    text, width = texts.tobytes().decode("ascii"), texts.shape[1]
    return [text[start : start + width] for start in range(0, len(text), width)]


def _column(texts: Texts, read: Reader) -> Column:
    """What ``read`` gives for each text; None where one of them needs ``read`` itself."""
    if read is int:
        return integers(texts)
    if read is str:
        return _strings(texts)
    power = _POWER_OF_READER.get(read)
    values = None if power is None else decimals(texts, power)
    if values is None or (read is not float and not values.all()):
        return None
    return values


class LinePlan:
    """The places of all fields of one shape, and what is the same in all lines of that shape.

    >>> plan = LinePlan([Place("iteration", 1, 4, int), Place("loss", 5, 8, float)], {"grad_norm": None})
    >>> plan.fields("[ 12 2.5]")
    {'iteration': 12, 'loss': 2.5, 'grad_norm': None}
    """

    __slots__ = ("_constants", "_places", "_readers")

    def __init__(self, places: Iterable[Place], constants: Mapping[str, Value] | None = None) -> None:
        """``places`` in the order of the fields, ``constants`` after them; of two places of a field the last one counts."""
        self._places = [(place.field, slice(place.start, place.end), place.read) for place in places]
        self._constants = dict(constants or {})
        self._readers = [(name, read) for name, _, read in self._places]

    def fields(self, text: str) -> dict[str, Value]:
        """The fields of another line of the shape."""
        fields = {name: read(text[place]) for name, place, read in self._places}
        if self._constants:
            fields.update(self._constants)
        return fields

    def is_like(self, other: LinePlan) -> bool:
        """True if lines of both have the same fields, maybe at other places."""
        return self._readers == other._readers and self._constants == other._constants

    def columns(self, texts: Texts) -> dict[str, Column] | None:
        """The fields of many lines of the shape at once; None where one of them needs a look of its own."""
        columns: dict[str, Column] = {}
        for name, place, read in self._places:
            columns[name] = _column(texts[:, place], read)
            if columns[name] is None:
                return None
        return columns | self._constants


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
        self.last: LinePlan | None = None
        """By which the last line was read."""

    def add(self, text: str, plan: LinePlan) -> None:
        """Keep the plan for lines of the shape of ``text``."""
        if len(self._plans) < MAX_PLANS:
            self._plans[shape_of(text)] = plan

    def fields(self, text: str) -> dict[str, Value] | None:
        """The fields of a line of a known shape; None for any other."""
        self.last = plan = self._plans.get(shape_of(text))
        return None if plan is None else plan.fields(text)

    def knows(self, shape: bytes) -> bool:
        """True if lines of the shape have the same fields as the last line."""
        plan = self._plans.get(shape)
        return plan is not None and self.last is not None and plan.is_like(self.last)

    def columns(self, lines: AlikeLines) -> dict[str, Column] | None:
        """The fields of lines of known shapes that are alike; None where one of them needs a look of its own."""
        parts = []
        for places, texts in lines.groups:
            part = self._plans[texts[0].tobytes().translate(_DIGITS)].columns(texts)
            if part is None:
                return None
            parts.append((places, part))
        if len(parts) == 1:
            return parts[0][1]
        return {
            name: _merged([(places, part[name]) for places, part in parts], len(lines.numbers)) for name in parts[0][1]
        }


def _merged(parts: Sequence[tuple[npt.NDArray[np.intp], Column]], length: int) -> Column:
    """One column in the order of the lines."""
    first = parts[0][1]
    if isinstance(first, np.ndarray):
        values: npt.NDArray[Any] = np.empty(length, dtype=first.dtype)
        for places, part in parts:
            values[places] = cast(npt.NDArray[Any], part)
        return values
    if isinstance(first, list):
        texts = [""] * length
        for places, part in parts:
            for place, text in zip(places.tolist(), cast(list[str], part), strict=True):
                texts[place] = text
        return texts
    return first
