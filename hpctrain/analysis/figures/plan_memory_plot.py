"""The figure of planned memory: where the bytes of each tier go, how much there is, and what stays free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpctrain.analysis.figures.rehearsal_plot import OWNER_COLOURS, byte_unit
from hpctrain.analysis.figures.style import BLACK, LEGEND_LINE_IN, STYLE, VERMILLION, WIDTH_IN, is_far_above, set_title
from hpctrain.analysis.name_lists import short_name
from hpctrain.plan.memory.terms import OUTSIDE_OF_TORCH, Amounts, MemoryPhase, added, total
from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.compare import OWNER_OF_TERM
from hpctrain.rehearse.result import OWNERS, Owner
from hpctrain.units import short_count

MAX_POINTS = 24
"""Points of one figure; more are not legible on a page."""
_HATCHES = ("", "////", "....", "xxxx", "----", "++++")
"""Terms of one owner share its colour, and have one of these each."""
_NVME_TERMS = ("optimizer states on NVMe", "parameters on NVMe")
_OUTSIDE_COLOUR = "#DDDDDD"
_LEGEND_COLUMNS = 4
_VISIBLE = 0.002
"""Share of the axis below which a term is no line thick, and has no place in the legend."""
_PANEL_IN = 2.9
_TEXT_SHARE = 0.1
"""Of the axis, which the words above an upright bar take."""
_ACROSS_SHARE = 0.28
"""The same for a bar that lies."""
_CAPACITY = "capacity"
_FOUND_BY = {"rules": "estimated by closed rules", "rehearsal": "found by a rehearsal"}


@dataclass(frozen=True)
class PlannedMemory:
    """What is drawn of one plan."""

    label: str
    """Of a sweep's point what tells it from the others."""
    plan: RunPlan
    gpu_phases: dict[MemoryPhase, Amounts]
    """Of ``phase_memory.gpu_phases``; only a plan that is drawn alone needs them."""


@dataclass(frozen=True)
class _Bar:
    label: str
    amounts: Amounts
    capacity_bytes: int | None


@dataclass(frozen=True)
class _Panel:
    name: str
    bars: tuple[_Bar, ...]


def plot_plan_memory(points: Sequence[PlannedMemory]) -> Figure:
    """Stacked bars of what the plan says each tier holds, with a line at its capacity; terms in the colours of their owners.

    One plan has a bar for each phase of a GPU, and one each for a node's memory and NVMe at their peak. Several have a row
    each, the GPU's at its peak too, in a panel a tier.

    Args:
        points: at least one; of more than ``MAX_POINTS`` the first ones.
    """
    shown = points[:MAX_POINTS]
    is_one = len(shown) == 1
    panels = _panels_of_one(shown[0]) if is_one else _panels_of_sweep(shown)
    looks = _looks([bar for panel in panels for bar in panel.bars])
    with mpl.rc_context(STYLE):
        panel_in = _PANEL_IN if is_one else 0.5 + 0.34 * len(shown)
        legend_in = LEGEND_LINE_IN * (2 + -(-len(looks) // _LEGEND_COLUMNS))
        figure = Figure(figsize=(WIDTH_IN, 0.6 + panel_in + legend_in), layout="constrained")
        set_title(figure, *_title_lines(points, shown))
        widths = [1 + len(panel.bars) for panel in panels] if is_one else None
        grid = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths, sharey=not is_one)
        for axis, panel in zip(grid.flat, panels, strict=True):
            _draw(axis, panel, looks, across=not is_one)
        if not is_one:
            grid.flat[0].invert_yaxis()
        _legend(figure, list(grid.flat))
        return figure


def _panels_of_one(point: PlannedMemory) -> list[_Panel]:
    memory, need = point.plan.memory, point.plan.nvme
    found = []
    if memory.gpu_bytes:
        phases = point.gpu_phases if memory.found_by == "rules" else {}
        bars = [_Bar(phase, amounts, memory.gpu_capacity_bytes) for phase, amounts in phases.items()]
        height = _Bar("peak", _amounts(point.plan, "gpu"), memory.gpu_capacity_bytes)
        found.append(_Panel("GPU, by phase", tuple(bars)) if bars else _Panel("GPU", (height,)))
    host = _Bar("peak", _amounts(point.plan, "host"), memory.host_capacity_bytes)
    found.append(_Panel("Host, per node", (host,)))
    if need is not None:
        found.append(_Panel("NVMe, per node", (_Bar("peak", _amounts(point.plan, "nvme"), need.capacity_bytes),)))
    return found


def _panels_of_sweep(points: Sequence[PlannedMemory]) -> list[_Panel]:
    panels = []
    for tier, name in (("gpu", "GPU"), ("host", "Host, per node"), ("nvme", "NVMe, per node")):
        bars = tuple(
            _Bar(short_name(point.label), _amounts(point.plan, tier), _capacity(point.plan, tier)) for point in points
        )
        if any(bar.amounts for bar in bars):
            panels.append(_Panel(name, bars))
    return panels


def _amounts(plan: RunPlan, tier: str) -> Amounts:
    """Bytes by term at the height of one GPU, or of a node."""
    if tier == "nvme":
        need = plan.nvme
        if need is None:
            return {}
        ranks = need.ranks_per_node
        states, parameters = need.state_bytes + need.gradient_bytes, need.parameter_bytes
        parts = zip(_NVME_TERMS, (states, parameters), strict=True)
        return {name: ranks * num_bytes for name, num_bytes in parts if num_bytes}
    ranks = plan.memory.ranks_per_node if tier == "host" else 1
    return added(*({term.name: ranks * term.num_bytes} for term in plan.memory.terms if term.tier == tier))


def _capacity(plan: RunPlan, tier: str) -> int | None:
    if tier == "nvme":
        return None if plan.nvme is None else plan.nvme.capacity_bytes
    return plan.memory.gpu_capacity_bytes if tier == "gpu" else plan.memory.host_capacity_bytes


def _title_lines(points: Sequence[PlannedMemory], shown: Sequence[PlannedMemory]) -> tuple[str, ...]:
    plan = shown[0].plan
    kinds = " and ".join(dict.fromkeys(_FOUND_BY[point.plan.memory.found_by] for point in shown))
    by = f"{kinds}, not measured; no FLOP count enters"
    if len(points) > 1:
        models = ", ".join(dict.fromkeys(point.plan.model.name for point in points))
        more = f", the first {len(shown)}" if len(shown) < len(points) else ""
        hardware = ", ".join(dict.fromkeys(point.plan.hardware_name for point in points))
        return f"Planned memory of {len(points)} points{more}: {models} on {hardware}", by
    layout = plan.layout
    first = (
        f"Planned memory of {plan.model.name} ({short_count(plan.num_parameters)}), {plan.parallelism_name},"
        f" {layout.num_nodes:,} x {layout.gpus_per_node} ranks of {plan.hardware_name}"
    )
    return first, f"micro batch {plan.batch.micro_batch_size} of {plan.batch.seq_len:,} tokens; {by}"


def _owner(term: str) -> Owner | None:
    """Whose a term of the rules or of a rehearsal is; None: of what no storage of torch holds."""
    if term.endswith(" on NVMe"):
        return "optimizer" if term.startswith("optimizer") else "parameters"
    word = term.replace(" ", "_")
    return OWNER_OF_TERM.get(term) or next((owner for owner in OWNERS if owner == word), None)


def term_looks() -> dict[str, tuple[str, str]]:
    """Colour and hatch of every term that there is: the same in each picture, whatever else is drawn there."""
    rehearsed = [owner.replace("_", " ") for owner in OWNERS]
    terms = dict.fromkeys([*OWNER_OF_TERM, *_NVME_TERMS, *rehearsed, *OUTSIDE_OF_TORCH])
    looks = dict[str, tuple[str, str]]()
    for owner in (*OWNERS, None):
        colour = _OUTSIDE_COLOUR if owner is None else OWNER_COLOURS[owner]
        own = [term for term in terms if _owner(term) == owner]
        looks |= {term: (colour, hatch) for term, hatch in zip(own, _HATCHES[: len(own)], strict=True)}
    return looks


_LOOKS = term_looks()


def _looks(bars: Sequence[_Bar]) -> dict[str, tuple[str, str]]:
    """Those of the terms that are drawn, owner by owner, which is the order of a bar."""
    drawn = {term for bar in bars for term in bar.amounts}
    return {term: _LOOKS[term] for term in sorted(drawn, key=list(_LOOKS).index)}


def _draw(axis: Axes, panel: _Panel, looks: dict[str, tuple[str, str]], *, across: bool) -> None:
    """The bars, upright or across, beyond each what is free, or lacks; a line at the capacity, or words where it is far above."""
    tallest = max(total(bar.amounts) for bar in panel.bars)
    drawn = {
        bar.capacity_bytes for bar in panel.bars if bar.capacity_bytes and not is_far_above(bar.capacity_bytes, tallest)
    }
    unit = byte_unit(max([tallest, *drawn]))
    top = (1.3 if across else 1.16) * max([tallest, *drawn, 1]) / unit.num_bytes
    places = np.arange(len(panel.bars))
    ends = np.zeros(len(panel.bars))
    for term, (colour, hatch) in looks.items():
        sizes = np.array([bar.amounts.get(term, 0) for bar in panel.bars]) / unit.num_bytes
        if sizes.any():
            style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.3}
            style["label"] = term if sizes.max() >= _VISIBLE * top else None
            _ = (
                axis.barh(places, sizes, 0.66, left=ends, **style)
                if across
                else axis.bar(places, sizes, 0.7, bottom=ends, **style)
            )
            ends = ends + sizes
    above = {bar.capacity_bytes for bar in panel.bars} - drawn
    is_in_title = len(above) == 1 and len(panel.bars) > 1 and None not in above
    for place, bar in zip(places, panel.bars, strict=True):
        beside = (
            f"of {_size(bar.capacity_bytes)}"
            if bar.capacity_bytes and bar.capacity_bytes in above and not is_in_title
            else ""
        )
        _tell_room(axis, float(place), bar, unit.num_bytes, top, across, beside)
    for capacity in drawn:
        line = axis.axvline if across else axis.axhline
        line(capacity / unit.num_bytes, color=BLACK, ls="--", lw=1.1, label=_CAPACITY)
    names = [bar.label for bar in panel.bars]
    if across:
        axis.set(xlim=(0, top), xlabel=unit.name)
        axis.set_yticks(places, names)
        axis.grid(axis="y", visible=False)
    else:
        axis.set(ylim=(0, top), xlim=(-0.6, len(names) - 0.4), ylabel=unit.name)
        axis.set_xticks(places, names)
        axis.grid(axis="x", visible=False)
    axis.set_title(panel.name + "".join(f" (of {_size(capacity)})" for capacity in above if capacity and is_in_title))


def _tell_room(axis: Axes, place: float, bar: _Bar, unit_bytes: int, top: float, across: bool, beside: str) -> None:
    """What is free or lacks, at the end of its bar, or beyond the capacity where there is no room before it."""
    capacity, taken = bar.capacity_bytes, total(bar.amounts)
    if capacity is None:
        return
    end, level = taken / unit_bytes, capacity / unit_bytes
    is_short, is_drawn = taken > capacity, level <= top
    words = [_size(abs(capacity - taken)), "short" if is_short else "free", *filter(None, [beside])]
    share = _ACROSS_SHARE if across else _TEXT_SHARE
    at = level if is_drawn and 0 <= level - end < share * top else end
    at += 0.012 * top
    style: dict[str, Any] = {
        "size": 6.5,
        "color": VERMILLION if is_short else "#444444",
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85},
    }
    if across:
        axis.text(at, place, " ".join(words), ha="left", va="center", **style)
    else:
        axis.text(place, at, "\n".join(words), ha="center", va="bottom", linespacing=0.95, **style)


def _size(num_bytes: int) -> str:
    """Three digits, and whole units from a thousand on.

    >>> _size(1583 * 2**30), _size(2**28)
    ('1,583 GiB', '256 MiB')
    """
    unit = byte_unit(num_bytes)
    number = num_bytes / unit.num_bytes
    return f"{number:.3g} {unit.name}" if number < 1000 else f"{number:,.0f} {unit.name}"


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One for all panels: the capacity, then the terms, owner by owner."""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    found = {label: handle for handle, label in pairs}
    terms = [label for label in found if label != _CAPACITY]
    owners = [*OWNERS, None]
    terms.sort(key=lambda term: owners.index(_owner(term)))
    labels = [*([_CAPACITY] if _CAPACITY in found else []), *terms]
    figure.legend([found[label] for label in labels], labels, loc="outside lower center", ncols=_LEGEND_COLUMNS)
