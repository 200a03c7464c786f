"""Figures of goodput: wall-clock time by attempts, and the share of it that stays on the curve."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpctrain.analysis.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    SKY,
    STYLE,
    VERMILLION,
    WIDTH_IN,
    message_figure,
    set_title,
    time_unit,
    where,
)
from hpctrain.analysis.goodput import PARTS, Goodput
from hpctrain.analysis.name_lists import short_name

MAX_ROWS = 40
"""Rows of one figure; more are not legible on a page."""
_LOOKS = {
    "setup_s": (SKY, "..."),
    "curve_s": (BLUE, ""),
    "between_s": (ORANGE, "///"),
    "undone_s": (VERMILLION, "xxx"),
    "tail_s": (GREY, "\\\\\\"),
}
"""Colour and hatch of each part: the hatch tells them apart in greyscale."""


def plot_wall_clock(result: Goodput, runs: pd.DataFrame) -> Figure:
    """A bar an attempt: how long it held its GPUs, by part; the attempts that lost most if there are more than fit.

    Args:
        result: from ``goodput``.
        runs: frame ``runs`` that it was computed from, for the title.
    """
    known = result.attempts[result.attempts["curve_s"].notna()]
    shown = known.assign(lost_s=known["wall_s"] - known["curve_s"])
    shown = shown.nlargest(MAX_ROWS, "lost_s", keep="first").sort_index()
    counted = runs[runs["folder"].isin(shown["folder"])]
    title = "Wall-clock time by attempt"
    if shown.empty:
        return message_figure(title, "no attempt with time stamps to show")
    more = f", the {len(shown)} of {len(known)} attempts that lost most" if len(known) > len(shown) else ""
    labels = [
        f"{short_name(run, 30)}, attempt {attempt}: {reason.replace('_', ' ')}"
        for run, attempt, reason in shown[["run", "attempt", "end_reason"]].itertuples(index=False)
    ]
    size_s, unit = time_unit(float(shown["wall_s"].max()))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.35 + 0.24 * len(shown)), layout="constrained")
        axis = figure.subplots()
        set_title(figure, title, f"{where(counted)}{more}; no FLOP count enters")
        _stacked(axis, shown, labels, 1 / size_s)
        axis.set_xlabel(f"time since the attempt's start ({unit})")
        figure.legend(*_drawn_labels(axis), loc="outside lower center", ncols=3)
        return figure


def plot_goodput(result: Goodput, runs: pd.DataFrame) -> Figure:
    """A bar a run: shares of the wall-clock time of all its attempts; the least productive if there are more than fit.

    Args:
        result: from ``goodput``.
        runs: frame ``runs`` that it was computed from, for the title.
    """
    known = result.runs[result.runs["goodput_share"].notna()]
    shown = known.nsmallest(MAX_ROWS, "goodput_share", keep="first").sort_index()
    counted = runs[runs["folder"].isin(shown["folder"])]
    title = "Goodput: share of wall-clock time spent in steps that stay on the curve"
    if shown.empty:
        return message_figure(title, "no run with time stamps to show")
    more = f", the {len(shown)} of {len(known)} with the least goodput" if len(known) > len(shown) else ""
    labels = [
        f"{short_name(run)} ({attempts} {'attempt' if attempts == 1 else 'attempts'})"
        for run, attempts in shown[["run", "num_attempts"]].itertuples(index=False)
    ]
    shares = shown.assign(**{part: 100 * shown[part] / shown["wall_s"] for part in PARTS})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.35 + 0.24 * len(shown)), layout="constrained")
        axis = figure.subplots()
        set_title(figure, title, f"{where(counted)}{more}; no FLOP count enters")
        _stacked(axis, shares, labels, 1.0)
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the wall-clock time of all attempts (%)")
        for row, share in enumerate(shown["goodput_share"]):
            axis.text(
                1.01, row, f"{share:.1%}", transform=axis.get_yaxis_transform(), va="center", size=7, clip_on=False
            )
        figure.legend(*_drawn_labels(axis), loc="outside lower center", ncols=3)
        return figure


def _stacked(axis: Axes, table: pd.DataFrame, labels: list[str], scale: float) -> None:
    """One horizontal bar a row, its parts one after the other."""
    rows = np.arange(len(table))
    left = np.zeros(len(table))
    for part, (colour, hatch) in _LOOKS.items():
        widths = scale * table[part].to_numpy(dtype=float)
        if widths.any():
            axis.barh(
                rows, widths, 0.68, left=left, color=colour, hatch=hatch, edgecolor="white", lw=0.4, label=PARTS[part]
            )
        left = left + widths
    axis.set_yticks(rows, labels)
    axis.set_ylim(len(table) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def _drawn_labels(axis: Axes) -> tuple[list[mpl.artist.Artist], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return list(handles), labels
