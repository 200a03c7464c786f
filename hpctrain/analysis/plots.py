"""Figures of runs and of published results: plain ``Figure`` objects that need no display.

Each title names model, hardware, the number of runs and, where FLOPs are shown, their convention. Colours are those of Okabe
and Ito (2008), which colour-blind readers tell apart; kinds of points also differ in their markers.
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
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.typing import LegendLocType, RcKeyType

from hpctrain.analysis.scaling import Scaling
from hpctrain.analysis.summary import RunSummary, rank_word
from hpctrain.units import GIB, short_count

BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2 #E69F00 #009E73 #D55E00 #CC79A7 #56B4E9 #F0E442 #000000".split()
)
GREY = "#999999"
_SERIES_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
_SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_CONVENTION_STYLE = {"model": ("o", BLUE), "hardware": ("s", GREEN), "megatron": ("D", VERMILLION)}

STYLE: dict[RcKeyType, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 150,
    "savefig.dpi": 200,
}


def plot_run(summary: RunSummary, steps: pd.DataFrame) -> Figure:
    """One run on one page: loss, step time, throughput and memory over the steps.

    Args:
        summary: the run's row.
        steps: its marked steps, see ``steady.mark_steps``.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 6.2))
        axes = figure.subplots(2, 2, gridspec_kw={"hspace": 0.42, "wspace": 0.27})
        header = [(text, BLACK) for text in _plan_texts(summary)]
        header += [(text, BLUE if summary.valid else VERMILLION) for text in _result_texts(summary)]
        top = 0.935
        figure.text(0.012, 0.98, f"{summary.run} (1 run)", size=11, weight="bold", va="top")
        for text, colour in header:
            for line in textwrap.wrap(text, 105, max_lines=2, placeholder=" …"):
                figure.text(0.012, top, line, va="top", color=colour)
                top -= 0.027
        figure.subplots_adjust(left=0.095, right=0.985, bottom=0.075, top=top - 0.045)
        for axis, title, unit in (
            (axes[0, 0], "Loss", "loss (nats per token)"),
            (axes[0, 1], "Step time", "time of one step (s)"),
            (axes[1, 0], "Throughput", "tokens per second (all ranks)"),
            (axes[1, 1], "Memory", "peak memory of rank 0 (GiB)"),
        ):
            axis.set(title=title, ylabel=unit, xlabel="optimizer step")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        if steps.empty:
            for axis in axes.flat:
                _write_message(axis, "no step recorded")
            return figure
        _draw_loss(axes[0, 0], steps)
        _draw_step_time(axes[0, 1], summary, steps)
        _draw_throughput(axes[1, 0], summary, steps)
        _draw_memory(axes[1, 1], summary, steps)
        return figure


def _plan_texts(summary: RunSummary) -> list[str]:
    """What the run was."""
    if summary.model is None:
        return []
    ranks = f"{summary.gpus} {rank_word(summary.device)}s"
    return [
        f"{summary.model} ({short_count(summary.num_parameters or 0)} parameters) on {summary.hardware}, {ranks} on"
        f" {summary.nodes} node(s), {summary.precision}, {summary.parallelism},"
        f" checkpointing {summary.activation_checkpointing}",
        f"micro batch {summary.micro_batch_size} x {ranks} x accumulation {summary.gradient_accumulation_steps} ="
        f" {summary.global_batch_size} sequences of {summary.seq_len} tokens",
    ]


def _result_texts(summary: RunSummary) -> list[str]:
    """What was measured, and why it may not be compared."""
    texts = []
    if summary.step_time_s is not None and summary.tokens_per_s is not None:
        texts.append(f"median step {summary.step_time_s:.4g} s, {summary.tokens_per_s:,.0f} tokens/s")
    rates = [f"{rate:.3g} {name}" for name, rate in summary.tflops_per_gpu.items() if rate is not None]
    if rates:
        mfu = "" if summary.mfu is None else f"; MFU {summary.mfu:.1%}"
        texts.append(f"TFLOP/s per {rank_word(summary.device)} by FLOP count: {', '.join(rates)}{mfu}")
    return texts if summary.valid else [*texts, f"not for comparison: {summary.reason}"]


def _draw_loss(axis: Axes, steps: pd.DataFrame) -> None:
    undone, curve = steps[steps["superseded"]], steps[~steps["superseded"]]
    if len(undone):
        for _, part in undone.groupby("attempt"):
            axis.plot(part["step"], part["loss"], color=GREY, lw=0.8, zorder=1)
        axis.plot([], [], color=GREY, lw=0.8, label="undone by a restart")
    axis.plot(
        curve["step"],
        curve["loss"],
        color=BLUE,
        marker="o" if len(curve) < 40 else "",
        ms=2.5,
        label="mean of all ranks",
    )
    dead = curve[curve["dead"]]
    if len(dead):
        axis.plot(
            dead["step"],
            np.zeros(len(dead)),
            "x",
            color=VERMILLION,
            ms=4,
            label="no update or no finite loss",
            transform=axis.get_xaxis_transform(),
            clip_on=False,
        )
    starts = curve.groupby("attempt")["step"].min()
    for attempt, step in list(starts.items())[1:]:
        axis.axvline(step - 0.5, color=GREY, lw=0.8, ls=":")
        axis.annotate(
            f"attempt {attempt}",
            (step - 0.5, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, -2),
            textcoords="offset points",
            va="top",
            size=6.5,
            color="#555555",
        )
    _boxed_legend(axis, "best")


def _draw_step_time(axis: Axes, summary: RunSummary, steps: pd.DataFrame) -> None:
    curve = steps[~steps["superseded"]]
    steady, other = curve[curve["steady"]], curve[~curve["steady"]]
    top = _axis_top(curve, steady)
    _draw_points(
        axis, other, "step_time_s", top, color=GREY, marker="o", mfc="white", label="warm-up or dead: not counted"
    )
    _draw_points(axis, steady, "step_time_s", top, color=BLUE, marker="o", label="steady")
    _draw_points(axis, curve, "data_time_s", top, color=ORANGE, marker=".", label="waiting for data")
    if summary.step_time_s is not None:
        interval = ""
        if summary.step_time_low_s is not None and summary.step_time_high_s is not None:
            axis.axhspan(summary.step_time_low_s, summary.step_time_high_s, color=SKY, alpha=0.4, lw=0)
            interval = f" [{summary.step_time_low_s:.4g}, {summary.step_time_high_s:.4g}]"
        label = f"median {summary.step_time_s:.4g} s{interval}"
        axis.axhline(summary.step_time_s, color=BLACK, lw=0.9, zorder=1, label=label)
    axis.set_ylim(0, top)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _boxed_legend(axis, "upper right")


def _axis_top(curve: pd.DataFrame, steady: pd.DataFrame) -> float:
    """Upper end of the time axis: steady steps lie below its half and the legend above; slower ones go to the edge."""
    rows = curve if steady.empty else steady
    times = rows["step_time_s"].where(np.isfinite(rows["step_time_s"])).fillna(0)
    return 2.2 * float(times.quantile(0.99)) or 1.0


def _draw_points(
    axis: Axes, rows: pd.DataFrame, column: str, top: float, *, color: str, label: str, **style: Any
) -> None:
    """Points, and at the upper edge a triangle for each that lies above it."""
    if rows.empty:
        return
    inside = rows[rows[column] <= top]
    axis.plot(inside["step"], inside[column], ls="", ms=3, color=color, label=label, **style)
    above = rows[rows[column] > top]
    if len(above):
        slowest = float(above[column].max())
        axis.plot(
            above["step"],
            np.full(len(above), top),
            ls="",
            marker="^",
            ms=5,
            color=color,
            clip_on=False,
            label=f"above the axis: {len(above)}, up to {slowest:.3g} s",
        )


def _draw_throughput(axis: Axes, summary: RunSummary, steps: pd.DataFrame) -> None:
    curve = steps[~steps["superseded"] & (steps["step_time_s"] > 0)]
    steady, other = curve[curve["steady"]], curve[~curve["steady"]]
    for rows, colour, face, label in ((other, GREY, "white", "not counted"), (steady, BLUE, BLUE, "steady")):
        axis.plot(
            rows["step"],
            rows["tokens"] / rows["step_time_s"],
            ls="",
            marker="o",
            ms=3,
            color=colour,
            mfc=face,
            label=label,
        )
    if summary.tokens_per_s is not None:
        axis.axhline(
            summary.tokens_per_s,
            color=BLACK,
            lw=0.9,
            zorder=1,
            label=f"from the median step: {summary.tokens_per_s:,.0f} tokens/s",
        )
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: short_count(value).replace(" ", ""))
    _boxed_legend(axis, "lower right")


def _draw_memory(axis: Axes, summary: RunSummary, steps: pd.DataFrame) -> None:
    measure = "resident size of the process" if summary.device == "cpu" else "GPU allocator"
    for attempt, part in steps.groupby("attempt"):
        label = f"measured ({measure})" if attempt == steps["attempt"].min() else None
        axis.plot(part["step"], part["peak_memory_bytes"] / GIB, color=BLUE, label=label)
    if summary.predicted_memory_bytes is not None:
        predicted = summary.predicted_memory_bytes / GIB
        axis.axhline(predicted, color=VERMILLION, ls="--", label=f"predicted by the plan: {predicted:.3g} GiB")
    if summary.memory_capacity_bytes is not None:
        capacity = summary.memory_capacity_bytes / GIB
        axis.axhline(capacity, color=BLACK, ls=":", label=f"capacity of the GPU: {capacity:.3g} GiB")
    axis.set_ylim(0, 1.5 * axis.get_ylim()[1])
    _boxed_legend(axis, "upper right")


def plot_tflops(runs: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """TFLOP/s per GPU, a row a run: our three counts, and below them published points in their own count.

    Args:
        runs: frame ``runs``; runs that are not valid are not drawn, their number is in the title.
        published: published results as given by ``published.as_runs``, filtered by the caller.
    """
    ours = runs[runs["valid"]]
    theirs = published[published["megatron_tflops_per_gpu"].notna()] if published is not None else runs.iloc[:0]
    rows = max(1, len(ours)), len(theirs)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.7 + 0.24 * sum(rows) + (0.6 if rows[1] else 0)), layout="constrained")
        ratios = [count + 1.2 for count in rows if count]
        axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
        _draw_own_tflops(axes[0], ours, len(runs))
        if rows[1]:
            _draw_published_tflops(axes[1], theirs)
        if len(ours) or len(theirs):
            figure.legend(loc="outside lower center", ncols=3)
        word = "/".join(dict.fromkeys(rank_word(device) for device in ours["device"])) or "GPU"
        axes[-1].set_xlabel(f"TFLOP/s per {word} (1e12 FLOP/s), median over the steady steps of a run")
        drawn = [value for axis in axes for line in axis.lines for value in np.asarray(line.get_xdata(), dtype=float)]
        if drawn and max(drawn) > 30 * min(drawn):
            axes[0].set_xscale("log")
        else:
            axes[0].set_xlim(left=0)
        return figure


def _draw_own_tflops(axis: Axes, ours: pd.DataFrame, num_runs: int) -> None:
    left_out = f", {num_runs - len(ours)} left out as not valid" if num_runs > len(ours) else ""
    models, hardware = _names(ours["model"]), _names(ours["hardware"])
    axis.set_title(f"{models} on {hardware}\n{len(ours)} run(s){left_out}\nmodel, hardware and Megatron FLOPs")
    if ours.empty:
        _write_message(axis, "no valid run to show")
        return
    positions = np.arange(len(ours))
    for name, (marker, colour) in _CONVENTION_STYLE.items():
        values = ours[f"{name}_tflops_per_gpu"].to_numpy(dtype=float)
        # The hardware count equals the model count without recomputation: the hollow square stays visible around the dot.
        face = "none" if name == "hardware" else colour
        size = 7 if name == "hardware" else 4.5
        axis.plot(values, positions, ls="", marker=marker, ms=size, color=colour, mfc=face, label=f"{name} FLOPs")
    peaks = ours["peak_tflops_per_gpu"].to_numpy(dtype=float, na_value=np.nan)
    if np.isfinite(peaks).any():
        axis.plot(
            peaks[np.isfinite(peaks)],
            positions[np.isfinite(peaks)],
            "|",
            color=BLACK,
            ms=9,
            label="peak of the hardware",
        )
    _name_rows(
        axis, [f"{run} ({gpus} {rank_word(device)}s)" for run, gpus, device in _rows(ours, "run", "gpus", "device")]
    )


def _draw_published_tflops(axis: Axes, theirs: pd.DataFrame) -> None:
    sources, hardware = _names(theirs["source"]), _names(theirs["hardware"])
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
    panels = [(ours, "Own runs", "run(s)", "-")]
    if published is not None:
        panels.append((published, "Published", "point(s)", "--"))
    num_labels = max(1 + scaling.points["group"].nunique() for scaling, *_ in panels)
    below, above = 0.62 + 0.16 * num_labels, 0.78
    height = below + 2.6 + above
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(panels) + 0.4, height))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(
            left=0.55 / figure.get_figwidth(), right=0.985, bottom=below / height, top=1 - above / height, wspace=0.06
        )
        for axis, (scaling, owner, unit, line_style) in zip(axes, panels, strict=True):
            _draw_scaling(axis, scaling, owner, unit, line_style)
            axis.legend(loc="upper left", bbox_to_anchor=(0, -0.48 / 2.6))
        axes[0].set_ylabel("scaling efficiency (%), from tokens/s")
        drawn = [value for axis in axes for line in axis.lines for value in np.asarray(line.get_ydata(), dtype=float)]
        axes[0].set_ylim(0, 1.08 * max(drawn))
        return figure


def _draw_scaling(axis: Axes, scaling: Scaling, owner: str, unit: str, line_style: str) -> None:
    points = scaling.points[scaling.points["efficiency"].notna()]
    batch = "same global batch" if scaling.kind == "strong" else "same batch per GPU"
    title = f"{owner}: {scaling.kind} scaling, {batch}"
    axis.set_xlabel("GPUs (nodes)")
    axis.axhline(100, color=BLACK, lw=0.9, ls=":", label="ideal")
    if points.empty:
        axis.set_title(title)
        axis.set_xticks([])
        _write_message(axis, textwrap.fill("; ".join(scaling.messages[:3]) or "no run to compare", 44))
        return
    axis.set_title(
        f"{title}\n{_names(points['model'])}\n{_names(points['hardware'])}\n"
        f"{points['num_runs'].sum()} {unit}, no FLOP count enters"
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
            label=f"{label} (base {group['base_gpus'].iloc[0]} GPUs)",
        )
    _name_sizes(axis, points)


def _name_sizes(axis: Axes, points: pd.DataFrame) -> None:
    """A logarithmic axis with one tick a size, GPUs above nodes."""
    nodes = {int(gpus): sorted(set(points.loc[points["gpus"] == gpus, "nodes"])) for gpus in points["gpus"].unique()}
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(nodes)))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{g}\n({', '.join(map(str, n))})" for g, n in nodes.items()]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())


def _name_rows(axis: Axes, names: Sequence[str]) -> None:
    axis.set_yticks(np.arange(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)


def _rows(table: pd.DataFrame, *columns: str) -> Any:
    return table[list(columns)].itertuples(index=False)


def _names(values: pd.Series) -> str:
    """Up to three different values in words.

    >>> _names(pd.Series(["a", "b", "a"])), _names(pd.Series(list("abcde"))), _names(pd.Series([], dtype="string"))
    ('a, b', 'a, b, c and 2 more', 'none')
    """
    names = [str(value) for value in values.dropna().unique()]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more or "none"


def _boxed_legend(axis: Axes, place: LegendLocType) -> None:
    """A legend on white, so that points behind it do not mix with its text."""
    axis.legend(loc=place, frameon=True, framealpha=0.9, edgecolor="none", borderpad=0.2)


def _write_message(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")
