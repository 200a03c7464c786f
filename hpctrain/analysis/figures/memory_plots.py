"""Figures of memory: what the plan predicted, term by term, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    VERMILLION,
    WIDTH_IN,
    is_far_above,
    message_figure,
    set_title,
    where,
)
from hpctrain.analysis.name_lists import short_name
from hpctrain.units import GIB

MAX_ROWS = 24
"""Runs of one figure; more are not legible on a page."""
MAX_TERMS = 7
"""Terms with a colour of their own; smaller ones are drawn together."""
REST = "smaller terms"
_COLOURS = (BLUE, ORANGE, GREEN, SKY, PURPLE, VERMILLION, GREY, "#DDDDDD")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "|||", "---", "")


def plot_memory(terms: pd.DataFrame, measured: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """A bar a run of predicted terms with the measured peaks as marks: above one rank, below the host of one node.

    Args:
        terms: of ``load_memory_terms``.
        measured: from ``measured_memory``.
        runs: frame ``runs``; the first ``MAX_ROWS`` of those with a plan are drawn, a filter of the caller chooses others.
    """
    planned = runs[runs["folder"].isin(terms["folder"])]
    shown = planned.head(MAX_ROWS)
    title = "Memory: predicted by the plan (bars), measured (marks)"
    if shown.empty:
        return message_figure(title, "no run with a plan to show")
    more = f" of {len(planned)}" if len(planned) > len(shown) else ""
    # One look a term in both panels: what lies on the GPU and what on the host are different terms.
    looks = _looks(terms[terms["folder"].isin(shown["folder"])])
    rows = measured.set_index("folder").loc[shown["folder"]]
    devices = rows["device"].fillna("cpu").tolist()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 2.2 + 0.48 * len(shown)), layout="constrained")
        rank, host = figure.subplots(2, 1)
        set_title(figure, title, f"{where(shown)}{more}; no FLOP count enters")
        tiers = ["host" if device == "cpu" else "gpu" for device in devices]
        _draw_bars(rank, _wide(terms, shown["folder"], tiers, per_node=False), looks)
        _draw_marks(rank, rows["measured_bytes"], "D", BLACK, "peak of rank 0 (allocator; CPU: resident size)")
        _draw_marks(rank, rows["gpu_driver_bytes"], "s", "none", "fullest GPU as the driver tells it")
        capacities = shown.set_index("folder")["memory_capacity_bytes"]
        _draw_capacity(rank, capacities, "memory of one rank: its GPU, on the CPU its resident size (GiB)")
        _draw_bars(host, _wide(terms, shown["folder"], ["host"] * len(shown), per_node=True), looks)
        _draw_marks(host, rows["host_ranks_bytes"], "^", BLACK, "resident size of a node's ranks")
        _draw_marks(host, rows["host_used_bytes"], "o", "none", "in use by anybody on the node")
        _draw_capacity(host, rows["host_total_bytes"], "host memory of one node (GiB)")
        labels = [short_name(name) for name in shown["run"]]
        for axis in (rank, host):
            axis.set_yticks(np.arange(len(labels)), labels)
            axis.set_ylim(len(labels) - 0.4, -0.6)
            axis.set_xlim(left=0)
            axis.grid(axis="y", visible=False)
        _shared_legend(figure, (rank, host))
        return figure


def _looks(terms: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Colour and hatch of each term, the largest first; terms beyond ``MAX_TERMS`` share the last."""
    order = terms.groupby("term")["num_bytes"].sum().sort_values(ascending=False, kind="stable").index
    looks = list(zip(_COLOURS, _HATCHES, strict=True))
    return {term: looks[min(number, MAX_TERMS)] for number, term in enumerate(order)}


def _wide(terms: pd.DataFrame, folders: pd.Series, tiers: Sequence[str], *, per_node: bool) -> pd.DataFrame:
    """Bytes by run (rows, in order) and term, of one rank or of a node's ranks together."""
    wanted = pd.DataFrame({"folder": folders.tolist(), "tier": pd.array(tiers, dtype="string")})
    chosen = wanted.merge(terms, on=["folder", "tier"])
    counted = chosen["num_bytes"] * (chosen["sharing_ranks"] if per_node else 1)
    table = chosen.assign(counted=counted).pivot_table(index="folder", columns="term", values="counted", aggfunc="sum")
    return table.reindex(folders.tolist()).astype("float64").fillna(0.0)


def _draw_bars(axis: Axes, table: pd.DataFrame, looks: dict[str, tuple[str, str]]) -> None:
    own = [term for term in list(looks)[:MAX_TERMS] if term in table]
    rest = [term for term in list(looks)[MAX_TERMS:] if term in table]
    left = np.zeros(len(table))
    for label, terms in [*((term, [term]) for term in own), *([(REST, rest)] if rest else [])]:
        widths = table[terms].sum(axis=1).to_numpy(dtype=float) / GIB
        colour, hatch = looks[terms[0]]
        axis.barh(
            np.arange(len(table)), widths, 0.6, left=left, color=colour, hatch=hatch, edgecolor="white", lw=0.4, label=label
        )  # fmt: skip
        left = left + widths


def _draw_marks(axis: Axes, values: pd.Series, marker: str, face: str, label: str, size: float = 5.5) -> None:
    """Marks of the runs for which there is a value."""
    sizes = values.to_numpy(dtype=float, na_value=np.nan) / GIB
    rows = np.flatnonzero(np.isfinite(sizes))
    filled = face != "none" and marker != "|"
    if len(rows):
        axis.plot(
            sizes[rows], rows, ls="", marker=marker, ms=size, color=BLACK, mfc=face, label=label, zorder=4, clip_on=False,
            mec="white" if filled else BLACK, mew=0.6 if filled else 1.1,
        )  # fmt: skip


def _draw_capacity(axis: Axes, capacities: pd.Series, label: str) -> None:
    """A stroke at each capacity, or the smallest in words where it would press the bars into a corner; and the axis' label."""
    smallest = capacities.min()
    if pd.notna(smallest) and is_far_above(smallest, GIB * axis.get_xlim()[1]):
        label += f"; capacity: {'' if smallest == capacities.max() else 'from '}{smallest / GIB:.4g} GiB"
    else:
        _draw_marks(axis, capacities, "|", BLACK, "capacity", size=11)
    axis.set_xlabel(label)


def _shared_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for both panels, each label once, bars before marks."""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    bars = [(handle, label) for handle, label in pairs if isinstance(handle, BarContainer)]
    marks = [(handle, label) for handle, label in pairs if not isinstance(handle, BarContainer)]
    found = {label: handle for handle, label in [*bars, *marks] if label}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=3)
