"""Predicted terms and measured peaks: the frames against the plan's own file, the bars and marks against the frames."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from hpctrain.analysis.figures.agreement_plots import plot_memory_agreement, plot_step_time_agreement
from hpctrain.analysis.figures.memory_plots import MAX_ROWS, MAX_TERMS, REST, plot_memory
from hpctrain.analysis.frames import Frames, load_frames
from hpctrain.analysis.memory_terms import TERM_DTYPES, load_memory_terms, measured_memory
from hpctrain.config.schema import ParallelismConfig
from hpctrain.units import GIB
from tests.analysis.figures.test_plots import png
from tests.analysis.make_runs import CPU_NODE, make_run, toy_config
from tests.analysis.make_samples import make_samples

OFFLOAD = ParallelismConfig("zero3_offload", zero_stage=3, offload_optimizer="cpu")


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """A run on GPUs with telemetry, one with the optimizer on the host, one on the CPU."""
    root = tmp_path_factory.mktemp("runs")
    make_samples(make_run(root / "gpu"))
    make_run(root / "offload", toy_config(parallelism=OFFLOAD), peak_memory_bytes=3 * GIB)
    make_run(root / "cpu", toy_config(nodes=1, hardware=CPU_NODE))
    return load_frames([root])


def plan_of(frames: Frames, run: str) -> dict[str, dict[str, object]]:
    folder = frames.runs.set_index("run")["folder"][run]
    plan: dict[str, dict[str, object]] = json.loads((Path(folder) / "plan.json").read_text())
    return plan


def test_terms_are_those_of_the_plans(frames: Frames) -> None:
    table = load_memory_terms(frames.runs)
    assert table.problems == ()
    assert table.terms.dtypes.astype(str).to_dict() == TERM_DTYPES
    bytes_of = table.terms.groupby(["run", "tier"])["num_bytes"].sum()
    node_bytes = (table.terms["num_bytes"] * table.terms["sharing_ranks"]).groupby(table.terms["run"]).sum()
    assert bytes_of["gpu", "gpu"] == plan_of(frames, "gpu")["memory"]["gpu_bytes"]
    assert node_bytes["cpu"] == plan_of(frames, "cpu")["memory"]["host_bytes_per_node"]
    host = table.terms[table.terms["tier"] == "host"].set_index("run")["sharing_ranks"]
    assert (set(host["gpu"]), set(host["offload"]), set(host["cpu"])) == ({4}, {4}, {2}), "ranks of a node"


def test_measured_peaks_by_hand(frames: Frames) -> None:
    table = measured_memory(frames.runs, frames.samples).set_index("run")
    gpu = table.loc["gpu"]
    assert (gpu["measured_bytes"], gpu["gpu_driver_bytes"]) == (GIB, 25 * GIB)
    assert (gpu["host_ranks_bytes"], gpu["host_used_bytes"], gpu["host_total_bytes"]) == (
        10 * GIB,
        23 * GIB,
        100 * GIB,
    )
    predicted = plan_of(frames, "gpu")["memory"]["allocator_bytes"]
    assert gpu["predicted_bytes"] == predicted
    assert gpu["error"] == pytest.approx(float(str(predicted)) / GIB - 1)
    assert table.loc["offload", "measured_bytes"] == 3 * GIB
    assert table.loc[["offload", "cpu"], "host_ranks_bytes"].isna().all()


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    make_run(tmp_path / "bad").plan.write_text("{")
    table = load_memory_terms(load_frames([tmp_path]).runs)
    assert set(table.terms["run"]) == {"good"}
    (problem,) = table.problems
    assert problem.startswith(f"{tmp_path}/bad/plan.json: ")


def test_logs_of_other_systems_have_no_terms(tmp_path: Path, frames: Frames) -> None:
    log = tmp_path / "train.log"
    log.write_text("iteration 1\n")
    runs = frames.runs.head(1).assign(folder=str(log), run="train.log")
    assert load_memory_terms(runs).terms.empty
    assert load_memory_terms(runs).problems == ()


def drawn(figure: Figure) -> Figure:
    assert len(png(figure)) > 3_000
    return figure


def widths(axis: Axes) -> dict[str, list[float]]:
    """Bar widths by term in bytes, a number a row."""
    containers = [container for container in axis.containers if isinstance(container, BarContainer)]
    return {str(bars.get_label()): [GIB * bar.get_width() for bar in bars.patches] for bars in containers}


def marks(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Sizes in GiB and rows of the marks by label."""
    return {
        str(line.get_label()): (
            np.asarray(line.get_xdata(), dtype=float).tolist(),
            np.asarray(line.get_ydata(), dtype=float).tolist(),
        )
        for line in axis.lines
    }


def test_bars_are_the_terms_and_marks_the_peaks(frames: Frames) -> None:
    terms = load_memory_terms(frames.runs).terms
    figure = drawn(plot_memory(terms, measured_memory(frames.runs, frames.samples), frames.runs))
    rank, host = figure.axes
    runs = frames.runs["run"].tolist()
    assert [label.get_text() for label in rank.get_yticklabels()] == runs
    totals = np.sum(list(widths(rank).values()), axis=0)
    for run, total in zip(runs, totals, strict=True):
        memory = plan_of(frames, run)["memory"]
        expected = memory["gpu_bytes"] if run != "cpu" else int(str(memory["host_bytes_per_node"])) // 2
        assert total == pytest.approx(expected)
    for run, total in zip(runs, np.sum(list(widths(host).values()), axis=0), strict=True):
        assert total == pytest.approx(plan_of(frames, run)["memory"]["host_bytes_per_node"])
    row = float(runs.index("gpu"))
    assert marks(rank)["fullest GPU as the driver tells it"] == ([25.0], [row])
    peaks = marks(rank)["peak of rank 0 (allocator; CPU: resident size)"]
    assert peaks == ([3.0 if run == "offload" else 1.0 for run in runs], [0.0, 1.0, 2.0])
    assert marks(host)["resident size of a node's ranks"] == ([10.0], [row])
    assert marks(host)["in use by anybody on the node"] == ([23.0], [row])
    assert rank.get_xlabel() == "memory of one rank: its GPU, on the CPU its resident size (GiB)"
    assert host.get_xlabel() == "host memory of one node (GiB); capacity: 100 GiB"
    assert "3 runs; no FLOP count enters" in figure.get_suptitle()
    assert len(widths(rank)) <= MAX_TERMS + 1
    assert REST in widths(rank)


@pytest.mark.parametrize(
    ("sizes_gib", "text"),
    [((60, 70, 80), ""), ((1000, 1000, 1000), "; capacity: 1000 GiB"), ((500, 800, 900), "; capacity: from 500 GiB")],
    ids=["near", "far", "far and different"],
)
def test_a_capacity_far_above_is_told_in_words(frames: Frames, sizes_gib: tuple[int, ...], text: str) -> None:
    terms = load_memory_terms(frames.runs).terms
    measured = measured_memory(frames.runs, frames.samples)
    measured["host_total_bytes"] = pd.array([size * GIB for size in sizes_gib], dtype="Int64")
    host = plot_memory(terms, measured, frames.runs).axes[1]
    assert host.get_xlabel() == f"host memory of one node (GiB){text}"
    assert ("capacity" in marks(host)) == (text == "")


def test_the_legend_names_each_look_once(frames: Frames) -> None:
    terms = load_memory_terms(frames.runs).terms
    figure = plot_memory(terms, measured_memory(frames.runs, frames.samples), frames.runs)
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == len(set(labels))
    assert {"capacity", REST, "in use by anybody on the node"} <= set(labels)


def test_many_runs_are_cut_with_a_word(frames: Frames) -> None:
    terms = load_memory_terms(frames.runs).terms
    copies = [frames.runs.assign(folder=frames.runs["folder"] + str(number)) for number in range(MAX_ROWS)]
    runs = pd.concat(copies, ignore_index=True)
    many = pd.concat([terms.assign(folder=terms["folder"] + str(number)) for number in range(MAX_ROWS)])
    figure = plot_memory(many, measured_memory(runs, frames.samples), runs)
    assert f"{MAX_ROWS} runs of {3 * MAX_ROWS}" in figure.get_suptitle()
    assert len(figure.axes[0].get_yticks()) == MAX_ROWS


def test_nothing_to_show_is_said(frames: Frames) -> None:
    nothing = frames.runs.iloc[:0]
    for runs in (nothing, frames.runs):
        figure = plot_memory(load_memory_terms(nothing).terms, measured_memory(runs, frames.samples.iloc[:0]), runs)
        assert figure.axes[0].texts[0].get_text() == "no run with a plan to show"
    for plot in (plot_memory_agreement, plot_step_time_agreement):
        for runs in (nothing, frames.runs.assign(valid=False)):
            assert plot(runs).axes[0].texts[0].get_text() == "no valid run for which both are known"


def test_memory_agreement_is_of_valid_runs(frames: Frames) -> None:
    runs = frames.runs.assign(valid=frames.runs["run"] != "offload")
    (axis,) = plot_memory_agreement(runs).axes
    assert axis.get_title("left").splitlines()[1] == "toy on test_cpu, test_gpu, 2 runs"
    points = {str(line.get_label()): np.asarray(line.get_xdata(), dtype=float).tolist() for line in axis.lines}
    assert points["GPU: allocator's peak"] == [1.0], "the run that is not valid had 3 GiB"


def test_memory_agreement(frames: Frames) -> None:
    figure = drawn(plot_memory_agreement(frames.runs))
    (axis,) = figure.axes
    points = {str(line.get_label()): line for line in axis.lines}
    runs = frames.runs.set_index("run")
    (x,) = (np.asarray(points["CPU: resident size"].get_xdata(), dtype=float),)
    assert x.tolist() == [1.0]
    y = np.asarray(points["GPU: allocator's peak"].get_ydata(), dtype=float)
    assert sorted(y) == pytest.approx(sorted(runs.loc[["gpu", "offload"], "predicted_memory_bytes"] / GIB))
    assert axis.get_xlabel() == "measured peak of rank 0 (GiB)"
    assert axis.get_ylabel() == "predicted by the plan (GiB)"
    error = (runs["predicted_memory_bytes"] / runs["peak_memory_bytes"]).astype(float) - 1
    assert (
        f"median signed error {error.median():+.1%}, from {error.min():+.1%} to {error.max():+.1%}"
        in axis.get_title("left")
    )


def test_step_time_agreement(frames: Frames) -> None:
    """Only valid runs with a prediction: the third is not valid, the second has none."""
    predicted = pd.array([1.0, pd.NA, 0.5], dtype="Float64")
    valid = pd.array([True, True, False], dtype="boolean")
    error = pd.array([1.0, pd.NA, 0.0], dtype="Float64")
    runs = frames.runs.assign(predicted_step_time_s=predicted, prediction_error=error, valid=valid)
    figure = plot_step_time_agreement(runs)
    (axis,) = figure.axes
    line = axis.lines[0]
    assert (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) == ([0.5], [1.0])
    assert line.get_label() == runs["hardware"][0]
    assert axis.get_xlabel() == "measured, median of the steady steps (s)"
    assert axis.get_title("left").endswith("1 run\nmedian signed error +100.0%")


def test_agreement_of_runs_whose_device_is_not_known(frames: Frames) -> None:
    runs = frames.runs.assign(device=pd.array([pd.NA] * 3, dtype="string"))
    assert plot_memory_agreement(runs).axes[0].lines[0].get_label() == "device not known"


def test_a_node_of_one_rank(tmp_path: Path) -> None:
    make_run(tmp_path / "run", toy_config(nodes=1, hardware=replace(CPU_NODE, gpus_per_node=1)))
    frames = load_frames([tmp_path])
    plot_memory(load_memory_terms(frames.runs).terms, measured_memory(frames.runs, frames.samples), frames.runs)
