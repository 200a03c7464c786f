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
"""Half-width of the grey band, as a share of the measured value."""
_MARKS = (("o", BLUE), ("s", ORANGE), ("^", GREEN), ("D", VERMILLION), ("v", PURPLE))


@dataclass(frozen=True)
class _Quantity:
    """What is compared, and how the figure calls it."""

    title: str
    measured: str
    predicted: str
    missing: str
    scale: float = 1.0


_MEMORY = _Quantity(
    "Predicted against measured memory of one rank",
    "measured peak of rank 0 (GiB)",
    "predicted by the plan (GiB)",
    "no run with a predicted and a measured peak",
    GIB,
)
_STEP_TIME = _Quantity(
    "Predicted against measured step time",
    "measured, median of the steady steps (s)",
    "predicted by the plan (s)",
    "no run with a predicted and a measured step time",
)


def plot_memory_agreement(runs: pd.DataFrame) -> Figure:
    """Peak memory of one rank: the allocator's on a GPU, the resident size on the CPU.

    Args:
        runs: frame ``runs``; those without a prediction or a measurement are left out.
    """
    words = {"cuda": "GPU: allocator's peak", "cpu": "CPU: resident size"}
    groups = runs["device"].map(words).fillna("device not known")
    return _plot(_MEMORY, runs, runs["predicted_memory_bytes"], runs["peak_memory_bytes"], groups)


def plot_step_time_agreement(runs: pd.DataFrame) -> Figure:
    """Step time of valid runs, a mark by hardware.

    Args:
        runs: frame ``runs``; those without a prediction or a measurement are left out.
    """
    measured = runs["step_time_s"].where(runs["valid"].fillna(False).astype(bool))
    groups = runs["hardware"].fillna("hardware not known")
    return _plot(_STEP_TIME, runs, runs["predicted_step_time_s"], measured, groups)


def _plot(what: _Quantity, runs: pd.DataFrame, predicted: pd.Series, measured: pd.Series, groups: pd.Series) -> Figure:
    table = pd.DataFrame(
        {
            "predicted": predicted.astype("float64") / what.scale,
            "measured": measured.astype("float64") / what.scale,
            "group": groups,
        }
    )
    known = table[(table["predicted"] > 0) & (table["measured"] > 0)]
    if known.empty:
        return message_figure(what.title, what.missing)
    error = known["predicted"] / known["measured"] - 1
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN / 2 + 0.6, 4.5), layout="constrained")
        axis = figure.subplots()
        spread = f", from {error.min():+.1%} to {error.max():+.1%}" if len(error) > 1 else ""
        axis.set_title(f"{what.title}\n{where(runs.loc[known.index])}\nmedian error {error.median():+.1%}{spread}")
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
        axis.set(xlabel=what.measured, ylabel=what.predicted)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
            side.set_major_formatter(lambda value, _: f"{value:g}")
            side.set_minor_formatter(NullFormatter())
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.13), ncols=2)
        return figure
