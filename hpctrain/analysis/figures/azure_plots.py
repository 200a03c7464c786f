"""The figures of "DeepSpeed on Azure" drawn again, with our prediction and our own runs beside the published points."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from hpctrain.analysis.azure_figures import FIGURES, FigureName, azure_points
from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    GREY,
    STYLE,
    VERMILLION,
    WIDTH_IN,
    message_figure,
    names,
    set_title,
)

_SERIES_STYLE = {
    "published": (BLUE, "o", "-"),
    "predicted": (VERMILLION, "x", "--"),
    "measured": (BLACK, "*", ""),
}
"""Colour, marker and line of each series: they differ in all three, so that none needs its colour."""
_MARKER_SIZES = {"o": 4.5, "x": 3.5, "*": 9.0}
MAX_COLUMNS = 5
"""Panels beside each other."""
_MEASURED_WORDS = "measured by us (median, smallest to largest run)"


def plot_azure_figure(name: FigureName, published: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """One figure of the post: published points, our prediction as a dashed line, our own runs as stars.

    Figures 3a and 3b run over model size and GPUs. The others are drawn with a panel a number of GPUs and the micro batch
    along it; the post has the same values as groups of bars.

    Args:
        name: ``3a``, ``3b``, ``5a``, ``5b``, ``6`` or ``7``.
        published: of ``load_published``, or of ``with_predictions`` for the predicted series.
        runs: frame ``runs``.
    """
    points = azure_points(name, published, runs)
    figure_of = FIGURES[name]
    title = f"DeepSpeed on Azure, figure {name}: {figure_of.caption}"
    ours = points[points["series"] == "measured"]
    theirs = points[points["series"] == "published"]
    if theirs.empty:
        return message_figure(title, "the published rows of this figure are not in the frame")
    measured = f"{ours['num_runs'].sum()} of our runs on {names(ours['hardware'])}" if len(ours) else "no run of ours"
    predicted = "" if (points["series"] == "predicted").any() else "; no prediction"
    with mpl.rc_context(STYLE):
        if name == "3a":
            figure = _over_models(points)
        elif name == "3b":
            figure = _over_gpus(points)
        else:
            figure = _over_micro_batches(points)
        set_title(
            figure,
            title,
            f"{', '.join(theirs['model'].unique())} on {names(theirs['hardware'])}, {len(theirs)} points; {measured}{predicted}",
            "Megatron FLOPs: full recomputation counted",
        )
        _legend(figure, points)
        return figure


def _over_models(points: pd.DataFrame) -> Figure:
    """TFLOP/s per GPU, a place a model."""
    figure = Figure(figsize=(WIDTH_IN, 3.5), layout="constrained")
    axis = figure.subplots()
    order = points.sort_values("params_b")["model"].drop_duplicates().tolist()
    _draw_series(axis, points.assign(place=points["model"].map({model: i for i, model in enumerate(order)})), "place")
    axis.set_xticks(range(len(order)), order)
    axis.set_xlim(-0.4, len(order) - 0.6)
    axis.set_xlabel("model (1,024 GPUs, micro batch 8, 1,024 tokens a sequence)")
    axis.set_ylabel("TFLOP/s per GPU (1e12 FLOP/s)")
    axis.set_ylim(0, 1.1 * _highest(points))
    return figure


def _over_gpus(points: pd.DataFrame) -> Figure:
    """PFLOP/s of all GPUs together beside the line of perfect scaling, and TFLOP/s of one GPU, in which differences show."""
    figure = Figure(figsize=(WIDTH_IN, 3.7), layout="constrained")
    together, each = figure.subplots(1, 2)
    total = points.assign(
        **{name: points[name] * points["gpus"] / 1e3 for name in ("tflops_per_gpu", "low", "high")}
    )  # fmt: skip
    base = points[points["series"] == "published"].nsmallest(1, "gpus").iloc[0]
    sizes = np.sort(total["gpus"].unique().astype(float))
    label = f"perfect scaling from the published {base['gpus']} GPUs"
    together.plot(sizes, base["tflops_per_gpu"] * sizes / 1e3, color=GREY, ls=":", zorder=1, label=label)
    each.axhline(base["tflops_per_gpu"], color=GREY, ls=":", zorder=1)
    _draw_series(together, total, "gpus")
    _draw_series(each, points, "gpus")
    for axis in (together, each):
        _size_axis(axis, sizes)
        axis.set_xlabel("GPUs (micro batch 16, 1,024 tokens a sequence)")
    together.set_yscale("log", base=2)
    together.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    together.set_ylabel("PFLOP/s of all GPUs (1e15 FLOP/s)")
    each.set_ylim(0, 1.1 * _highest(points))
    each.set_ylabel("TFLOP/s per GPU (1e12 FLOP/s)")
    return figure


def _over_micro_batches(points: pd.DataFrame) -> Figure:
    """A panel a number of GPUs, TFLOP/s per GPU over the micro batch."""
    sizes = sorted(points["gpus"].unique())
    columns = min(MAX_COLUMNS, len(sizes))
    rows = -(-len(sizes) // columns)
    figure = Figure(figsize=(WIDTH_IN, 1.5 + 2.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    batches = np.sort(points["micro_batch_size"].unique().astype(float))
    for axis, size in zip(axes.flat, sizes, strict=False):
        part = points[points["gpus"] == size]
        _draw_series(axis, part, "micro_batch_size")
        _size_axis(axis, batches)
        axis.set_title(f"{size:,} GPUs", weight="normal")
        axis.set_xlabel("micro batch\n(sequences)" if columns > 3 else "micro batch (sequences per GPU)")
    for axis in axes.flat[len(sizes) :]:
        axis.remove()
    axes[0, 0].set_ylim(0, 1.1 * _highest(points))
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s per GPU (1e12 FLOP/s)")
    return figure


def _draw_series(axis: Axes, points: pd.DataFrame, along: str) -> None:
    """The three series of one panel; digitised points are hollow, printed ones filled."""
    for series, (colour, marker, line_style) in _SERIES_STYLE.items():
        part = points[points["series"] == series].sort_values(along)
        if part.empty:
            continue
        x, y, low, high = (part[name].to_numpy(dtype=float) for name in (along, "tflops_per_gpu", "low", "high"))
        if line_style:
            width = 1.0 if series == "published" else 1.3
            axis.plot(x, y, color=colour, ls=line_style, lw=width, label=series, zorder=2)
        spread = np.abs(np.stack([low, high]) - y)
        if series == "predicted":
            axis.fill_between(x, low, high, color=colour, alpha=0.18, lw=0, zorder=1)
            spread = np.zeros_like(spread)
        hollow = (series == "published") & ~part["printed"].fillna(True).to_numpy(dtype=bool)
        for chosen, face in ((hollow, "white"), (~hollow, colour)):
            if chosen.any():
                axis.errorbar(
                    x[chosen], y[chosen], yerr=spread[:, chosen], fmt=marker, ms=_MARKER_SIZES[marker], color=colour,
                    mfc=face, elinewidth=1.0, capsize=0 if series == "predicted" else 2, zorder=3 if marker == "o" else 4,
                )  # fmt: skip


def _size_axis(axis: Axes, sizes: np.typing.NDArray[np.float64]) -> None:
    """A logarithmic axis with one tick a size."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sizes.tolist()))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{size:,.0f}" for size in sizes]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)


def _highest(points: pd.DataFrame) -> float:
    return float(points["high"].max())


def _legend(figure: Figure, points: pd.DataFrame) -> None:
    """What each look that is drawn means; our own series say so if they have no point."""
    present = set(points["series"])
    printed = points.loc[points["series"] == "published", "printed"].fillna(True).astype(bool)
    handles: list[Line2D | Patch] = []
    if printed.any():
        handles.append(Line2D([], [], color=BLUE, marker="o", ms=4.5, label="published, printed in the text"))
    if not printed.all():
        words = "published, read from a bar, with its error"
        handles.append(Line2D([], [], color=BLUE, marker="o", ms=4.5, mfc="white", label=words))
    if "predicted" in present:
        handles.append(Line2D([], [], color=VERMILLION, ls="--", marker="x", ms=3.5, label=_prediction_label(points)))
        handles.append(Patch(color=VERMILLION, alpha=0.18, lw=0, label="its range, by errors on points not fitted"))
    else:
        handles.append(Line2D([], [], ls="", label="predicted by our plan: none"))
    if "measured" in present:
        handles.append(Line2D([], [], color=BLACK, ls="", marker="*", ms=9, label=_MEASURED_WORDS))
    else:
        handles.append(Line2D([], [], ls="", label="measured by us: none of our runs has this shape"))
    handles += [handle for handle in figure.axes[0].lines if str(handle.get_label()).startswith("perfect")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


def _prediction_label(points: pd.DataFrame) -> str:
    """Whether the prediction had seen the points that it is drawn beside."""
    fitted = points.loc[points["series"] == "predicted", "fitted"].fillna(False)
    how = "fitted on these points" if fitted.all() else "partly fitted on these points"
    return f"predicted by our plan, {how if fitted.any() else 'not fitted on these points'}"
