"""Limits of a single value, stated in its type: ``Annotated[int, Limits(gt=0)]``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Greater than, greater or equal, less than, less or equal, shortest text; None: no such limit."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    min_length: int | None = None
    between: tuple[float, float] | None = None
    """Least and greatest value that hardware has; beyond them the number is in another unit."""
    unit: str = ""
    """Of ``between``, with an example, for the message."""
