"""The figure of one run: a plain ``Figure`` object that needs no display."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    DRAWABLE,
    GREY,
    LEGEND_LINE_IN,
    ORANGE,
    SKY,
    STYLE,
    VERMILLION,
    empty_panel,
    legend_below,
    write_message,
)
from hpctrain.analysis.run_row import OWN_SOURCE, RunSummary, counted_ranks, rank_word
from hpctrain.analysis.validation_files import NO_VALIDATIONS
from hpctrain.units import GIB, short_count

_NOT_COUNTED = {"warm_up": "warm-up", "dead": "dead", "rejected": "rejected"}
"""Flags of the steps on the curve that are not steady, and their names."""


def plot_run(summary: RunSummary, steps: pd.DataFrame, validations: pd.DataFrame = NO_VALIDATIONS) -> Figure:
    """One run on one page: loss, step time, throughput and memory over the steps.

    Args:
        summary: the run's row.
        steps: its marked steps, see ``steady.mark_steps``.
        validations: see ``validation_files.read_validations``.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 7.2))
        axes = figure.subplots(2, 2)
        header = [(text, BLACK) for text in _plan_texts(summary)]
        header += [(text, BLUE if summary.valid else VERMILLION) for text in _result_texts(summary)]
        top = 0.935
        figure.text(0.012, 0.98, f"{summary.run} (1 run)", size=11, weight="bold", va="top")
        for text, colour in header:
            for line in textwrap.wrap(text, 105, max_lines=2, placeholder=" …"):
                figure.text(0.012, top, line, va="top", color=colour)
                top -= 0.027
        figure.set_layout_engine("constrained", rect=(0, 0, 1, top - 0.01), h_pad=0.08, w_pad=0.08)
        for axis, title, unit in (
            (axes[0, 0], "Loss", "loss (nats per token)"),
            (axes[0, 1], "Step time", "time of one step (s)"),
            (axes[1, 0], "Throughput", "tokens per second (all ranks)"),
            (axes[1, 1], "Memory", "peak memory of rank 0 (GiB)"),
        ):
            axis.set(title=title, ylabel=unit)
            _step_axis(axis, steps)
        if steps.empty:
            for axis in axes.flat:
                empty_panel(axis, "no step recorded")
            return figure
        _draw_loss(axes[0, 0], steps, validations)
        _draw_step_time(axes[0, 1], summary, steps)
        _draw_throughput(axes[1, 0], summary, steps)
        _draw_memory(axes[1, 1], summary, steps)
        return figure


def plot_loss_and_step_time(
    summary: RunSummary, steps: pd.DataFrame, validations: pd.DataFrame = NO_VALIDATIONS
) -> Figure:
    """Loss and step time over the steps side by side, without a title: for a page that names the run itself.

    Args:
        summary: the run's row.
        steps: its marked steps, at least one.
        validations: see ``validation_files.read_validations``.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.0, 2.4), layout="constrained")
        loss, step_time = figure.subplots(1, 2)
        for axis, unit in ((loss, "loss (nats per token)"), (step_time, "time of one step (s)")):
            axis.set(ylabel=unit)
            _step_axis(axis, steps)
        _draw_loss(loss, steps, validations)
        _draw_step_time(step_time, summary, steps)
        lines = max(len(axis.get_legend_handles_labels()[1]) for axis in (loss, step_time))
        figure.set_figheight(2.3 + LEGEND_LINE_IN * lines)
        return figure


def _step_axis(axis: Axes, steps: pd.DataFrame) -> None:
    """The same steps in every panel, whatever a panel knows of them; a single one has room beside it."""
    axis.set_xlabel("optimizer step")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axis.xaxis.set_major_formatter(lambda step, _: f"{step:.0f}")
    if len(steps):
        first, last = float(steps["step"].min()), float(steps["step"].max())
        if first == last:
            axis.xaxis.set_major_locator(FixedLocator([first]))
        margin = max(0.5, 0.04 * (last - first), 1e-6 * last)
        axis.set_xlim(first - margin, last + margin)


def _plan_texts(summary: RunSummary) -> list[str]:
    """What the run was."""
    if summary.model is None:
        return []
    ranks = counted_ranks(summary.gpus or 0, summary.device)
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


def _draw_loss(axis: Axes, steps: pd.DataFrame, validations: pd.DataFrame) -> None:
    is_beyond = np.isfinite(steps["loss"]) & (steps["loss"].abs() > DRAWABLE)
    steps = steps.assign(loss=steps["loss"].where(~is_beyond))
    undone, curve = steps[steps["superseded"]], steps[~steps["superseded"]]
    if is_beyond.any():
        axis.plot([], [], " ", label=f"loss beyond {DRAWABLE:g}, not drawn: {is_beyond.sum()}")
    elif not np.isfinite(steps["loss"]).any():
        write_message(axis, "no finite loss recorded")
    if not np.isfinite(steps["loss"]).any():
        axis.set_yticks([])
    if len(undone):
        for _, part in undone.groupby("attempt"):
            axis.plot(part["step"], part["loss"], color=GREY, lw=0.8, zorder=1)
        axis.plot([], [], color=GREY, lw=0.8, label="undone by a restart")
    if np.isfinite(curve["loss"]).any():
        marker = "o" if len(curve) < 40 else ""
        axis.plot(curve["step"], curve["loss"], color=BLUE, marker=marker, ms=2.5, label="mean of all ranks")
    held_out = validations[~validations["superseded"] & validations["loss"].notna()]
    held_out = held_out[held_out["loss"].abs() <= DRAWABLE]
    if len(held_out):
        losses = held_out["loss"].astype(float)
        axis.plot(held_out["step"], losses, color=ORANGE, marker="D", ms=3.5, lw=0.8, label="on held-out data")
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
    if axis.get_legend_handles_labels()[1]:
        legend_below(axis)


def _draw_step_time(axis: Axes, summary: RunSummary, steps: pd.DataFrame) -> None:
    curve = steps[~steps["superseded"]]
    steady, other = curve[curve["steady"]], curve[~curve["steady"]]
    if not np.isfinite(curve["step_time_s"]).any():
        empty_panel(axis, "no step time recorded")
        return
    top = _axis_top(curve, steady)
    not_counted = f"{', '.join(word for flag, word in _NOT_COUNTED.items() if other[flag].any())}: not counted"
    _draw_points(axis, other, "step_time_s", top, color=GREY, marker="o", mfc="white", label=not_counted)
    _draw_points(axis, steady, "step_time_s", top, color=BLUE, marker="o", label="steady")
    flagged = "outlier, counted all the same"
    outliers = curve[curve["outlier"]]
    _draw_points(axis, outliers, "step_time_s", top, color=VERMILLION, marker="s", mfc="none", label=flagged)
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
    legend_below(axis)


def _axis_top(curve: pd.DataFrame, steady: pd.DataFrame) -> float:
    """Upper end of the time axis: above all steps, at most a good twice the steady ones; slower ones go to the edge."""
    rows = curve if steady.empty else steady
    steady_s, all_s = (
        part["step_time_s"].where(np.isfinite(part["step_time_s"])).fillna(0).clip(upper=DRAWABLE)
        for part in (rows, curve)
    )
    return min(DRAWABLE, 2.2 * float(steady_s.quantile(0.99)), 1.1 * float(all_s.max())) or 1.0


def _draw_points(
    axis: Axes, rows: pd.DataFrame, column: str, top: float, *, color: str, label: str, **style: Any
) -> None:
    """Points, and at the upper edge a triangle for each that lies above it."""
    if not np.isfinite(rows[column]).any():
        return
    inside = rows[rows[column] <= top]
    axis.plot(inside["step"], inside[column], ls="", ms=3, color=color, label=label, **style)
    above = rows[np.isfinite(rows[column]) & (rows[column] > top)]
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
    # A log of another system may not tell the tokens of a step; they are 0 then.
    curve = steps[~steps["superseded"] & (steps["step_time_s"] > 0) & (steps["tokens"] > 0)]
    steady, other = curve[curve["steady"]], curve[~curve["steady"]]
    if curve.empty and summary.tokens_per_s is None:
        empty_panel(axis, "tokens of a step not known")
        return
    for rows, colour, face, label in ((other, GREY, "white", "not counted"), (steady, BLUE, BLUE, "steady")):
        if len(rows):
            rates = rows["tokens"] / rows["step_time_s"]
            axis.plot(rows["step"], rates, ls="", marker="o", ms=3, color=colour, mfc=face, label=label)
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
    legend_below(axis)


def _draw_memory(axis: Axes, summary: RunSummary, steps: pd.DataFrame) -> None:
    known = steps[steps["peak_memory_bytes"] > 0]
    if known.empty and summary.predicted_memory_bytes is None:
        empty_panel(axis, "no memory recorded")
        return
    measure = "resident size of the process" if summary.device == "cpu" else "GPU allocator"
    if summary.source != OWN_SOURCE:
        measure = "as the log tells it"
    for attempt, part in known.groupby("attempt"):
        label = f"measured ({measure})" if attempt == known["attempt"].min() else None
        marker = "o" if len(part) < 3 else ""
        axis.plot(part["step"], part["peak_memory_bytes"] / GIB, color=BLUE, marker=marker, ms=2.5, label=label)
    if summary.predicted_memory_bytes is not None:
        predicted = summary.predicted_memory_bytes / GIB
        axis.axhline(predicted, color=VERMILLION, ls="--", label=f"predicted by the plan: {predicted:.3g} GiB")
    if summary.memory_capacity_bytes is not None:
        capacity = summary.memory_capacity_bytes / GIB
        axis.axhline(capacity, color=BLACK, ls=":", label=f"capacity of the GPU: {capacity:.3g} GiB")
    axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
    legend_below(axis)
