"""pydantic-core's validator for the configuration's dataclasses, built from their type hints.

pydantic itself would build the same from the same hints; importing it and letting it do so takes a fifth of a second, which is
half of what Hydra takes to compose. The types that the schemas use are few, so they are mapped here one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaValidator, core_schema

_SCALARS: dict[Any, Callable[..., CoreSchema]] = {
    int: core_schema.int_schema,
    float: core_schema.float_schema,
    str: core_schema.str_schema,
    bool: core_schema.bool_schema,
}


def config_validator(root: type[Any]) -> SchemaValidator:
    """A validator of JSON text into the dataclass ``root``: unknown keys are errors, and every error is reported."""
    return SchemaValidator(_dataclass_schema(root))


def _dataclass_schema(cls: type[Any]) -> CoreSchema:
    hints = get_type_hints(cls, include_extras=True)
    fields = []
    for field in dataclasses.fields(cls):
        schema = _schema(hints[field.name])
        if field.default is not dataclasses.MISSING:
            schema = core_schema.with_default_schema(schema, default=field.default)
        elif field.default_factory is not dataclasses.MISSING:
            schema = core_schema.with_default_schema(schema, default_factory=field.default_factory)
        fields.append(core_schema.dataclass_field(field.name, schema))
    arguments = core_schema.dataclass_args_schema(cls.__name__, fields, extra_behavior="forbid")
    return core_schema.dataclass_schema(cls, arguments, [field.name for field in dataclasses.fields(cls)])


def _schema(hint: Any) -> CoreSchema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        scalar, limits = arguments
        return _SCALARS[scalar](**{name: limit for name, limit in vars(limits).items() if limit is not None})
    if origin in (UnionType, Union):
        parts = [part for part in arguments if part is not NoneType]
        schema = _schema(parts[0]) if len(parts) == 1 else core_schema.union_schema([_schema(part) for part in parts])
        return core_schema.nullable_schema(schema) if NoneType in arguments else schema
    if origin is Literal:
        return core_schema.literal_schema(list(arguments))
    if origin is dict:
        return core_schema.dict_schema(_schema(arguments[0]), _schema(arguments[1]))
    if origin is tuple:
        return core_schema.tuple_variable_schema(_schema(arguments[0]))
    if dataclasses.is_dataclass(hint):
        return _dataclass_schema(hint)  # type: ignore[arg-type]
    return _SCALARS[hint]()
