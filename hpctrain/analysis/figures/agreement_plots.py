"""Figures of predicted against measured values, a mark a run: on the line the prediction is right."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    STYLE,
    VERMILLION,
    WIDTH_IN,
    message_figure,
    where,
)
from hpctrain.units import GIB

BAND = 0.1
"""Half-width of the grey band, a share of the measured value. A guide for the eye, the same in all figures: no promise of the
plan, whose own range differs from run to run."""
_MARKS = (("o", BLUE), ("s", ORANGE), ("^", GREEN), ("D", VERMILLION), ("v", PURPLE))


@dataclass(frozen=True)
class _Quantity:
    """What is compared, and how the figure calls it."""

    title: str
    measured: str
    """Column of the frame ``runs``, like the next two."""
    predicted: str
    error: str
    measured_words: str
    predicted_words: str
    scale: float = 1.0


_MEMORY = _Quantity(
    "Predicted against measured memory of one rank",
    "peak_memory_bytes",
    "predicted_memory_bytes",
    "memory_error",
    "measured peak of rank 0 (GiB)",
    "predicted by the plan (GiB)",
    GIB,
)
_STEP_TIME = _Quantity(
    "Predicted against measured step time",
    "step_time_s",
    "predicted_step_time_s",
    "prediction_error",
    "measured, median of the steady steps (s)",
    "predicted by the plan (s)",
)


def plot_memory_agreement(runs: pd.DataFrame) -> Figure:
    """Peak memory of one rank of valid runs: the allocator's on a GPU, the resident size on the CPU.

    Args:
        runs: frame ``runs``; those without a prediction or a measurement are left out.
    """
    words = {"cuda": "GPU: allocator's peak", "cpu": "CPU: resident size"}
    groups = runs["device"].map(words).fillna("device not known")
    return _plot(_MEMORY, runs, groups)


def plot_step_time_agreement(runs: pd.DataFrame) -> Figure:
    """Step time of valid runs, a mark by hardware.

    Args:
        runs: frame ``runs``; those without a prediction or a measurement are left out.
    """
    return _plot(_STEP_TIME, runs, runs["hardware"].fillna("hardware not known"))


def _plot(what: _Quantity, runs: pd.DataFrame, groups: pd.Series) -> Figure:
    table = pd.DataFrame(
        {
            "predicted": runs[what.predicted].astype("float64") / what.scale,
            "measured": runs[what.measured].astype("float64") / what.scale,
            "error": runs[what.error].astype("float64"),
            "group": groups,
        }
    )
    valid = runs["valid"].fillna(False).astype(bool)
    known = table[valid & (table["predicted"] > 0) & (table["measured"] > 0)]
    if known.empty:
        return message_figure(what.title, "no valid run for which both are known")
    error = known["error"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN / 2 + 0.6, 4.5), layout="constrained")
        axis = figure.subplots()
        spread = f", from {error.min():+.1%} to {error.max():+.1%}" if len(error) > 1 else ""
        axis.set_title(
            f"{what.title}\n{where(runs.loc[known.index])}\nmedian signed error {error.median():+.1%}{spread}"
        )
        for number, (group, part) in enumerate(known.groupby("group", sort=True)):
            marker, colour = _MARKS[number % len(_MARKS)]
            x, y = part["measured"].to_numpy(), part["predicted"].to_numpy()
            axis.plot(x, y, ls="", marker=marker, ms=5, color=colour, mec="white", mew=0.4, label=group, zorder=3)
        values = known[["predicted", "measured"]].to_numpy()
        ends = np.array([values.min() / 1.5, values.max() * 1.5])
        axis.plot(ends, ends, color=BLACK, lw=0.9, label="predicted = measured")
        within = f"within {BAND:.0%}"
        axis.fill_between(ends, (1 - BAND) * ends, (1 + BAND) * ends, color=GREY, alpha=0.25, lw=0, label=within)
        axis.set(xscale="log", yscale="log", xlim=tuple(ends), ylim=tuple(ends))
        axis.set(xlabel=what.measured_words, ylabel=what.predicted_words)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
            side.set_major_formatter(lambda value, _: f"{value:g}")
            side.set_minor_formatter(NullFormatter())
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.13), ncols=2)
        return figure
