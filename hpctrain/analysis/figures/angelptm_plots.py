"""AngelPTM's four results in one figure: ratios, since nothing else is published, and our prediction of their base."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpctrain.analysis.angelptm_figures import HARDWARE, RESULTS, Result, angelptm_points, own_runs
from hpctrain.analysis.figures.style import BLACK, BLUE, GREY, STYLE, VERMILLION, WIDTH_IN, set_title, write_message
from hpctrain.analysis.predicted import ASSUMED_SEQ_LEN

_MAX_RATIO = 2.7
_BARS: dict[str, dict[str, Any]] = {
    "base": {"facecolor": GREY, "edgecolor": GREY},
    "published": {"facecolor": BLUE, "edgecolor": BLUE},
    "up to": {"facecolor": "white", "edgecolor": BLUE, "hatch": "///"},
    "predicted": {"facecolor": "white", "edgecolor": VERMILLION, "linestyle": "--", "linewidth": 1.2},
}


def plot_angelptm(published: pd.DataFrame, runs: pd.DataFrame, host_memory_gib: float | None = None) -> Figure:
    """A panel a result: the base at 1, AngelPTM's published ratio, our prediction and our runs where there are any.

    Args:
        published: of ``load_published``.
        runs: frame ``runs``.
        host_memory_gib: memory of a node; None: no largest model is predicted.
    """
    points = angelptm_points(published, runs, host_memory_gib)
    count = int(own_runs(runs)["valid"].sum())
    measured = f"{count} of our runs on {HARDWARE}" if count else f"no run of ours on {HARDWARE}"
    assumed = "no memory stated for" if host_memory_gib is None else f"{host_memory_gib:,.0f} GiB of"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.0), layout="constrained")
        set_title(
            figure,
            "AngelPTM: published gains over the community version of DeepSpeed",
            f"GPT on nodes of 8 A100-40GB with 100 Gb/s between them; {measured}",
            f"predicted: sizes with {assumed} a host; speeds with {ASSUMED_SEQ_LEN:,} tokens, states on the host",
            "ratios of sizes and speeds, no FLOP count enters",
        )
        axes = figure.subplots(2, 2, height_ratios=[1.25, 1])
        for axis, result in zip(axes.flat, RESULTS, strict=True):
            part = points[points["result"] == result]
            axis.set_title(RESULTS[result], weight="normal")
            if result == "multi-node scaling":
                _draw_scaling(axis, part)
            else:
                _draw_ratios(axis, result, part)
        _legend(figure, set(points["series"]))
        return figure


def _draw_ratios(axis: Axes, result: Result, points: pd.DataFrame) -> None:
    """A bar a published or predicted ratio, from the base at 1, and a star a run of ours."""
    axis.set_xlim(0, _MAX_RATIO)
    axis.set_xlabel("ratio of parameters (base = 1)" if result == "largest model" else "ratio of speeds (base = 1)")
    axis.grid(axis="y", visible=False)
    if points.empty:
        axis.set_yticks([])
        write_message(axis, "not in the frame of published results")
        return
    order = points["series"].map({"base": 0, "published": 1, "predicted": 2, "measured": 3})
    rows = points.assign(order=order).sort_values(["order", "up_to"], kind="stable")
    for place, (series, ratio, up_to, runs) in enumerate(
        rows[["series", "ratio", "up_to", "num_runs"]].itertuples(index=False)
    ):
        text = "1" if series == "base" else f"{ratio:.3f}"
        if series == "measured":
            axis.plot([ratio], [place], "*", color=BLACK, ms=9)
            text += f" ({runs} {'run' if runs == 1 else 'runs'})"
        else:
            axis.barh(place, ratio, 0.6, **_BARS["up to" if up_to else series])
        axis.text(ratio + 0.08, place, text, va="center", size=7)
    axis.set_yticks(np.arange(len(rows)), rows["label"].tolist())
    axis.set_ylim(max(3, len(rows)) - 0.4, -0.6)


def _draw_scaling(axis: Axes, points: pd.DataFrame) -> None:
    """Weak scaling on such nodes, predicted and our own; AngelPTM's is not published as numbers."""
    axis.set_ylim(0, 130)
    axis.set_ylabel("weak scaling\nefficiency (%)")
    axis.set_xlabel("nodes")
    axis.axhline(100, color=GREY, ls=":")
    for (series, label), group in points.sort_values("nodes").groupby(["series", "label"]):
        nodes, ratios = (group[name].to_numpy(dtype=float) for name in ("nodes", "ratio"))
        if series == "measured":
            axis.plot(nodes, 100 * ratios, "*-", color=BLACK, ms=9, lw=0.8)
        else:
            axis.plot(nodes, 100 * ratios, "x--", color=VERMILLION, ms=3.5)
        above = 5 if series == "measured" else -5
        end = (nodes[-1], 100 * ratios[-1])
        axis.annotate(str(label), end, xytext=(5, above), textcoords="offset points", va="center", size=7)
    sizes = sorted(points["nodes"].unique())
    if sizes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(count) for count in sizes])
        axis.minorticks_off()
        axis.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.35)
    else:
        axis.set_xticks([])
    text = textwrap.fill("AngelPTM: published as an image only, no text gives a number", 44)
    axis.text(0.03, 0.05, text, transform=axis.transAxes, color="#555555", size=7)


def _legend(figure: Figure, present: set[str]) -> None:
    """What each look means; a series without a point says why."""
    handles: list[Patch | Line2D] = [
        Patch(**_BARS["base"], label="base: community version of DeepSpeed"),
        Patch(**_BARS["published"], label="published, printed (documentation)"),
        Patch(**_BARS["up to"], label="published, «up to», over other systems (paper)"),
    ]
    if "predicted" in present:
        label = "predicted by our plan of DeepSpeed, which is the base"
        handles.append(Line2D([], [], color=VERMILLION, ls="--", marker="x", ms=3.5, label=label))
    else:
        handles.append(Line2D([], [], ls="", label="predicted by our plan: none"))
    if "measured" in present:
        handles.append(Line2D([], [], color=BLACK, ls="", marker="*", ms=9, label="measured by us"))
    else:
        handles.append(Line2D([], [], ls="", label=f"measured by us: no run on {HARDWARE}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
