"""Plain values (mappings, lists, scalars) to a dataclass, by its type hints: no silent conversion, every problem at once.

pydantic would read them by the same hints. Importing it and building its schema takes a submission a fifth of a second, its core
alone a fiftieth; the types that the configuration uses are few, and each has its reader here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hpctrain.config.limits import Limits
from hpctrain.errors import ConfigError, Problem, known_names_hint

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
"""Takes a value and its dotted key to the typed value, or raises ConfigError."""

_RULES: dict[type, str] = {
    int: "must be a whole number",
    float: "must be a number",
    bool: "must be true or false",
    str: "must be text",
}
_MOST_COUNT = 2**41
"""A number beyond it was not meant to be a whole one."""
_NO_CHOICE = "is not one of the choices"
_QUOTED_NUMBER = re.compile(r"\s*[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*")
_COMPARISONS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("le", operator.le, "less than or equal to"),
    ("lt", operator.lt, "less than"),
    ("ge", operator.ge, "greater than or equal to"),
    ("gt", operator.gt, "greater than"),
)


def read_strictly(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of the dataclass ``cls``.

    Raises:
        ConfigError: unknown and missing keys, wrong types, values out of range; one problem a key, all of them at once.
    """
    hint: Any = cls
    found: T = _reader(hint)(values, "")
    return found


@functools.cache
def type_hints(cls: Any) -> dict[str, Any]:
    """Names and types of the fields of a dataclass, limits included."""
    return get_type_hints(cls, include_extras=True)


@functools.cache
def _reader(hint: Any) -> Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(*arguments)
    if origin in (UnionType, Union):
        return _any_of(arguments)
    if origin is Literal:
        return _choice(arguments)
    if origin is dict:
        return _mapping(_reader(arguments[0]), _reader(arguments[1]))
    if origin is tuple:
        return _list(_reader(arguments[0]))
    return _dataclass(hint) if dataclasses.is_dataclass(hint) else _scalar(hint)


def _dataclass(cls: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in type_hints(cls).items()}
    required = {
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read(value: Any, key: str) -> Any:
        if not isinstance(value, Mapping):
            fix = f"choose a group file or set one of its keys: {', '.join(readers)}"
            raise _error(key, "null" if value is None else str(value), "must stay a mapping", fix)
        found: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, reader in readers.items():
            if name in value:
                try:
                    found[name] = reader(value[name], _below(key, name))
                except ConfigError as error:
                    problems += error.problems
            elif name in required:
                problems.append(Problem(_below(key, name), "", "must be given", ""))
        for name, item in value.items():
            if name not in readers:
                place, hint = _below(key, _name_text(name)), known_names_hint(_name_text(name), readers)
                problems.append(Problem(place, str(item), "is no key of hpctrain", hint))
        if problems:
            raise ConfigError(problems)
        return cls(**found)

    return read


def _mapping(read_name: Reader, read_value: Reader) -> Reader:
    def read(value: Any, key: str) -> Any:
        if not isinstance(value, Mapping):
            raise _error(key, _shown(value), "must be a mapping of names to values")
        found: dict[Any, Any] = {}
        problems: list[Problem] = []
        for name, item in value.items():
            text = _name_text(name)
            try:
                typed_name = read_name(text, _below(key, text))
                found[typed_name] = read_value(item, _below(key, text))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return found

    return read


def _list(read_item: Reader) -> Reader:
    def read(value: Any, key: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _error(key, _shown(value), "must be a list")
        found: list[Any] = []
        problems: list[Problem] = []
        for index, item in enumerate(value):
            try:
                found.append(read_item(item, _below(key, str(index))))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return tuple(found)

    return read


def _any_of(hints: Sequence[Any]) -> Reader:
    """The first reader that takes the value; where none does, the first one's problem speaks for the key."""
    readers = [_reader(hint) for hint in hints if hint is not NoneType]
    takes_null = NoneType in hints

    def read(value: Any, key: str) -> Any:
        if value is None and takes_null:
            return None
        errors = []
        for reader in readers:
            try:
                return reader(value, key)
            except ConfigError as error:
                errors.append(error)
        raise errors[0]

    return read


def _choice(choices: Sequence[Any]) -> Reader:
    *others, last = map(repr, choices)
    known = f"{', '.join(others)} or {last}" if others else last

    def read(value: Any, key: str) -> Any:
        # By type, too: True equals 1.
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        raise _error(key, value if isinstance(value, str) and value else _shown(value), _NO_CHOICE, f"known: {known}")

    return read


def _limited(scalar: type, limits: Limits) -> Reader:
    read_scalar = _scalar(scalar, limits.unit)
    comparisons = [
        (holds, limit, words) for name, holds, words in _COMPARISONS if (limit := getattr(limits, name)) is not None
    ]

    def read(value: Any, key: str) -> Any:
        found = read_scalar(value, key)
        if limits.min_length is not None and len(found) < limits.min_length:
            raise _error(key, repr(value), "must not be empty")
        if scalar is float and not math.isfinite(found):
            raise _error(key, str(value), "must be a finite number", _in_unit(limits.unit))
        for holds, limit, words in comparisons:
            if not holds(found, limit):
                fix = _in_unit(limits.unit) or _nearest(scalar, limit, words)
                raise _error(key, str(value), f"must be {words} {limit}", fix)
        if limits.between is not None and not limits.between[0] <= found <= limits.between[1]:
            least, most = limits.between
            raise _error(key, str(value), f"must be from {least:,} to {most:,}", _in_unit(limits.unit))
        return found

    return read


def _nearest(scalar: type, limit: float, words: str) -> str:
    """The value next to a limit that is broken; empty: a float has none beside a limit that it may not reach."""
    if words.endswith("equal to"):
        return f"nearest: {limit}"
    return f"nearest: {limit + (1 if words == 'greater than' else -1)}" if scalar is int else ""


def _in_unit(unit: str) -> str:
    return f"it is in {unit}" if unit else ""


def _scalar(kind: type, unit: str = "") -> Reader:
    def read(value: Any, key: str) -> Any:
        if type(value) is kind and not (kind is str and _has_surrogates(value)):
            return value
        if kind is float and type(value) is int:
            return _as_float(value)
        raise _error(key, _shown(value), _RULES[kind], _scalar_fix(kind, value, unit))

    return read


def _scalar_fix(kind: type, value: Any, unit: str) -> str:
    if kind is bool or kind is str:
        return ""
    plain = {int: "write it in plain digits, for example 1", float: "write it in digits, for example 1.5"}[kind]
    if kind is int and isinstance(value, float) and abs(value) < _MOST_COUNT:
        plain = f"nearest: {round(value)}"
    if isinstance(value, str) and _QUOTED_NUMBER.fullmatch(value):
        plain = f"it is text: write {value.strip()} without quotes"
    return _in_unit(unit) if unit and not plain.startswith("it is text") else plain


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _has_surrogates(text: Any) -> bool:
    """Bytes of a name or variable that are no UTF-8: no file could hold them."""
    return not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text)


def _name_text(name: Any) -> str:
    """YAML's names may be numbers, true or null."""
    return name if isinstance(name, str) else json.dumps(name)


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, default=str)


def _error(key: str, value: str, rule: str, fix: str = "") -> ConfigError:
    return ConfigError((Problem(key, value, rule, fix),))
