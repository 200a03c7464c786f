"""Telemetry figures: the lines are the frame, bands reach over nodes, restarts are seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpctrain.analysis.figures.telemetry_plots import MAX_BINS, QUANTITIES, plot_telemetry, telemetry_bands
from hpctrain.analysis.frames import Frames, load_frames
from hpctrain.units import GIB
from tests.analysis.figures.test_plots import legend, png
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config
from tests.analysis.make_samples import make_samples


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """Two nodes of two GPUs, four looks each."""
    root = tmp_path_factory.mktemp("runs")
    make_samples(make_run(root / "run"))
    return load_frames([root])


def lines(axis: Axes) -> dict[str, list[float]]:
    return {str(line.get_label()): np.asarray(line.get_ydata(), dtype=float).tolist() for line in axis.lines}


def drawn(figure: Figure) -> Figure:
    assert len(png(figure)) > 3_000
    return figure


def test_bands_by_hand(watched: Frames) -> None:
    bands = telemetry_bands(watched.samples, "time")
    assert bands["x"].tolist() == [0, 10, 20, 30]
    assert bands["num_nodes"].tolist() == [2] * 4
    first = bands.iloc[0]
    assert [first[f"host_used_bytes_{name}"] / GIB for name in ("low", "mean", "high")] == [10, 15, 20]
    assert [first[f"gpu_mean_bytes_{name}"] / GIB for name in ("low", "mean", "high")] == [20.5, 22.5, 24.5]
    assert first["gpu_max_bytes_high"] / GIB == 25
    assert first["gpu_power_w_mean"] == 600
    assert first["gpu_utilisation_mean"] == 0.5
    assert telemetry_bands(watched.samples, "step")["x"].tolist() == [0, 2, 4, 6]


def test_of_several_looks_in_a_bin_the_largest_memory_counts(watched: Frames) -> None:
    """As many looks as do not fit: memory keeps its peaks, use and power are means."""
    count = 4 * MAX_BINS
    row = watched.samples.iloc[[0]]
    looks = pd.concat([row] * count, ignore_index=True)
    looks["time_s"] = 1000.0 + np.arange(count)
    looks["step"] = np.arange(count)
    looks["host_used_bytes"] = np.arange(count)
    looks["gpu_utilisation"] = pd.array(np.arange(count) / count, dtype="Float64")
    for along in ("time", "step"):
        bands = telemetry_bands(looks, "time" if along == "time" else "step")
        assert len(bands) <= MAX_BINS + 1
        width = bands["x"].diff().median()
        assert bands["host_used_bytes_high"].max() == count - 1
        assert bands["gpu_utilisation_mean"].iloc[0] == pytest.approx((np.ceil(width) - 1) / 2 / count)


def test_figure_shows_the_frame(watched: Frames) -> None:
    (folder,) = watched.runs["folder"]
    figure = drawn(plot_telemetry(watched.samples, watched.runs, folder))
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "host memory\n(GiB a node)",
        "GPU memory\n(GiB a GPU)",
        "GPU busy\n(% of time)",
        "GPU power\n(kW a node)",
    ]
    assert figure.axes[-1].get_xlabel() == "time since the run's first look (s)"
    host, memory, busy, power = figure.axes
    assert lines(host) == {
        "memory of the node: 100 GiB, above the axis": [],
        "in use, by anybody": [15, 16, 17, 18],
        "resident size of this run's ranks": [7.5] * 4,
    }
    assert lines(memory) == {
        "memory of the GPU: 80 GiB, above the axis": [],
        "in use on the fullest GPU": [25] * 4,
        "in use, mean over GPUs": [22.5] * 4,
    }
    assert lines(busy) == {"a kernel runs, mean over GPUs": [50] * 4}
    assert lines(power) == {"drawn by the node's GPUs": [0.6] * 4}
    assert figure.get_suptitle() == (
        "Telemetry of run (1 run)\ntoy on test_gpu, 2 nodes, 4 GPUs; no FLOP count enters\n"
        "lines: mean over nodes; bands: smallest to largest node"
    )
    (band, *_) = host.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (10, 23)


def test_a_capacity_far_above_is_told_in_words(watched: Frames) -> None:
    """23 GiB are used at most: of 60 GiB it is drawn, of 100 GiB told."""
    (folder,) = watched.runs["folder"]
    host = plot_telemetry(watched.samples, watched.runs, folder).axes[0]
    assert legend(host)[0] == "memory of the node: 100 GiB, above the axis"
    smaller = watched.samples.assign(host_total_bytes=60 * GIB)
    host = plot_telemetry(smaller, watched.runs, folder).axes[0]
    assert lines(host)["memory of the node"] == [60] * 4


def test_one_node_without_gpus_has_one_panel_and_no_band(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", toy_config(nodes=1, hardware=CPU_NODE))
    make_samples(run, nodes=("node0",), num_gpus=0)
    frames = load_frames([tmp_path])
    figure = drawn(plot_telemetry(frames.samples, frames.runs, str(run.root)))
    (axis,) = figure.axes
    assert axis.get_ylabel() == "host memory\n(GiB a node)"
    assert list(axis.collections) == []
    assert figure.get_suptitle().endswith("toy on test_cpu, 1 node, no GPUs; no FLOP count enters")


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """The second attempt goes on from step 4, so steps 4 to 6 were undone; its set-up is before its step 5."""
    root = tmp_path_factory.mktemp("runs")
    run = make_run(root / "run", attempts=[Attempt([1.0] * 6), Attempt([1.0] * 5, 5)])
    make_samples(run, nodes=("node0",))
    make_samples(run, nodes=("node0",), attempt=2, started_at_s=1100.0, steps=(0, 5, 7, 9))
    return load_frames([root])


def test_a_restart_in_time(restarted: Frames) -> None:
    (folder,) = restarted.runs["folder"]
    figure = plot_telemetry(restarted.samples, restarted.runs, folder)
    host = figure.axes[0]
    labelled = [
        "memory of the node: 100 GiB, above the axis",
        "in use, by anybody",
        "resident size of this run's ranks",
    ]
    assert legend(host) == labelled, "each once"
    used = [line for line in host.lines if line.get_linestyle() == "-"]
    assert figure.axes[-1].get_xlabel() == "time since the run's first look (min)"
    minutes = [(60 * np.asarray(line.get_xdata(), dtype=float)).round().tolist() for line in used]
    assert minutes == [[0, 10, 20, 30], [100, 110, 120, 130]]
    (mark,) = [line for line in host.lines if len(np.asarray(line.get_xdata())) == 2]
    assert np.asarray(mark.get_xdata(), dtype=float) == pytest.approx([100 / 60] * 2)


def test_what_a_restart_undid_is_pale_along_the_steps(restarted: Frames) -> None:
    (folder,) = restarted.runs["folder"]
    figure = drawn(plot_telemetry(restarted.samples, restarted.runs, folder, "step"))
    used = [line for line in figure.axes[0].lines if line.get_linestyle() == "-"]
    assert [(np.asarray(line.get_xdata()).tolist(), line.get_alpha()) for line in used] == [
        ([0, 2], 1),
        ([4, 6], 0.35),
        ([4, 5, 7, 9], 1),
    ]
    assert figure.axes[-1].get_xlabel() == "optimizer step that had ended at the look (0: set-up)"


def test_an_attempt_that_ended_no_step_has_no_place_along_the_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 6), Attempt([])])
    make_samples(run, nodes=("node0",))
    make_samples(run, nodes=("node0",), attempt=2, started_at_s=1100.0, steps=(0, 0, 0, 0))
    frames = load_frames([tmp_path])
    assert telemetry_bands(frames.samples, "step")["attempt"].tolist() == [1] * 4
    assert telemetry_bands(frames.samples, "time")["attempt"].tolist() == [1] * 4 + [2] * 4
    plot_telemetry(frames.samples, frames.runs, str(run.root), "step")


@pytest.mark.parametrize("num_looks", [1, 2])
def test_few_looks_are_seen(tmp_path: Path, num_looks: int) -> None:
    run = make_run(tmp_path / "run")
    make_samples(run, nodes=("node0",), num_looks=num_looks)
    frames = load_frames([tmp_path])
    figure = plot_telemetry(frames.samples, frames.runs, str(run.root))
    assert {line.get_marker() for line in figure.axes[0].lines if len(np.asarray(line.get_xdata()))} == {"o"}


def test_a_driver_that_says_little_leaves_panels_out(watched: Frames) -> None:
    nothing = pd.array([pd.NA] * len(watched.samples), dtype="Float64")
    samples = watched.samples.assign(gpu_utilisation=nothing, gpu_power_w=nothing)
    (folder,) = watched.runs["folder"]
    assert len(plot_telemetry(samples, watched.runs, folder).axes) == 2


def test_a_run_without_telemetry_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    frames = load_frames([tmp_path])
    for runs in (frames.runs, frames.runs.iloc[:0]):
        figure = plot_telemetry(frames.samples, runs, str(run.root))
        assert [text.get_text() for text in figure.axes[0].texts] == ["this run recorded no telemetry"]


def test_samples_of_a_run_that_is_not_in_the_frame(watched: Frames) -> None:
    (folder,) = watched.runs["folder"]
    figure = plot_telemetry(watched.samples, watched.runs.iloc[:0], folder)
    assert f"Telemetry of {folder} (1 run)" in figure.get_suptitle().replace("\n", "")
    assert {f"{name}_{end}" for name in QUANTITIES for end in ("low", "mean", "high")} <= set(
        telemetry_bands(watched.samples, "time")
    )
