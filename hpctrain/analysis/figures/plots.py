"""Figures of several runs and of published results: plain ``Figure`` objects that need no display.

Each title names model, hardware, the number of runs and, where FLOPs are shown, their convention. Kinds of points differ in
their markers as well as in colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    TITLE_CHARACTERS,
    VERMILLION,
    message_figure,
    models_on_hardware,
    names,
    write_message,
)
from hpctrain.analysis.name_lists import short_name
from hpctrain.analysis.run_row import rank_word
from hpctrain.analysis.scaling import Scaling

_SERIES_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
_SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_PANEL_CHARACTERS = 42
"""Bold characters that fit above half of a figure."""
MAX_ROWS = 40
"""Runs of one figure with a row each; more are not legible on a page."""
_CONVENTION_STYLE = {"model": ("o", BLUE), "hardware": ("s", GREEN), "megatron": ("D", VERMILLION)}
RATES = [*(f"{name}_tflops_per_gpu" for name in _CONVENTION_STYLE), "printed_tflops_per_gpu"]
"""Columns of which a run needs one to be drawn among the rates."""


def plot_tflops(runs: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """TFLOP/s per GPU, a row a run: our three counts, and below them published points in their own count.

    Args:
        runs: frame ``runs``; runs that are not valid are not drawn, their number is in the title.
        published: published results as given by ``published.as_runs``, filtered by the caller.
    """
    valid = runs[runs["valid"].fillna(False).astype(bool)]
    ours = valid[valid[RATES].notna().any(axis=1)]
    counts = {"not valid": len(runs) - len(valid), "without a rate": len(valid) - len(ours)}
    left_out = ", ".join(f"{count} {why}" for why, count in counts.items() if count)
    theirs = published[published["megatron_tflops_per_gpu"].notna()] if published is not None else runs.iloc[:0]
    shown = ours.head(MAX_ROWS)
    rows = max(1, len(shown)), len(theirs)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.7 + 0.24 * sum(rows) + (0.6 if rows[1] else 0)), layout="constrained")
        ratios = [count + 1.2 for count in rows if count]
        axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
        _draw_own_tflops(axes[0], shown, len(ours), f"; left out: {left_out}" if left_out else "")
        if rows[1]:
            _draw_published_tflops(axes[1], theirs)
        if len(ours) or len(theirs):
            figure.legend(loc="outside lower center", ncols=3)
        word = "/".join(dict.fromkeys(rank_word(device) for device in ours["device"])) or "GPU"
        # From the right end: below a narrow axis it reaches under the names, and not out of the figure.
        axes[-1].set_xlabel(f"TFLOP/s per {word} (1e12 FLOP/s), median over the steady steps of a run", loc="right")
        _scale_rates(axes.tolist())
        return figure


def _scale_rates(axes: Sequence[Axes]) -> None:
    """From 0, or logarithmic where the rates are too far apart; a mark at the end stays whole."""
    drawn = [value for axis in axes for line in axis.lines for value in np.asarray(line.get_xdata(), dtype=float)]
    if drawn and max(drawn) > 30 * min(drawn):
        axes[0].set_xscale("log")
        axes[0].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes[0].xaxis.set_minor_formatter(NullFormatter())
    else:
        axes[0].set_xlim(0, 1.05 * max(drawn) if drawn else 1)


def _draw_own_tflops(axis: Axes, ours: pd.DataFrame, num_rated: int, left_out: str) -> None:
    if ours.empty:
        axis.set_title(f"Own runs{left_out}")
        axis.set_yticks([])
        write_message(axis, "no valid run with a rate")
        return
    counted = f"{num_rated} run(s)" if len(ours) == num_rated else f"the first {len(ours)} of {num_rated} runs"
    labels = [
        f"{short_name(run, 44)} ({_ranks(gpus, device)})" for run, gpus, device in _rows(ours, "run", "gpus", "device")
    ]
    _name_rows(axis, labels)
    beside = TITLE_CHARACTERS - max(map(len, labels))
    lines = (models_on_hardware(ours), f"{counted}{left_out}", "model, hardware and Megatron FLOPs")
    axis.set_title("\n".join(part for line in lines for part in textwrap.wrap(line, beside)))
    for name, (marker, colour) in _CONVENTION_STYLE.items():
        # The hardware count equals the model count without recomputation: the hollow square stays visible around the dot.
        hollow = name == "hardware"
        _draw_rates(
            axis, ours[f"{name}_tflops_per_gpu"], marker, f"{name} FLOPs",
            color=colour, mfc="none" if hollow else colour, ms=7 if hollow else 4.5,
        )  # fmt: skip
    _draw_intervals(axis, ours)
    _draw_rates(axis, ours["printed_tflops_per_gpu"], "x", "as the log prints it", color=PURPLE, ms=5)
    _draw_rates(axis, ours["achievable_tflops_per_gpu"], 2, "best measured matmul", color=GREY, ms=6)
    _draw_rates(axis, ours["peak_tflops_per_gpu"], "|", "peak of the hardware", color=BLACK, ms=9)


def _draw_intervals(axis: Axes, ours: pd.DataFrame) -> None:
    """A line through the model count of each run whose median has a confidence interval: rates go as one over the time."""
    columns = ["model_tflops_per_gpu", "step_time_s", "step_time_low_s", "step_time_high_s"]
    rate, time_s, low_s, high_s = (ours[name].to_numpy(dtype=float, na_value=np.nan) for name in columns)
    slow, fast = rate * time_s / high_s, rate * time_s / low_s
    rows = np.flatnonzero(np.isfinite(slow) & np.isfinite(fast))
    if len(rows):
        axis.hlines(rows, slow[rows], fast[rows], color=BLUE, lw=2.5, alpha=0.5, label="95 % interval of the median")


def _draw_rates(axis: Axes, values: pd.Series, marker: str | int, label: str, **style: Any) -> None:
    """A mark in the row of each run that has a value."""
    rates = values.to_numpy(dtype=float, na_value=np.nan)
    rows = np.flatnonzero(np.isfinite(rates))
    if len(rows):
        axis.plot(rates[rows], rows, ls="", marker=marker, label=label, **style)


def _draw_published_tflops(axis: Axes, theirs: pd.DataFrame) -> None:
    sources, hardware = names(theirs["source"]), names(theirs["hardware"])
    axis.set_title(
        f"Published: {sources}\n{len(theirs)} point(s) on {hardware}\nMegatron FLOPs, full recomputation counted"
    )
    positions = np.arange(len(theirs))
    values = theirs["megatron_tflops_per_gpu"].to_numpy(dtype=float)
    errors = theirs["tflops_error"].to_numpy(dtype=float, na_value=0.0)
    exact = (theirs["evidence"] != "DIGITISED").to_numpy(dtype=bool)
    for chosen, face, label in ((exact, BLACK, "published, printed"), (~exact, "none", "published, digitised")):
        if chosen.any():
            axis.errorbar(
                values[chosen], positions[chosen], xerr=errors[chosen], fmt="*", ms=7, color=BLACK, mfc=face, elinewidth=0.8,
                label=label,
            )  # fmt: skip
    _name_rows(axis, theirs["run"].tolist())


def plot_scaling(ours: Scaling, published: Scaling | None = None) -> Figure:
    """Efficiency over GPUs and nodes, the ideal as a line at 100 %: our runs, and published results beside them."""
    if published is None and ours.points["efficiency"].isna().all():
        text = "; ".join(ours.short_messages) or "no run to compare"
        return message_figure(f"Own runs: {ours.kind} scaling", textwrap.shorten(text, 600, placeholder=" …"))
    panels = [(ours, "Own runs", "run(s)", "-")]
    if published is not None:
        panels.append((published, "Published", "point(s)", "--"))
    drawn = [scaling.points[scaling.points["efficiency"].notna()] for scaling, *_ in panels]
    num_labels = max(1 + points["group"].nunique() for points in drawn)
    num_lines = max(2 + len(_what_was_scaled(points)) for points in drawn)
    below, above = 0.68 + 0.16 * num_labels, 0.22 + 0.14 * num_lines
    height = below + 2.6 + above
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(panels) + 0.4, height))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(
            left=0.55 / figure.get_figwidth(), right=0.985, bottom=below / height, top=1 - above / height, wspace=0.06
        )
        for axis, (scaling, owner, unit, line_style) in zip(axes, panels, strict=True):
            _draw_scaling(axis, scaling, owner, unit, line_style)
            axis.legend(loc="upper left", bbox_to_anchor=(0, -0.52 / 2.6))
        axes[0].set_ylabel("scaling efficiency (%), from tokens/s")
        highest = max(float(np.max(line.get_ydata())) for axis in axes for line in axis.lines)
        axes[0].set_ylim(0, 1.08 * highest)
        return figure


def _draw_scaling(axis: Axes, scaling: Scaling, owner: str, unit: str, line_style: str) -> None:
    points = scaling.points[scaling.points["efficiency"].notna()]
    words = list(dict.fromkeys(rank_word(device) for device in points["device"])) or ["GPU"]
    batch = "same global batch" if scaling.kind == "strong" else f"same batch per {'/'.join(words)}"
    title = f"{owner}: {scaling.kind} scaling, {batch}"
    axis.set_xlabel(f"{'/'.join(words)}s (nodes)")
    axis.axhline(100, color=BLACK, lw=0.9, ls=":", label="ideal")
    if points.empty:
        axis.set_title(title)
        axis.set_xticks([])
        write_message(axis, _short_text("; ".join(scaling.short_messages) or "no run to compare"))
        return
    axis.set_title(
        "\n".join([title, *_what_was_scaled(points), f"{points['num_runs'].sum()} {unit}, no FLOP count enters"])
    )
    for number, (label, group) in enumerate(points.groupby("group", sort=False)):
        # The marker moves on by one with each round of the colours, so that no two of 49 series look alike.
        lap = number // len(_SERIES_COLOURS)
        axis.plot(
            group["gpus"].to_numpy(dtype=float),
            100 * group["efficiency"].to_numpy(dtype=float),
            ls=line_style,
            marker=_SERIES_MARKERS[(number + lap) % len(_SERIES_MARKERS)],
            ms=5,
            color=_SERIES_COLOURS[number % len(_SERIES_COLOURS)],
            label=f"{label} (base {_ranks(group['base_gpus'].iloc[0], group['device'].iloc[0])})",
        )
    _name_sizes(axis, points)


def _what_was_scaled(points: pd.DataFrame) -> list[str]:
    """Models and hardware in lines that fit above a panel."""
    return textwrap.wrap(models_on_hardware(points, "point"), _PANEL_CHARACTERS)


def _short_text(text: str) -> str:
    """A message that fits into half of a figure; the rest of it is in ``Scaling.messages``."""
    return "\n".join(textwrap.wrap(text, 44, max_lines=9, placeholder=" …"))


def _name_sizes(axis: Axes, points: pd.DataFrame) -> None:
    """A logarithmic axis with one tick a size, GPUs above nodes."""
    nodes = {int(gpus): sorted(set(points.loc[points["gpus"] == gpus, "nodes"])) for gpus in points["gpus"].unique()}
    axis.set_xscale("log", base=2)
    # Between the edges, however few sizes there are.
    axis.set_xlim(min(nodes) / 1.25, max(nodes) * 1.25)
    axis.xaxis.set_major_locator(FixedLocator(list(nodes)))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{g}\n({', '.join(map(str, n))})" for g, n in nodes.items()]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())


def _name_rows(axis: Axes, names: Sequence[str]) -> None:
    axis.set_yticks(np.arange(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)


def _rows(table: pd.DataFrame, *columns: str) -> Any:
    return table[list(columns)].itertuples(index=False)


def _ranks(count: Any, device: Any) -> str:
    """A number of ranks in words; ``?`` where it is not known."""
    return f"{'?' if pd.isna(count) else count} {rank_word(device)}{'' if count is not pd.NA and count == 1 else 's'}"
