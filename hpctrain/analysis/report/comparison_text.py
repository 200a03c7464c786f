"""A comparison with a baseline as text and as JSON."""

from __future__ import annotations

import dataclasses
import json

from hpctrain.analysis.comparison import STEP_TIME, Change, Comparison, Pair
from hpctrain.analysis.name_lists import joined_names
from hpctrain.analysis.report.run_columns import MISSING
from hpctrain.analysis.report.text_table import aligned, printable
from hpctrain.units import gib

COMPARISON_SCHEMA_VERSION = 1

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
    if slower or broken:
        texts = [f"{slower} of {compared} configuration(s) slower ({rule})"] if slower else []
        texts += [f"{broken} configuration(s) stopped working"] if broken else []
        return f"Regression: {'; '.join(texts)}."
    unclear = sum(
        change.metric == STEP_TIME.key and change.judgement in ("unclear", "not judged")
        for pair in comparison.pairs
        for change in pair.changes
    )
    advice = f" Unclear in {unclear}: repeat runs, or make them longer, to narrow the interval." if unclear else ""
    return f"No regression shown in {compared} configuration(s) (it would be: {rule}).{advice}"


def comparison_json(comparison: Comparison) -> str:
    """All numbers with their units; ``exit_code`` as the command ends."""
    values = {
        "schema_version": COMPARISON_SCHEMA_VERSION,
        "exit_code": comparison.exit_code,
        "slower": [pair.configuration for pair in comparison.slower],
        **dataclasses.asdict(comparison),
    }
    return json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False)


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
    """
    return f"{100 * (ratio - 1):+.1f} %"


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
