"""A comparison with a baseline as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import Any

from hpctrain.analysis.comparison import Change, Comparison, Pair
from hpctrain.analysis.name_lists import joined_names
from hpctrain.text_table import MISSING, aligned, printable
from hpctrain.units import gib

COMPARISON_SCHEMA_VERSION = 1

_MAX_PERCENT_RATIO = 1000.0
"""Beyond it nobody reads a percentage."""

LABELS = {
    "step_time_s": "step time",
    "tokens_per_s": "tokens/s",
    "wall_tokens_per_s": "wall tokens/s",
    "setup_time_s": "set-up time",
    "peak_memory_bytes": "peak memory",
    "final_loss": "final loss",
}


def render_comparison(comparison: Comparison) -> str:
    """A table a configuration, the configurations without one, and the verdict in the last line."""
    parts = [_pair_text(pair) for pair in comparison.pairs]
    for title, texts in (("Stopped working:", comparison.broken), ("Not compared:", comparison.not_compared)):
        if texts:
            parts.append("\n  ".join([title, *texts]))
    return printable("\n\n".join([*parts, verdict_text(comparison)]))


def verdict_text(comparison: Comparison) -> str:
    """The verdict with its rule in one sentence."""
    rule = f"step time more than {100 * comparison.tolerance:.3g} % longer and its 95 % interval above no change"
    slower, broken, compared = len(comparison.slower), len(comparison.broken), len(comparison.pairs)
    names = [pair.configuration for pair in comparison.not_judged]
    unjudged = f" Not judged, so nothing is known of {joined_names(names, 3)}: more steps or repeated runs are needed."
    unjudged = unjudged if names else ""
    if slower or broken:
        texts = [f"{slower} of {compared} configuration(s) slower ({rule})"] if slower else []
        texts += (
            [f"{broken} configuration(s) stopped working, or with more failed runs than the base"] if broken else []
        )
        return f"Regression: {'; '.join(texts)}.{unjudged}"
    unclear = sum(pair.step_time.judgement == "unclear" for pair in comparison.pairs)
    advice = f" Unclear in {unclear}: repeat runs, or make them longer, to narrow the interval." if unclear else ""
    judged = compared - len(names)
    return f"No regression shown in {judged} configuration(s) (it would be: {rule}).{advice}{unjudged}"


def comparison_json(comparison: Comparison) -> str:
    """All numbers with their units; ``exit_code`` as the command ends."""
    values = {
        "schema_version": COMPARISON_SCHEMA_VERSION,
        "exit_code": comparison.exit_code,
        "slower": [pair.configuration for pair in comparison.slower],
        "not_judged": [pair.configuration for pair in comparison.not_judged],
        **dataclasses.asdict(comparison, dict_factory=_finite_values),
    }
    return json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False)


def _finite_values(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """None for a ratio too large for a number, of which JSON has no spelling."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in pairs}


def change_cells(change: Change) -> list[str]:
    """Metric, base, now, change, interval, verdict."""
    ratio = MISSING if change.ratio is None else percent_change(change.ratio)
    interval = MISSING
    if change.low is not None and change.high is not None:
        interval = f"{percent_change(change.low)} to {percent_change(change.high)}"
    return [
        LABELS[change.metric],
        _value(change.base, change.unit),
        _value(change.new, change.unit),
        ratio,
        interval,
        change.verdict,
    ]


def percent_change(ratio: float) -> str:
    """A ratio as a signed change.

    >>> percent_change(1.25), percent_change(0.9), percent_change(1.0)
    ('+25.0 %', '-10.0 %', '+0.0 %')
    >>> percent_change(12345.0), percent_change(1e307), percent_change(float("inf"))
    ('x 1.23e+04', 'x 1e+307', 'above x 1.8e+308')
    """
    if ratio < _MAX_PERCENT_RATIO:
        return f"{100 * (ratio - 1):+.1f} %"
    return f"x {ratio:.3g}" if math.isfinite(ratio) else f"above x {sys.float_info.max:.3g}"


def _pair_text(pair: Pair) -> str:
    header = ["METRIC", "BASE", "NOW", "CHANGE", "95 % INTERVAL", "VERDICT"]
    noises: dict[str, list[str]] = {}
    for change in pair.changes:
        noises.setdefault(change.noise, []).append(LABELS[change.metric])
    return "\n".join(
        [
            pair.configuration,
            f"base: {joined_names(pair.base_runs, 2)}; now: {joined_names(pair.new_runs, 2)}",
            aligned([header, *map(change_cells, pair.changes)]),
            *(f"  {', '.join(metrics)}: {noise}" for noise, metrics in noises.items()),
        ]
    )


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    return gib(value) if unit == "B" else f"{value:,.4g} {unit}".rstrip()
