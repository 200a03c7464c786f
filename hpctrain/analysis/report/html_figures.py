"""The pictures of the report's page, as data URIs that need no network, with their limits told."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hpctrain.analysis.figures.agreement_plots import plot_memory_agreement, plot_step_time_agreement
from hpctrain.analysis.figures.figure_bytes import figure_bytes
from hpctrain.analysis.figures.goodput_plots import plot_goodput
from hpctrain.analysis.figures.plots import RATES, plot_scaling, plot_tflops
from hpctrain.analysis.figures.run_plot import plot_loss_and_step_time
from hpctrain.analysis.figures.telemetry_plots import plot_telemetry
from hpctrain.analysis.frames import Frames, run_summaries
from hpctrain.analysis.goodput import Goodput
from hpctrain.analysis.run_row import RunSummary, counted_ranks
from hpctrain.analysis.scaling import Scaling

MAX_RATED_RUNS = 30
"""Rows of the throughput figure; more would be taller than a screen."""
MAX_SCALING_GROUPS = 12
MAX_TELEMETRY_RUNS = 4
PIXELS_PER_INCH = 110
"""Of the page: the figures' 8 points become the size of the page's small text."""


@dataclass(frozen=True)
class Picture:
    """An image with the words for those who do not see it."""

    uri: str
    words: str
    width_px: int
    height_px: int
    note: str = ""


@dataclass(frozen=True)
class RunPicture:
    """Loss and step time of one run, and what stands above them."""

    anchor: str
    run: str
    valid: bool
    state: str
    line: str
    picture: Picture


def throughput_picture(runs: pd.DataFrame, published: pd.DataFrame | None) -> Picture | None:
    """TFLOP/s per GPU of the valid runs, and of published points of the same size; None if no run has a rate.

    Of many runs the fastest are shown, by model FLOPs, else by the first of ``RATES`` that a run has.
    """
    rate = runs[RATES].bfill(axis=1).iloc[:, 0]
    rated = runs.assign(rate=rate)[runs["valid"].astype(bool) & rate.notna()]
    if rated.empty:
        return None
    shown = rated.nlargest(MAX_RATED_RUNS, "rate", keep="first")
    # In the order of the table, so that a sweep stays together; the figure counts those without a mark.
    ordered = runs[runs.index.isin(shown.index) | ~runs.index.isin(rated.index)]
    note = ""
    if len(rated) > len(shown):
        note = f"The {len(shown)} valid runs with the most TFLOP/s of {len(rated)}; the table has all."
    words = f"Model, hardware and Megatron TFLOP/s per GPU of {len(shown)} runs, a row a run."
    points = None if published is None or published.empty else published
    return _svg(plot_tflops(ordered, points), words, note)


def scaling_picture(scaling: Scaling) -> Picture | None:
    """Efficiency over GPUs; None if no group has any."""
    points = scaling.points[scaling.points["efficiency"].notna()]
    if points.empty:
        return None
    sizes = points.groupby("group", sort=False)["gpus"].nunique()
    shown = sizes.nlargest(MAX_SCALING_GROUPS, keep="first").index
    note = ""
    if len(sizes) > len(shown):
        note = f"The {len(shown)} groups with the most sizes of {len(sizes)}; the table has all."
    part = dataclasses.replace(scaling, points=points[points["group"].isin(shown)])
    words = f"{scaling.kind.capitalize()} scaling efficiency over GPUs, {len(shown)} group(s), ideal at 100 %."
    return _svg(plot_scaling(part), words, note)


def agreement_pictures(runs: pd.DataFrame) -> list[Picture]:
    """Predicted against measured step time and memory, those for which a run has both."""
    return [
        _svg(plot(runs), f"Predicted against measured {what}, a mark a run.", "")
        for what, plot, predicted, measured in (
            ("step time", plot_step_time_agreement, "predicted_step_time_s", "step_time_s"),
            ("memory", plot_memory_agreement, "predicted_memory_bytes", "peak_memory_bytes"),
        )
        if (runs[predicted].notna() & runs[measured].notna() & runs["valid"].astype(bool)).any()
    ]


def goodput_picture(result: Goodput, runs: pd.DataFrame) -> Picture | None:
    """Shares of the wall-clock time of each run; None if no run has time stamps."""
    if not result.runs["goodput_share"].notna().any():
        return None
    return _svg(plot_goodput(result, runs), "Share of each run's wall-clock time by what it was spent on.", "")


def telemetry_pictures(frames: Frames) -> list[Picture]:
    """Memory, use and power along the first ``MAX_TELEMETRY_RUNS`` runs that recorded them."""
    folders = frames.samples["folder"].unique().tolist()
    return [
        _png(plot_telemetry(frames.samples, frames.runs, folder), f"Telemetry along the run in {folder}.")
        for folder in folders[:MAX_TELEMETRY_RUNS]
    ]


def run_pictures(frames: Frames, max_pictures: int) -> list[RunPicture]:
    """Loss and step time of the first ``max_pictures`` runs that recorded a step, valid ones first."""
    with_steps = frames.runs[frames.runs["num_recorded_steps"] > 0]
    chosen = with_steps.sort_values("valid", ascending=False, kind="stable").head(max_pictures).sort_index()
    places = {folder: place for place, folder in enumerate(frames.runs["folder"].tolist(), start=1)}
    steps = _steps_by_folder(frames.steps, chosen["folder"].tolist())
    return [
        _run_picture(
            summary, steps[summary.folder], frames.validations_of(summary.folder), f"run-{places[summary.folder]}"
        )
        for summary in run_summaries(chosen)
        if summary.folder in steps
    ]


def _steps_by_folder(steps: pd.DataFrame, folders: Sequence[Any]) -> dict[str, pd.DataFrame]:
    wanted = steps[steps["folder"].isin(folders)]
    return {str(folder): part for folder, part in wanted.groupby("folder")}


def _run_picture(summary: RunSummary, steps: pd.DataFrame, validations: pd.DataFrame, anchor: str) -> RunPicture:
    ranks = counted_ranks(summary.gpus, summary.device) if summary.gpus else None
    parts = [summary.model, summary.hardware, ranks, summary.parallelism]
    if summary.step_time_s is not None:
        parts.append(f"{summary.step_time_s:.4g} s a step")
    if summary.tokens_per_s is not None:
        parts.append(f"{summary.tokens_per_s:,.0f} tokens/s")
    words = f"Loss and step time of {summary.run} over its optimizer steps."
    figure = plot_loss_and_step_time(summary, steps, validations)
    line = ", ".join(part for part in parts if part)
    return RunPicture(anchor, summary.run, summary.valid, summary.state, line, _png(figure, words))


def _svg(figure: Figure, words: str, note: str) -> Picture:
    return _picture(figure, "image/svg+xml", figure_bytes(figure, "svg"), words, note)


def _png(figure: Figure, words: str) -> Picture:
    """Points of thousands of steps are smaller as pixels than as shapes."""
    return _picture(figure, "image/png", figure_bytes(figure, "png", dpi=140), words, "")


def _picture(figure: Figure, kind: str, content: bytes, words: str, note: str) -> Picture:
    width, height = (round(PIXELS_PER_INCH * size) for size in figure.get_size_inches())
    return Picture(f"data:{kind};base64,{base64.b64encode(content).decode()}", words, width, height, note)
