"""Own runs beside published results of a model of the same size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from hpctrain.analysis.published import as_runs
from hpctrain.analysis.report.html_tables import Cell, Header, Row, Table, cell
from hpctrain.analysis.report.run_columns import RunColumn

SAME_SIZE = 0.1
"""Published names are rounded: «175B» has 174.6e9 parameters; 10 % keeps neighbouring sizes apart."""
MAX_POINTS_PER_RUN = 5

_TEXT, _COUNT, _NUMBER, _SHARE = (RunColumn("", "", kind) for kind in ("text", "count", "number", "share"))


def published_points(published: pd.DataFrame) -> pd.DataFrame:
    """Published results that state TFLOP/s per GPU in the count that this project calls Megatron's; ``share`` of the peak."""
    points = as_runs(published).assign(share=published["hfu"], ref=published["ref"])
    return points[points["valid"] & points["megatron_tflops_per_gpu"].notna()]


def matches(runs: pd.DataFrame, points: pd.DataFrame) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Each valid run with the published points of its size, those on the most similar number of GPUs first.

    A point is of a run's size if the numbers of parameters differ by at most ``SAME_SIZE``.
    """
    usable = runs[runs["valid"].astype(bool) & runs["megatron_tflops_per_gpu"].notna() & runs["num_parameters"].notna()]
    candidates = points.to_dict("records")
    result = []
    for run in usable.to_dict("records"):
        near = [p for p in candidates if abs(p["num_parameters"] / run["num_parameters"] - 1) <= SAME_SIZE]
        near.sort(key=lambda point: abs(math.log(point["gpus"] / run["gpus"])))
        result += [(run, point) for point in near[:MAX_POINTS_PER_RUN]]
    return result


def matches_table(pairs: Sequence[tuple[dict[Any, Any], dict[Any, Any]]]) -> Table:
    """Megatron TFLOP/s per GPU of both, and their shares of the own hardware's peak, which are what compares."""
    rows = []
    for run, point in pairs:
        ours, peak = run["megatron_tflops_per_gpu"], run["peak_tflops_per_gpu"]
        share = pd.NA if peak is pd.NA else ours / peak
        rows.append(
            Row(
                (
                    Cell(str(run["run"])),
                    cell(run["gpus"], _COUNT),
                    cell(run["hardware"], _TEXT),
                    cell(ours, _NUMBER),
                    cell(share, _SHARE),
                    Cell(f"{point['source']}: {point['run']}"),
                    cell(point["gpus"], _COUNT),
                    cell(point["hardware"], _TEXT),
                    cell(point["megatron_tflops_per_gpu"], _NUMBER),
                    cell(point["share"], _SHARE),
                    cell(share / point["share"], _NUMBER),
                    cell(point["evidence"], _TEXT),
                )
            )
        )
    headers = (
        Header("Run"),
        Header("GPUs", True),
        Header("Hardware"),
        Header("TFLOP/s/GPU", True, "Megatron's count"),
        Header("of peak (%)", True),
        Header("Published"),
        Header("GPUs", True),
        Header("Hardware"),
        Header("TFLOP/s/GPU", True, "Megatron's count"),
        Header("of peak (%)", True),
        Header("Ratio of shares", True, "above 1: the run uses more of its hardware"),
        Header("Evidence", meaning="how the published figure came about"),
    )
    return Table("published-table", "TFLOP/s by Megatron's count, full recomputation counted", headers, tuple(rows))


def published_sizes(points: pd.DataFrame) -> str:
    """The published sizes in words, smallest to largest."""
    sizes = sorted(points["num_parameters"].dropna().astype(float) / 1e9)
    return f"{sizes[0]:.3g} B to {sizes[-1]:,.4g} B parameters" if sizes else "none"
