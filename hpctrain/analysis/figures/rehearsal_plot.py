"""The figure of a rehearsal: a rank's memory over the course of a step, and who owns it at each phase's peak."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpctrain.analysis.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LEGEND_LINE_IN,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    VERMILLION,
    WIDTH_IN,
    empty_panel,
    is_far_above,
    set_title,
)
from hpctrain.plan.memory.terms import OUTSIDE_OF_TORCH
from hpctrain.rehearse.result import OWNERS, PHASES, Owner, Phase, Rehearsal, Tier, TierPhase
from hpctrain.units import GIB, MIB, short_count

OWNER_COLOURS: dict[Owner, str] = {
    "parameters": BLUE,
    "persistent_parameters": SKY,
    "gathered_parameters": ORANGE,
    "gradients": GREEN,
    "optimizer": PURPLE,
    "activations": VERMILLION,
    "buffers": GREY,
    "temporary": "#F0E442",
    "other": BLACK,
}
BAND_COLOURS: dict[Phase, str] = {"forward": "#E4EFF7", "backward": "#FCEFDA", "optimizer": "#E0F2EA"}
SMALL_SHARE = 0.01
"""A host that holds less than this share of the GPU in the step has no panels."""
_ROW_IN = 2.35
_LETTER_SHARE = 0.015
"""Share of the panel's width that a letter of a band's name takes."""
_LEAST_SHARE = 0.05
"""Share of the step's points that a phase takes at least, all its stretches together."""
_VISIBLE = 0.001
"""Share of the axis below which an owner is no line thick, and is left out of the legend."""
_MARGIN_LABEL = "if a parameter is freed late"
_TIER_NAMES: dict[Tier, str] = {"gpu": "GPU", "host": "Host"}


@dataclass(frozen=True)
class Unit:
    """Bytes of one unit, and its name."""

    num_bytes: int
    name: str


@dataclass(frozen=True)
class Limits:
    """What the bars of one tier are held against, in bytes; None: not known, or of no meaning for this tier."""

    predicted: int | None
    capacity: int | None
    margin: int


def plot_rehearsal(rehearsal: Rehearsal) -> Figure:
    """Live memory of the rank over the reported step, phases as bands; beside it each phase's peak, stacked by owner.

    A row for the tier where the model lives, and one for the host where it holds more than ``SMALL_SHARE`` of that. In a quick
    rehearsal the course is that of a model of fewer layers, and only the bars are of the whole one.
    """
    tiers = [tier for tier in _tiers(rehearsal) if rehearsal.rows(tier)]
    with mpl.rc_context(STYLE):
        height = 1.05 + _ROW_IN * max(1, len(tiers)) + 3 * LEGEND_LINE_IN
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        set_title(figure, *_title_lines(rehearsal))
        grid = figure.subplots(max(1, len(tiers)), 2, squeeze=False, width_ratios=(1.75, 1))
        if not tiers:
            for axis in grid.flat:
                empty_panel(axis, "no memory recorded")
            return figure
        for (course, bars), tier in zip(grid, tiers, strict=True):
            limits = _limits(rehearsal, tier)
            unit = byte_unit(_highest(rehearsal, tier, limits))
            _draw_bars(bars, rehearsal, tier, unit, limits)
            _draw_course(course, rehearsal, tier, unit)
            if rehearsal.way == "whole":
                course.set_ylim(bars.get_ylim())
                _draw_limits(course, limits, unit)
        _legend(figure, list(grid.flat))
        return figure


def _tiers(rehearsal: Rehearsal) -> list[Tier]:
    """Those with panels: where the model lives, and the host where the step holds anything worth a panel there."""
    main = rehearsal.main_tier
    main_peak, host_peak = rehearsal.peak(main), rehearsal.peak("host")
    if main == "host" or main_peak is None or host_peak is None:
        return [main]
    return [main] if host_peak.peak_bytes < SMALL_SHARE * main_peak.peak_bytes else [main, "host"]


def _title_lines(rehearsal: Rehearsal) -> tuple[str, ...]:
    """What was rehearsed, and its peak; the host's too where it has no panels."""
    first = (
        f"Rehearsal of rank {rehearsal.rank} of {rehearsal.world_size}: {rehearsal.model_name}"
        f" ({short_count(rehearsal.num_parameters)} parameters, {rehearsal.num_layers} layers), ZeRO-{rehearsal.zero_stage}"
    )
    peak = rehearsal.peak(rehearsal.main_tier)
    if peak is None:
        return (first,)
    limits = _limits(rehearsal, peak.tier)
    parts = [f"{_TIER_NAMES[peak.tier]} peak {_size(peak.peak_bytes)} in {peak.phase}"]
    if limits.margin:
        parts[0] += f", {_size(limits.margin)} more {_MARGIN_LABEL}"
    if limits.capacity is not None:
        parts.append(f"capacity {_size(limits.capacity)}")
    hosts = rehearsal.rows("host")
    if "host" not in _tiers(rehearsal) and hosts:
        fullest = max(hosts, key=lambda row: row.peak_bytes)
        parts.append(f"host at most {_size(fullest.peak_bytes)}, in {fullest.phase}")
    return first, "; ".join(parts)


def _limits(rehearsal: Rehearsal, tier: Tier) -> Limits:
    """Capacity and margin are of the tier where the model lives."""
    terms = [size for name, place, size in rehearsal.planned_memory if place == tier and name not in OUTSIDE_OF_TORCH]
    return Limits(
        predicted=sum(terms) or None,
        capacity=rehearsal.gpu_capacity_bytes if tier == "gpu" else None,
        margin=rehearsal.late_free_margin_bytes if tier == rehearsal.main_tier else 0,
    )


def _highest(rehearsal: Rehearsal, tier: Tier, limits: Limits) -> int:
    return max([*(row.peak_bytes for row in rehearsal.rows(tier)), limits.predicted or 0, limits.margin])


def byte_unit(largest_bytes: int) -> Unit:
    """GiB, or a smaller unit of which the largest value has at least one.

    >>> byte_unit(3 * GIB).name, byte_unit(GIB - 1).name, byte_unit(10).name
    ('GiB', 'MiB', 'KiB')
    """
    units = (Unit(GIB, "GiB"), Unit(MIB, "MiB"))
    return next((unit for unit in units if largest_bytes >= unit.num_bytes), Unit(1024, "KiB"))


def _size(num_bytes: int) -> str:
    unit = byte_unit(num_bytes)
    return f"{num_bytes / unit.num_bytes:.3g} {unit.name}"


def _draw_course(axis: Axes, rehearsal: Rehearsal, tier: Tier, unit: Unit) -> None:
    """Live bytes from change to change; on the host the pinned part apart."""
    line = rehearsal.timeline
    rows = np.flatnonzero(np.asarray(line.step) == rehearsal.reported_step)
    if not len(rows):
        empty_panel(axis, "no course of the step recorded")
        return
    stretches = _stretches(np.asarray(line.phase)[rows])
    places = np.concatenate([np.linspace(s.left, s.right, s.num_points, endpoint=False) for s in stretches])
    places = np.append(places, stretches[-1].right)
    for stretch in stretches:
        axis.axvspan(stretch.left, stretch.right, color=BAND_COLOURS.get(stretch.phase, "#EEEEEE"), lw=0, zorder=0)
    _name_bands(axis, stretches)
    live = _levels(line.gpu_bytes if tier == "gpu" else line.host_bytes, rows, unit)
    axis.fill_between(places, live, step="post", color=BLUE, alpha=0.25, lw=0)
    axis.plot(places, live, drawstyle="steps-post", color=BLUE, lw=0.9, label="live")
    if tier == "host" and any(line.pinned_bytes):
        pinned = _levels(line.pinned_bytes, rows, unit)
        axis.plot(places, pinned, drawstyle="steps-post", color=VERMILLION, lw=0.9, label="of it pinned")
    axis.set_xlim(0, stretches[-1].right)
    axis.set_ylim(0, 1.12 * max(float(live.max()), 1e-9))
    depth = (
        "" if line.num_layers == rehearsal.num_layers else f", at {line.num_layers} of {rehearsal.num_layers} layers"
    )
    axis.set_title(f"{_TIER_NAMES[tier]} over step {rehearsal.reported_step}{depth}")
    # By operators executed, the loops in which the engine cuts buffers into a slice for each rank would fill the picture.
    axis.set_xlabel("changes of memory in their order (a rehearsal has no clock)")
    axis.set_xticks([])
    axis.set_ylabel(f"live bytes ({unit.name})")


@dataclass(frozen=True)
class _Stretch:
    """Points of one phase on end, and where they are drawn."""

    phase: Phase
    num_points: int
    left: float
    right: float


def _stretches(phases: NDArray[np.int64]) -> list[_Stretch]:
    """A point a unit; a phase of few points is widened so that it can be seen."""
    starts = np.flatnonzero(np.diff(phases, prepend=-1))
    sizes = np.diff(starts, append=len(phases))
    found: list[_Stretch] = []
    left = 0.0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        number = int(phases[start])
        least = _LEAST_SHARE * len(phases) / int((phases[starts] == number).sum())
        found.append(_Stretch(PHASES[number], size, left, left + max(size, least)))
        left = found[-1].right
    return found


def _name_bands(axis: Axes, stretches: list[_Stretch]) -> None:
    """The widest band of each phase bears its name: across, or upright where it is narrow."""
    whole = stretches[-1].right
    for phase in dict.fromkeys(stretch.phase for stretch in stretches):
        widest = max((s for s in stretches if s.phase == phase), key=lambda s: s.right - s.left)
        is_wide = widest.right - widest.left >= _LETTER_SHARE * len(phase) * whole
        axis.text(
            (widest.left + widest.right) / 2, 0.985, phase, transform=axis.get_xaxis_transform(), ha="center", va="top",
            size=7, color="#555555", rotation=0 if is_wide else 90,
        )  # fmt: skip


def _levels(column: tuple[int, ...], rows: NDArray[np.int64], unit: Unit) -> NDArray[np.float64]:
    """The values of the step in units, the last one twice: where it begins and where it ends."""
    values = np.asarray(column)[rows] / unit.num_bytes
    return np.append(values, values[-1])


def _draw_bars(axis: Axes, rehearsal: Rehearsal, tier: Tier, unit: Unit, limits: Limits) -> None:
    """A bar for each phase: its peak, stacked by owner; above the step's highest the margin."""
    rows = rehearsal.rows(tier)
    places = np.arange(len(rows))
    peak = rehearsal.peak(tier)
    top = 1.12 * _top(rows, peak, limits) / unit.num_bytes
    bottom = np.zeros(len(rows))
    for owner in OWNERS:
        sizes = np.array([row.peak_by_owner.get(owner, 0) for row in rows]) / unit.num_bytes
        if sizes.any():
            axis.bar(
                places, sizes, 0.68, bottom=bottom, color=OWNER_COLOURS[owner], edgecolor="white", lw=0.3,
                label=_words(owner) if sizes.max() >= _VISIBLE * top else None,
            )  # fmt: skip
            bottom = bottom + sizes
    if peak is not None and limits.margin:
        margin = limits.margin / unit.num_bytes
        axis.bar(
            rows.index(peak), margin, 0.68, bottom=peak.peak_bytes / unit.num_bytes, color="none", edgecolor=BLACK, lw=0.5,
            hatch="////", label=_MARGIN_LABEL,
        )  # fmt: skip
    axis.set_ylim(0, top)
    _draw_limits(axis, limits, unit)
    axis.set_xticks(places, [row.phase for row in rows], rotation=30, ha="right", rotation_mode="anchor")
    axis.grid(axis="x", visible=False)
    is_whole = rehearsal.way == "whole"
    axis.set_title("Peak of each phase" if is_whole else f"Peaks, extended to {rehearsal.num_layers} layers")
    axis.set_ylabel(unit.name)


def _top(rows: tuple[TierPhase, ...], peak: TierPhase | None, limits: Limits) -> float:
    """The highest thing to draw, in bytes."""
    drawn = max(row.peak_bytes for row in rows)
    if peak is not None:
        drawn = max(drawn, peak.peak_bytes + limits.margin)
    drawn = max(drawn, limits.predicted or 0, 1)
    if limits.capacity is not None and not is_far_above(limits.capacity, drawn):
        drawn = max(drawn, limits.capacity)
    return drawn


def _draw_limits(axis: Axes, limits: Limits, unit: Unit) -> None:
    """The planner's prediction and the capacity, where they lie within the axis."""
    top = axis.get_ylim()[1]
    if limits.predicted is not None:
        axis.axhline(
            limits.predicted / unit.num_bytes, color=VERMILLION, ls="--", lw=0.9, label="predicted by the plan"
        )
    if limits.capacity is not None and limits.capacity / unit.num_bytes <= top:
        axis.axhline(limits.capacity / unit.num_bytes, color=BLACK, ls=":", lw=1.1, label="capacity of the GPU")


def _legend(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all panels, each label once: lines and the margin, then the owners in their order."""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    found = {label: handle for handle, label in pairs}
    owners = [label for owner in OWNERS if (label := _words(owner)) in found]
    labels = [*(label for label in found if label not in owners), *owners]
    figure.legend([found[label] for label in labels], labels, loc="outside lower center", ncols=4)


def _words(owner: Owner) -> str:
    return owner.replace("_", " ")
