"""Choices between numbers that work on numpy arrays too, element by element, so that one formula serves one plan and a search.

Typed for numbers. Where all of them are plain numbers numpy is not imported; nothing else of a formula needs a second form.
"""

from __future__ import annotations

from typing import Any, TypeVar

_PLAIN = (int, float)
Number = TypeVar("Number", int, float)


def larger(first: Number, second: Number) -> Number:
    """The larger of the two.

    >>> larger(0.0, -1.5)
    0.0
    """
    if isinstance(first, _PLAIN) and isinstance(second, _PLAIN):
        return max(first, second)
    return _numpy().maximum(first, second)


def smaller(first: Number, second: Number) -> Number:
    """The smaller of the two."""
    if isinstance(first, _PLAIN) and isinstance(second, _PLAIN):
        return min(first, second)
    return _numpy().minimum(first, second)


def chosen(condition: bool, if_true: Number, if_false: Number) -> Number:
    """One of the two by the condition; both are computed, so neither may divide by zero."""
    if isinstance(condition, bool):
        return if_true if condition else if_false
    return _numpy().where(condition, if_true, if_false)


def everywhere(condition: bool) -> bool:
    """Whether it holds for all elements.

    >>> everywhere(True)
    True
    """
    return condition if isinstance(condition, bool) else bool(_numpy().all(condition))


def somewhere(condition: bool) -> bool:
    """Whether it holds for some element."""
    return condition if isinstance(condition, bool) else bool(_numpy().any(condition))


def _numpy() -> Any:
    import numpy

    return numpy
