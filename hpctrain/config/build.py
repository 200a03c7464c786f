"""Plain values (as decoded from YAML) to the typed configuration: strictly, with every problem found at once."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from pydantic_core import ErrorDetails, SchemaValidator, ValidationError

from hpctrain.config.schema import Config
from hpctrain.config.strict_schema import config_validator
from hpctrain.errors import ConfigError, Problem, known_names_hint

_SCALAR_RULES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping of names to values",
    "tuple_type": "must be a list",
    "missing": "must be given",
}


def build_config(values: Mapping[str, Any]) -> Config:
    """The typed configuration.

    Args:
        values: fully resolved, made of dicts, lists and scalars only.

    Raises:
        ConfigError: unknown keys (with the nearest known ones), wrong types, values out of range; all of them at once.
    """
    # JSON mode is the one in which pydantic-core is strict about scalars and still takes a mapping for a dataclass.
    try:
        config: Config = _validator().validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        # A union reports one error for each of its types: the first one speaks for the key.
        by_key: dict[str, Problem] = {}
        for details in error.errors(include_url=False):
            problem = _problem(details)
            by_key.setdefault(problem.key, problem)
        raise ConfigError(by_key.values()) from None
    return config


@functools.cache
def _validator() -> SchemaValidator:
    return config_validator(Config)


@functools.cache
def config_fields(section: tuple[str, ...] = ()) -> dict[str, Any]:
    """Names and types of the keys of one section, ``()`` for the top level.

    >>> "num_layers" in config_fields(("model",))
    True
    """
    cls: Any = Config
    for name in section:
        cls = get_type_hints(cls)[name]
    return get_type_hints(cls, include_extras=True) if dataclasses.is_dataclass(cls) else {}


def takes_text(key: str) -> bool:
    """Whether a dotted key takes text and no number.

    >>> takes_text("cluster.account"), takes_text("nodes"), takes_text("cluster.extra.x"), takes_text("no.such")
    (True, False, False, False)
    """
    section, _, name = key.rpartition(".")
    try:
        hint = config_fields(tuple(section.split(".")) if section else ())[name]
    except (KeyError, TypeError):
        return False
    alternatives = {str in get_args(part) or part is str for part in (hint, *get_args(hint))}
    return True in alternatives and not {int, float}.intersection(_plain_types(hint))


def _plain_types(hint: Any) -> set[Any]:
    """The types at the bottom of unions and annotations."""
    parts = get_args(hint)
    return (
        {hint}
        if not parts
        else set().union(*(_plain_types(part) for part in parts if isinstance(part, type) or get_args(part)))
    )


def _problem(details: ErrorDetails) -> Problem:
    """pydantic's finding in our form: key with value, rule, nearest fix."""
    location = [str(part) for part in details["loc"]]
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "unexpected_keyword_argument":
        known = config_fields(tuple(location[:-1]))
        return Problem(".".join(location), str(value), "is no key of hpctrain", known_names_hint(location[-1], known))
    key = ".".join(_without_union_tags(location))
    if kind == "dataclass_type":
        keys = ", ".join(config_fields(tuple(location)))
        shown = "null" if value is None else str(value)
        return Problem(key, shown, "must stay a mapping", f"choose a group file or set one of its keys: {keys}")
    if kind == "literal_error":
        return Problem(key, str(value), "is not one of the choices", f"known: {context['expected']}")
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        fix = f"nearest: {context['gt'] + 1}" if kind == "greater_than" and isinstance(context["gt"], int) else ""
        return Problem(key, str(value), details["msg"].replace("Input should", "must"), fix)
    shown = "" if kind == "missing" else f"{value!r}" if isinstance(value, str) else json.dumps(value)
    fix = "write it in plain digits, for example 1" if kind in ("int_type", "int_from_float") else ""
    return Problem(key, shown, _SCALAR_RULES.get(kind, details["msg"]), fix)


def _without_union_tags(location: list[str]) -> list[str]:
    """pydantic appends the tried type (``str``, ``int``) to the location inside a union."""
    hint: Any = Config
    for depth, name in enumerate(location):
        if dataclasses.is_dataclass(hint):
            hint = get_type_hints(hint).get(name)
        elif get_origin(hint) in (dict, tuple):
            hint = get_args(hint)[-1 if get_origin(hint) is dict else 0]
        else:
            return location[:depth]
    return location
