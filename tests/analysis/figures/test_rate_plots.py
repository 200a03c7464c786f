"""Figures over many runs: TFLOP/s beside published points, and scaling over nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.text import Text

from hpctrain.analysis.figures.agreement_plots import plot_memory_agreement
from hpctrain.analysis.figures.goodput_plots import plot_goodput, plot_wall_clock
from hpctrain.analysis.figures.memory_plots import plot_memory
from hpctrain.analysis.figures.plots import MAX_ROWS, RATES, plot_scaling, plot_tflops
from hpctrain.analysis.figures.run_plot import plot_run
from hpctrain.analysis.figures.telemetry_plots import plot_telemetry
from hpctrain.analysis.frames import load_frames, run_summaries
from hpctrain.analysis.goodput import goodput
from hpctrain.analysis.memory_terms import load_memory_terms, measured_memory
from hpctrain.analysis.published import as_runs, load_published
from hpctrain.analysis.scaling import scaling_efficiency
from tests.analysis.figures.test_plots import legend, png, texts
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config
from tests.analysis.make_samples import make_samples


def test_tflops_of_runs_beside_published_points(tmp_path: Path) -> None:
    for nodes in (1, 2):
        make_run(tmp_path / f"run-{nodes}", toy_config(nodes=nodes))
    make_run(tmp_path / "waiting", attempts=[])
    published = as_runs(load_published(files=("azure-deepspeed.csv",)))
    figure = plot_tflops(load_frames([tmp_path]).runs, published[published["evidence"] == "EXACT"])
    assert len(png(figure)) > 4_000
    ours, theirs = figure.axes
    assert ours.get_title("left") == (
        "toy on test_gpu\n2 run(s); left out: 1 not valid\nmodel, hardware and Megatron FLOPs"
    )
    assert theirs.get_title("left") == (
        "Published: DeepSpeed on Azure (2022-07-26)\n5 point(s) on A100-SXM-80GB (ND A100 v4)\n"
        "Megatron FLOPs, full recomputation counted"
    )
    assert theirs.get_xlabel() == "TFLOP/s per GPU (1e12 FLOP/s), median over the steady steps of a run"
    assert theirs.get_xscale() == "log", "the toy is slower by six orders"
    shown = [label.get_text() for label in theirs.get_xticklabels(which="both") if label.get_text()]
    assert {"0.001", "10"} <= set(shown)
    assert all(float(text) > 0 for text in shown), "numbers as people write them"
    assert [label.get_text() for label in ours.get_yticklabels()] == ["run-1 (4 GPUs)", "run-2 (8 GPUs)"]
    megatron = next(line for line in ours.lines if line.get_label() == "megatron FLOPs")
    assert np.asarray(megatron.get_xdata()) == pytest.approx([911_736_832 / 4e12] * 2)
    markers = {line.get_marker() for axis in figure.axes for line in axis.lines}
    assert {"o", "s", "D", "|", "*"} <= markers


def test_tflops_of_published_points_alone() -> None:
    published = as_runs(load_published(files=("azure-deepspeed.csv",)))
    figure = plot_tflops(load_frames([]).runs, published[published["gpus"] >= 512])
    assert len(png(figure)) > 4_000
    assert [text.get_text() for text in figure.axes[0].texts] == ["no valid run with a rate"]
    assert figure.axes[1].get_xscale() == "linear"


def test_tflops_of_a_foreign_log_as_it_prints_them(tmp_path: Path) -> None:
    """Such a row has neither model nor GPUs; what it prints is drawn in a mark of its own.

    A valid run without a rate and one that is not valid are counted apart.
    """
    make_run(tmp_path / "own")
    runs = load_frames([tmp_path]).runs
    unknown = ["model", "hardware", "device", "gpus", "step_time_low_s", "step_time_high_s", "peak_tflops_per_gpu"]
    unknown += [f"{name}_tflops_per_gpu" for name in ("model", "hardware", "megatron")]
    foreign = runs.assign(run="train.log", **dict.fromkeys(unknown), printed_tflops_per_gpu=120.5)
    nothing = foreign.assign(run="bare.log", printed_tflops_per_gpu=None)
    failed = runs.assign(run="failed", valid=False)
    rows = [runs, foreign.astype(runs.dtypes), nothing.astype(runs.dtypes), failed.astype(runs.dtypes)]
    both = pd.concat(rows, ignore_index=True)
    figure = plot_tflops(both)
    assert len(png(figure)) > 3_000
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["own (8 GPUs)", "train.log (? GPUs)"]
    printed = next(line for line in axis.lines if line.get_label() == "as the log prints it")
    assert (np.asarray(printed.get_xdata()).tolist(), np.asarray(printed.get_ydata()).tolist()) == ([120.5], [1])
    model = next(line for line in axis.lines if line.get_label() == "model FLOPs")
    assert np.asarray(model.get_ydata()).tolist() == [0]
    assert axis.get_title("left").startswith(
        "1 run of toy on test_gpu; 1 with model and hardware not stated\n2 run(s); left out: 1 not valid, 1 without a rate\n"
    )
    (axis,) = plot_tflops(both[1:3]).axes
    assert axis.get_title("left").startswith("model not stated\n1 run(s); left out: 1 without a rate\n")


def test_tflops_carry_the_interval_of_the_median(tmp_path: Path) -> None:
    """Eight steady steps of 0.4 to 0.8 s in no order have the interval from the least to the most, rank 4 - 2.77 = 1.

    The rate at its ends is the median's times 0.5/0.4 and 0.5/0.8.
    """
    make_run(tmp_path / "run", attempts=[Attempt([0.5, 0.5, 0.4, 0.8, 0.5, 0.5, 0.8, 0.4, 0.5, 0.5])])
    (row,) = load_frames([tmp_path]).runs.to_dict("records")
    assert (row["step_time_low_s"], row["step_time_s"], row["step_time_high_s"]) == (0.4, 0.5, 0.8)
    (axis,) = plot_tflops(load_frames([tmp_path]).runs).axes
    (interval,) = axis.collections
    assert isinstance(interval, LineCollection)
    (segment,) = interval.get_segments()
    rate = row["model_tflops_per_gpu"]
    assert np.asarray(segment)[:, 0] == pytest.approx([rate * 0.5 / 0.8, rate * 0.5 / 0.4])


def test_tflops_of_many_runs_are_cut_with_a_word(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    runs = pd.concat([load_frames([tmp_path]).runs] * (MAX_ROWS + 3), ignore_index=True)
    (axis,) = plot_tflops(runs).axes
    assert f"the first {MAX_ROWS} of {MAX_ROWS + 3} runs" in axis.get_title("left")
    assert len(axis.get_yticks()) == MAX_ROWS


def test_words_of_the_tflops_stay_inside(tmp_path: Path) -> None:
    """Long names make the axis narrow; title and label of the axis then wrap, or reach below the names."""
    for number in range(2):
        make_run(tmp_path / f"{'long-name-' * 5}{number}")
    runs = load_frames([tmp_path]).runs
    half = runs.assign(model="a model with a name that is quite long", valid=[True, False])
    nothing = runs.assign(run="bare", **dict.fromkeys(RATES)).astype(runs.dtypes)
    figure = plot_tflops(pd.concat([half.astype(runs.dtypes), nothing], ignore_index=True))
    png(figure)
    (axis,) = figure.axes
    width = figure.get_window_extent().x1
    title = next(text for text in axis.findobj(Text) if text.get_text().startswith("a model with"))
    for text in (title, axis.xaxis.label):
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= width, text.get_text()


def test_scaling_of_runs_beside_published_points(tmp_path: Path) -> None:
    for nodes, step_time_s in ((1, 0.5), (2, 0.625)):
        make_run(tmp_path / f"run-{nodes}", toy_config(nodes=nodes), [Attempt([step_time_s] * 10)])
    published = as_runs(load_published(files=("azure-deepspeed.csv",))).query("valid and seq_len == 1024")
    figure = plot_scaling(
        scaling_efficiency(load_frames([tmp_path]).runs, "weak"), scaling_efficiency(published, "weak")
    )
    assert len(png(figure)) > 4_000
    ours, theirs = figure.axes
    assert ours.get_title("left") == (
        "Own runs: weak scaling, same batch per GPU\ntoy on test_gpu\n2 run(s), no FLOP count enters"
    )
    assert ours.get_ylabel() == "scaling efficiency (%), from tokens/s"
    assert ours.get_xlabel() == "GPUs (nodes)"
    assert legend(ours) == ["ideal", "toy (base 4 GPUs)"]
    assert np.asarray(ours.lines[1].get_ydata()) == pytest.approx([100, 80])
    assert [label.get_text() for label in ours.get_xticklabels()] == ["4\n(1)", "8\n(2)"]
    looks = [(line.get_color(), line.get_marker()) for line in theirs.lines]
    assert len(looks) == len(set(looks)) == 14


def test_scaling_without_anything_to_compare(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    for root, message in ((tmp_path, "toy: all runs have one size (8 GPUs)"), (tmp_path / "none", "no run to compare")):
        figure = plot_scaling(scaling_efficiency(load_frames([root]).runs, "strong"))
        assert len(png(figure)) > 1_000
        assert message in figure.axes[0].texts[0].get_text().replace("\n", " ")
        assert figure.get_figheight() < 2, "a sentence, not an empty panel"


def test_a_long_message_stays_inside_its_panel(tmp_path: Path) -> None:
    scaling = scaling_efficiency(load_frames([tmp_path / "none"]).runs, "weak")
    published = as_runs(load_published(files=("azure-deepspeed.csv",))).query("valid and seq_len == 1024")
    figure = plot_scaling(
        replace(scaling, group_messages=("some_long_name_of_a_log.log, " * 60,)), scaling_efficiency(published, "weak")
    )
    png(figure)
    axis = figure.axes[0]
    panel, text = axis.get_window_extent(), axis.texts[0].get_window_extent()
    assert panel.x0 <= text.x0
    assert text.x1 <= panel.x1
    assert panel.y0 <= text.y0
    assert text.y1 <= panel.y1
    assert axis.texts[0].get_text().endswith(" …")


def test_points_stay_between_the_edges(tmp_path: Path) -> None:
    for nodes in (1, 2):
        make_run(tmp_path / f"run-{nodes}", toy_config(nodes=nodes))
    (axis,) = plot_scaling(scaling_efficiency(load_frames([tmp_path]).runs, "weak")).axes
    assert axis.get_xlim() == pytest.approx((4 / 1.25, 8 * 1.25))


def test_dollars_are_no_formulas(tmp_path: Path) -> None:
    r"""Between two of them matplotlib would read TeX, and refuse ``$\x$``."""
    end = {"state": "failed", "end_reason": "exception", "message": r"cannot read $\frac{$"}
    for nodes, ends in ((1, None), (2, None), (4, end)):
        run = make_run(tmp_path / rf"$\x$ {nodes}", toy_config(nodes=nodes), [Attempt([0.5] * 10, end=ends)])
        make_samples(run)
    frames = load_frames([tmp_path])
    runs, steps = frames.runs, frames.steps
    failed = runs[~runs["valid"]]["folder"].item()
    (summary,) = run_summaries(runs[runs["folder"] == failed])
    result = goodput(runs, steps, frames.attempts)
    named = [
        plot_run(summary, frames.steps_of(failed)),
        plot_tflops(runs),
        plot_memory(load_memory_terms(runs).terms, measured_memory(runs, frames.samples), runs),
        plot_goodput(result, runs),
        plot_wall_clock(result, runs),
        plot_telemetry(frames.samples, runs, failed),
    ]
    for figure in [*named, plot_scaling(scaling_efficiency(runs, "weak")), plot_memory_agreement(runs)]:
        assert len(png(figure)) > 3_000
    for figure in named:
        assert any(r"$\x$ " in text.get_text() for text in figure.findobj(Text))
    assert any(r"cannot read $\frac{$" in text for text in texts(named[0]).splitlines())


def test_scaling_on_cpu_speaks_of_ranks(tmp_path: Path) -> None:
    for size in (2, 4):
        make_run(tmp_path / f"run-{size}", toy_config(nodes=1, hardware=replace(CPU_NODE, gpus_per_node=size)))
    (axis,) = plot_scaling(scaling_efficiency(load_frames([tmp_path]).runs, "weak")).axes
    assert axis.get_xlabel() == "ranks (nodes)"
    assert axis.get_title("left").startswith("Own runs: weak scaling, same batch per rank\n")
    assert legend(axis) == ["ideal", "toy (base 2 ranks)"]
