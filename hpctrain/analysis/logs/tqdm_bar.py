"""A tqdm progress bar: position, clock times and rate, with or without metrics behind them."""

from __future__ import annotations

import re

from hpctrain.analysis.logs.events import Value
from hpctrain.analysis.logs.printed import clock_seconds, number

BAR = re.compile(
    r"(?P<step>\d+)/(?P<total>\d+|\?|inf) \[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]*)(?:, *(?P<rate>[\d.]+|\?) ?(?P<unit>it/s|s/it))?"
    r"(?:, ?(?P<metrics>[^\[\]]*))?\]"
)
"""A whole bar; ``metrics`` is the postfix (``loss=3.1, lr=1e-6``). A bar cut off before its closing bracket does not match."""
CUT_BAR = re.compile(r"(?P<step>\d+)/(?P<total>\d+) \[[^\]]*\Z")
_RATE_DIGITS = 4


def seconds_per_step(rate: str | None, unit: str | None) -> float | int | None:
    """Seconds of one step from ``41.36s/it`` or, as the reciprocal to four digits, from ``1.73it/s``; None for a bar without it.

    >>> seconds_per_step("41.36", "s/it"), seconds_per_step("1.73", "it/s"), seconds_per_step("?", "it/s")
    (41.36, 0.578, None)
    """
    value = None if rate is None else number(rate)
    if value is None or value <= 0:
        return None
    return value if unit == "s/it" else float(f"{1 / value:.{_RATE_DIGITS}g}")


def bar_fields(match: re.Match[str]) -> dict[str, Value]:
    """Position, total (None where the loop's length is unknown), elapsed seconds and seconds a step of a match of ``BAR``."""
    return {
        "step": int(match["step"]),
        "total": int(match["total"]) if match["total"].isdigit() else None,
        "elapsed_s": clock_seconds(match["elapsed"]),
        "time_per_step_s": seconds_per_step(match["rate"], match["unit"]),
    }
