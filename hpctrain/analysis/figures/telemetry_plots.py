"""Figures of telemetry: memory of hosts and GPUs, use and power of GPUs, over the time or the steps of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    VERMILLION,
    WIDTH_IN,
    is_far_above,
    message_figure,
    models_on_hardware,
    set_title,
    time_unit,
)
from hpctrain.units import GIB

HorizontalAxis = Literal["time", "step"]
MAX_BINS = 400
"""Points along a figure; looks that fall into one of them are joined."""
_PEAKS = (
    "host_used_bytes",
    "host_total_bytes",
    "ranks_rss_bytes",
    "gpu_mean_bytes",
    "gpu_max_bytes",
    "gpu_capacity_bytes",
)
_MEANS = ("gpu_utilisation", "gpu_power_w")
QUANTITIES = (*_PEAKS, *_MEANS)


@dataclass(frozen=True)
class _Line:
    """One quantity of a panel."""

    quantity: str
    label: str
    colour: str
    line_style: str
    spread: bool = True
    """Draw the nodes' smallest to largest value as a band."""
    statistic: str = "mean"
    is_capacity: bool = False
    """Drawn only where the panel's other lines come near it; else the legend tells its value."""


@dataclass(frozen=True)
class _Panel:
    label: str
    unit: float
    lines: tuple[_Line, ...]


_PANELS = (
    _Panel(
        "host memory\n(GiB a node)",
        GIB,
        (
            _Line(
                "host_total_bytes", "memory of the node", BLACK, ":", spread=False, statistic="low", is_capacity=True
            ),
            _Line("host_used_bytes", "in use, by anybody", BLUE, "-"),
            _Line("ranks_rss_bytes", "resident size of this run's ranks", ORANGE, "--"),
        ),
    ),
    _Panel(
        "GPU memory\n(GiB a GPU)",
        GIB,
        (
            _Line(
                "gpu_capacity_bytes", "memory of the GPU", BLACK, ":", spread=False, statistic="low", is_capacity=True
            ),
            _Line("gpu_max_bytes", "in use on the fullest GPU", VERMILLION, "-", spread=False, statistic="high"),
            _Line("gpu_mean_bytes", "in use, mean over GPUs", BLUE, "--"),
        ),
    ),
    _Panel("GPU busy\n(% of time)", 0.01, (_Line("gpu_utilisation", "a kernel runs, mean over GPUs", BLUE, "-"),)),
    _Panel("GPU power\n(kW a node)", 1e3, (_Line("gpu_power_w", "drawn by the node's GPUs", BLUE, "-"),)),
)


def plot_telemetry(samples: pd.DataFrame, runs: pd.DataFrame, folder: str, along: HorizontalAxis = "time") -> Figure:
    """Host and GPU memory, and where the driver tells them use and power of the GPUs, along one run.

    A line is the mean over nodes and the band around it reaches from the smallest to the largest node; with one node
    there is no band. A restart is a dotted line; along the steps, what it undid is pale.

    Args:
        samples: frame ``samples``, of any number of runs.
        runs: frame ``runs``; its row of ``folder`` gives the title.
        folder: which run.
        along: ``time`` since the first look, or the last ended optimizer ``step``.
    """
    ours = samples[samples["folder"] == folder]
    row = runs[runs["folder"] == folder]
    name = row["run"].iloc[0] if len(row) else folder
    if ours.empty:
        return message_figure(f"Telemetry of {name}", "this run recorded no telemetry")
    bands = telemetry_bands(ours, along)
    panels = [panel for panel in _PANELS if bands[f"{panel.lines[-1].quantity}_mean"].notna().any()]
    nodes, gpus = ours["node"].nunique(), int(ours.groupby("node")["num_gpus"].max().sum())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.0 + 1.5 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        model = models_on_hardware(row)
        counted = f"{nodes} {'node' if nodes == 1 else 'nodes'}, {gpus or 'no'} {'GPU' if gpus == 1 else 'GPUs'}"
        band = ["lines: mean over nodes; bands: smallest to largest node"] if nodes > 1 else []
        set_title(figure, f"Telemetry of {name} (1 run)", f"{model}, {counted}; no FLOP count enters", *band)
        scale, label = _horizontal(bands, along)
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, bands, scale, nodes)
            for start in _starts(bands).iloc[1:]:
                axis.axvline(start / scale, color=GREY, lw=0.9, ls=":", zorder=1)
        axes[-1].set_xlabel(label)
        return figure


def telemetry_bands(samples: pd.DataFrame, along: HorizontalAxis) -> pd.DataFrame:
    """Smallest, mean and largest node of each quantity along one run.

    Looks of different nodes happen at different moments; those that fall into one bin, as wide as the usual time between
    two looks or one step, are held against each other. Of several looks of one node in a bin the largest memory counts,
    and the mean of use and power.

    Args:
        samples: of one run, not empty.
        along: ``time`` (``x`` in seconds since the first look of the run) or ``step``.

    Returns:
        A row an attempt and bin: ``attempt``, ``x``, ``num_nodes``, and for each of ``QUANTITIES`` the columns ``_low``,
        ``_mean`` and ``_high``.
    """
    looks = samples.assign(
        gpu_mean_bytes=_per_gpu(samples, "gpu_used_bytes"),
        gpu_capacity_bytes=_per_gpu(samples, "gpu_total_bytes"),
        gpu_max_bytes=samples["gpu_used_max_bytes"].astype("float64").where(samples["num_gpus"] > 0),
    )
    looks = looks.astype(dict.fromkeys(QUANTITIES, "float64"))
    looks["bin"] = _bins(looks, along)
    statistics = dict.fromkeys(_PEAKS, "max") | dict.fromkeys(_MEANS, "mean")
    by_node = looks.groupby(["attempt", "bin", "node"]).agg(statistics).reset_index()
    across = by_node.groupby(["attempt", "bin"])
    columns = {f"{q}_{name}": (q, how) for q in QUANTITIES for name, how in _ACROSS.items()}
    table = across.agg(num_nodes=("node", "size"), **columns).reset_index()
    return table.rename(columns={"bin": "x"})


_ACROSS = {"low": "min", "mean": "mean", "high": "max"}


def _per_gpu(samples: pd.DataFrame, column: str) -> Any:
    """The sum over a node's GPUs divided by their number; NaN where there is none."""
    gpus = samples["num_gpus"].astype("float64")
    return samples[column].astype("float64") / gpus.where(gpus > 0)


def _bins(looks: pd.DataFrame, along: HorizontalAxis) -> Any:
    """The left edge of each look's bin: seconds since the first look, or a step."""
    if along == "step":
        steps = _placed_steps(looks)
        width = max(1.0, float(steps.max()) / MAX_BINS)
        return (steps // width) * width
    since_s = looks["time_s"].astype("float64") - float(looks["time_s"].min())
    between_s = since_s.groupby([looks["attempt"], looks["node"]]).diff()
    usual_s = float(between_s[between_s > 0].median()) if (between_s > 0).any() else 1.0
    width = max(usual_s, float(since_s.max()) / MAX_BINS)
    return (since_s // width) * width


def _placed_steps(looks: pd.DataFrame) -> pd.Series[float]:
    """The last ended step of each look; set-up lies before the attempt's own first step, not at the run's.

    NaN for an attempt after the first that ended no step: it has no place on this axis.
    """
    steps = looks["step"].astype("float64")
    first = steps.where(steps > 0).groupby(looks["attempt"]).transform("min")
    is_first_attempt = looks["attempt"] == looks["attempt"].min()
    return steps.where((steps > 0) | is_first_attempt, first - 1)


def _horizontal(bands: pd.DataFrame, along: HorizontalAxis) -> tuple[float, str]:
    if along == "step":
        return 1.0, "optimizer step that had ended at the look (0: set-up)"
    size_s, unit = time_unit(float(bands["x"].max()))
    return size_s, f"time since the run's first look ({unit})"


def _draw_panel(axis: Axes, panel: _Panel, bands: pd.DataFrame, scale: float, nodes: int) -> None:
    axis.set_ylabel(panel.label)
    largest = max(bands[f"{line.quantity}_high"].max() for line in panel.lines if not line.is_capacity)
    for line in panel.lines:
        smallest = bands[f"{line.quantity}_low"].min()
        if line.is_capacity and is_far_above(smallest, largest):
            axis.plot([], [], ls="", label=f"{line.label}: {smallest / panel.unit:.4g} GiB, above the axis")
            continue
        for number, part in enumerate(_parts(bands)):
            pale = bool(part["undone"].iloc[0])
            x = part["x"].to_numpy(dtype=float) / scale
            low, middle, high = (
                part[f"{line.quantity}_{name}"].to_numpy(dtype=float) / panel.unit for name in ("low", line.statistic, "high")
            )  # fmt: skip
            axis.plot(
                x,
                middle,
                color=line.colour,
                ls=line.line_style,
                marker="o" if len(x) < 3 else "",
                ms=2.5,
                alpha=0.35 if pale else 1,
                label="" if number else line.label,
            )
            if line.spread and not pale and nodes > 1 and np.isfinite(middle).any():
                axis.fill_between(x, low, high, color=line.colour, alpha=0.25, lw=0)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axis.set_ymargin(0.1)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0.3)


def _starts(bands: pd.DataFrame) -> pd.Series[float]:
    """Where each attempt begins on the horizontal axis."""
    starts: pd.Series[float] = bands.groupby("attempt")["x"].min()
    return starts


def _parts(bands: pd.DataFrame) -> list[pd.DataFrame]:
    """Stretches that are drawn as one line: each attempt up to where a later one begins, and what lies beyond."""
    starts = _starts(bands)
    later = starts[::-1].cummin().shift(1, fill_value=np.inf)
    undone = bands["x"] >= bands["attempt"].map(later)
    return [part for _, part in bands.assign(undone=undone).groupby(["attempt", "undone"], sort=True)]
