"""The figures at the head of the report's page: what a reader wants to know first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from hpctrain.analysis.run_row import counted_ranks, rank_word
from hpctrain.analysis.scaling import KIND_KEYS, scaling_efficiency


@dataclass(frozen=True)
class Card:
    """One figure with its unit, and which run it is of."""

    label: str
    value: str
    unit: str
    note: str


def counted_states(runs: pd.DataFrame) -> str:
    """How many runs are in which state, in words.

    >>> counted_states(pd.DataFrame({"state": ["failed", "completed", "completed"]}))
    '2 completed, 1 failed'
    """
    counts = runs["state"].value_counts(sort=False).sort_index()
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs"


def cards(runs: pd.DataFrame) -> Iterator[Card]:
    """Those figures for which the runs have values."""
    valid = runs[runs["valid"].astype(bool)]
    yield Card("Runs", str(len(runs)), "", f"{len(valid)} valid for comparison")
    shown: set[str] = set()
    for label, column, unit, pattern, scale in (
        ("Fastest run", "tokens_per_s", "tokens/s", "{:,.0f}", 1.0),
        ("Fastest per {rank}", "tokens_per_s_per_gpu", "tokens/s", "{:,.0f}", 1.0),
        ("Highest MFU", "mfu", "%", "{:.1f}", 100.0),
    ):
        known = valid[valid[column].notna()]
        if len(known):
            best = known.iloc[int(known[column].astype(float).argmax())]
            if column == "tokens_per_s_per_gpu" and str(best["run"]) in shown:
                continue  # the fastest run is the fastest per GPU too: said once
            shown.add(str(best["run"]))
            label = label.format(rank=rank_word(best["device"]))
            yield Card(label, pattern.format(scale * float(best[column])), unit, str(best["run"]))
    yield from _scaling_card(valid)
    lost = runs[runs["lost_time_share"].notna()]
    if len(lost):
        worst = lost.iloc[int(lost["lost_time_share"].astype(float).argmax())]
        median = 100 * float(lost["lost_time_share"].median())
        note = f"median; most {100 * float(worst['lost_time_share']):.1f} %: {worst['run']}"
        yield Card("Time not in steps", f"{median:.1f}", "%", note)
    errors = valid["prediction_error"].dropna().abs()
    if len(errors):
        yield Card(
            "Plan off by", f"{100 * float(errors.median()):.1f}", "%", f"step time, absolute, median of {len(errors)}"
        )
    hours = runs["gpu_hours"].astype("Float64").groupby(runs["device"].map(rank_word)).sum(min_count=1).dropna()
    for word, total in hours.items():  # hours of GPUs and of ranks on the CPU are no sum
        yield Card("Cost", f"{float(total):,.4g}", f"{word}-hours", "all attempts")


def _scaling_card(valid: pd.DataFrame) -> Iterator[Card]:
    """Efficiency of the largest size of the first kind that has one."""
    for kind in KIND_KEYS:
        points = scaling_efficiency(valid, kind).points
        points = points[points["efficiency"].notna() & (points["gpus"] > points["base_gpus"])]
        if len(points):
            largest = points.iloc[int(points["gpus"].astype(int).argmax())]
            note = f"{largest['gpus']} against {counted_ranks(largest['base_gpus'], largest['device'])}"
            yield Card(f"{kind.capitalize()} scaling", f"{100 * float(largest['efficiency']):.1f}", "%", note)
            return
