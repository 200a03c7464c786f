"""Figures are drawn, named and labelled with units; what is on them is what the frames hold."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpctrain.analysis.figures.run_plot import plot_loss_and_step_time, plot_run
from hpctrain.analysis.figures.style import models_on_hardware
from hpctrain.analysis.frames import read_run
from hpctrain.analysis.summary import summarise
from hpctrain.record.paths import RunPaths
from hpctrain.units import GIB
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    return buffer.getvalue()


def draw_run(run: RunPaths) -> Figure:
    data = read_run(run)
    figure = plot_run(summarise(data), data.steps)
    assert len(png(figure)) > 4_000
    return figure


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def legend(axis: Axes) -> list[str]:
    return axis.get_legend_handles_labels()[1]


def test_run_figure_says_what_it_shows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "first")
    predicted = json.loads(run.plan.read_text())["memory"]["allocator_bytes"] / GIB
    figure = draw_run(run)
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "loss (nats per token)",
        "time of one step (s)",
        "tokens per second (all ranks)",
        "peak memory of rank 0 (GiB)",
    ]
    assert {axis.get_xlabel() for axis in figure.axes} == {"optimizer step"}
    assert texts(figure).splitlines() == [
        "first (1 run)",
        "toy (108.5 K parameters) on test_gpu, 8 GPUs on 2 node(s), bf16, zero3, checkpointing none",
        "micro batch 4 x 8 GPUs x accumulation 1 = 32 sequences of 32 tokens",
        "median step 0.5 s, 2,048 tokens/s",
        "TFLOP/s per GPU by FLOP count: 0.000173 model, 0.000173 hardware, 0.000228 megatron; MFU 17.3%",
    ]
    loss, step_time, throughput, memory = figure.axes
    assert legend(loss) == ["mean of all ranks"]
    assert legend(step_time) == [
        "warm-up: not counted",
        "above the axis: 1, up to 2 s",
        "steady",
        "waiting for data",
        "median 0.5 s [0.5, 0.5]",
    ]
    assert legend(throughput)[-1] == "from the median step: 2,048 tokens/s"
    assert legend(memory) == [
        "measured (GPU allocator)",
        f"predicted by the plan: {predicted:.3g} GiB",
        "capacity of the GPU: 16 GiB",
    ]


def test_run_figure_shows_restarts_and_dead_steps(tmp_path: Path) -> None:
    failed = {"state": "failed", "end_reason": "killed"}
    run = make_run(tmp_path / "run", attempts=[Attempt([1] * 6, end=failed), Attempt([1] * 6, 5)])
    figure = draw_run(run)
    loss = figure.axes[0]
    assert legend(loss) == ["undone by a restart", "mean of all ranks"]
    assert [text.get_text() for text in loss.texts] == ["attempt 2"]
    run = make_run(tmp_path / "dead", attempts=[Attempt([1] * 6)], loss=None)
    figure = draw_run(run)
    assert legend(figure.axes[0]) == ["no update or no finite loss"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finite loss recorded"]
    assert "not for comparison: 6 of 6 steps without an update, a finite loss or a time" in texts(figure)


@pytest.mark.parametrize(
    ("steps", "limits"), [((45_000,), (44_999.5, 45_000.5)), ((1, 2), (0.5, 2.5)), (range(1, 102), (-3, 105))],
    ids=["one", "two", "many"],
)  # fmt: skip
def test_every_panel_has_the_same_steps(tmp_path: Path, steps: Sequence[int], limits: tuple[float, float]) -> None:
    """Room beside a single step, and its number in full; in a panel of which the run has no value as well."""
    attempt = Attempt([1.0] * len(steps), steps[0])
    figure = draw_run(make_run(tmp_path / "run", attempts=[attempt], peak_memory_bytes=0))
    assert {axis.get_xlim() for axis in figure.axes} == {limits}
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert figure.axes[0].xaxis.get_offset_text().get_text() == ""
    assert str(steps[0]) in labels or len(steps) > 2


def test_what_is_not_counted_is_named(tmp_path: Path) -> None:
    """Two steps of warm-up, one without a finite loss, one faster than the peak: each word stands only where it is true."""
    data = read_run(make_run(tmp_path / "run"))
    steps = data.steps.assign(rejected=data.steps["step"] == 7, steady=data.steps["steady"] & (data.steps["step"] != 7))
    assert legend(plot_run(summarise(data), steps).axes[1])[0] == "warm-up, rejected: not counted"
    steps = steps.assign(dead=steps["step"] == 9, steady=steps["steady"] & (steps["step"] != 9))
    assert legend(plot_run(summarise(data), steps).axes[1])[0] == "warm-up, dead, rejected: not counted"


def test_run_figure_without_times(tmp_path: Path) -> None:
    data = read_run(make_run(tmp_path / "run"))
    step_time, throughput = plot_run(summarise(data), data.steps.assign(step_time_s=np.nan)).axes[1:3]
    assert [text.get_text() for text in step_time.texts] == ["no step time recorded"]
    assert len(step_time.get_yticks()) == 0
    assert legend(step_time) == []
    assert legend(throughput) == ["from the median step: 2,048 tokens/s"]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 500])
def test_run_figure_for_any_length(tmp_path: Path, num_steps: int) -> None:
    figure = draw_run(make_run(tmp_path / "run", attempts=[Attempt([1.0] * num_steps)]))
    message = [text.get_text() for text in figure.axes[0].texts]
    assert message == (["no step recorded"] if num_steps == 0 else [])


def test_run_figure_of_times_without_sense(tmp_path: Path) -> None:
    figure = draw_run(make_run(tmp_path / "run", attempts=[Attempt([0.0] * 4)]))
    assert figure.axes[1].get_ylim() == (0, 1)


def test_run_figure_of_a_log_that_tells_little(tmp_path: Path) -> None:
    """Logs of other systems give 0 tokens and 0 bytes where they tell none; nothing is drawn at 0."""
    data = read_run(make_run(tmp_path / "run"))
    summary = replace(summarise(data), source="megatron", device=None, predicted_memory_bytes=None)
    steps = data.steps.assign(tokens=0, peak_memory_bytes=0)
    figure = plot_run(replace(summary, tokens_per_s=None), steps)
    _, _, throughput, memory = figure.axes
    assert [text.get_text() for text in throughput.texts] == ["tokens of a step not known"]
    assert [text.get_text() for text in memory.texts] == ["no memory recorded"]
    no_waits = plot_run(summary, data.steps.assign(data_time_s=np.nan)).axes[1]
    assert legend(no_waits) == [name for name in legend(plot_run(summary, data.steps).axes[1]) if "waiting" not in name]
    known = plot_run(summary, data.steps).axes[3]
    assert legend(known)[0] == "measured (as the log tells it)"


def test_run_figure_shows_outliers(tmp_path: Path) -> None:
    times = [1.0 + 0.001 * (step % 5) for step in range(30)]
    times[20] = 1.6
    figure = draw_run(make_run(tmp_path / "run", attempts=[Attempt(times)]))
    step_time = figure.axes[1]
    (mark,) = [line for line in step_time.lines if line.get_label() == "outlier, counted all the same"]
    assert (np.asarray(mark.get_xdata()).tolist(), np.asarray(mark.get_ydata()).tolist()) == ([21], [1.6])


def test_legends_hide_no_step(tmp_path: Path) -> None:
    """Below the axes and their labels, inside the figure; slow steps keep their place up to twice the steady ones."""
    times = [1.0 + 0.001 * (step % 5) for step in range(30)]
    times[0], times[20], times[25] = 9.0, 1.9, 2.0
    run = make_run(tmp_path / "run", attempts=[Attempt(times)])
    data = read_run(run)
    for figure in (draw_run(run), plot_loss_and_step_time(summarise(data), data.steps)):
        figure.draw_without_rendering()
        for axis in figure.axes:
            legend_box = axis.get_legend()
            assert legend_box is not None
            box = legend_box.get_window_extent()
            assert box.y1 <= axis.xaxis.label.get_window_extent().y0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.x1
    assert figure.axes[1].get_ylim()[1] > 2.0
    assert "above the axis: 1, up to 9 s" in legend(figure.axes[1])


@pytest.mark.parametrize(
    ("models", "hardware", "words"),
    [
        (["a", "a"], ["x", "x"], "a on x"),
        (["a", None, None], ["x", None, None], "1 run of a on x; 2 with model and hardware not stated"),
        (["a", "a", "b", None], ["x", "x", None, "y"], "2 runs of a on x; 1 of b, hardware not stated; 1 on y, model not stated"),
        ([None], ["x"], "model not stated on x"),
    ],
    ids=["all", "some", "each", "none"],
)  # fmt: skip
def test_what_is_not_stated_is_counted(models: list[str | None], hardware: list[str | None], words: str) -> None:
    assert models_on_hardware(pd.DataFrame({"model": models, "hardware": hardware}, dtype="string")) == words


def test_run_figure_of_an_unreadable_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.plan.write_text("{")
    assert "plan.json: Expecting property name" in texts(draw_run(run)).replace("\n", " ")


def test_run_figure_on_cpu_speaks_of_ranks(tmp_path: Path) -> None:
    figure = draw_run(make_run(tmp_path / "run", toy_config(nodes=1, hardware=CPU_NODE)))
    assert "TFLOP/s per rank" in texts(figure)
    assert "MFU" not in texts(figure)
    assert legend(figure.axes[3])[0] == "measured (resident size of the process)"


def test_a_long_reason_stays_inside_the_figure(tmp_path: Path) -> None:
    end = {"state": "failed", "end_reason": "exception", "message": "word " * 200}
    figure = draw_run(make_run(tmp_path / "run", attempts=[Attempt([1] * 5, end=end)]))
    width, height = figure.get_size_inches() * figure.dpi
    panels = figure.axes[0].get_tightbbox()
    assert panels is not None
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x1 <= width, text.get_text()
        assert box.y0 > panels.y1, text.get_text()
        assert box.y1 <= height


def test_no_global_state_of_pyplot() -> None:
    modules = "hpctrain.analysis.report.terminal, hpctrain.analysis.figures.plots"
    check = f"import sys, {modules}; sys.exit('matplotlib.pyplot' in sys.modules)"
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", check], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize("loss", [1e308, -1e308])
def test_a_loss_too_large_for_an_axis_is_told(tmp_path: Path, loss: float) -> None:
    data = read_run(make_run(tmp_path / "run"))
    steps, summary = data.steps, summarise(data)
    for part, num_beyond in ((steps.assign(loss=loss), 10), (steps.assign(loss=[loss, *steps["loss"][1:]]), 1)):
        figure = plot_run(summary, part)
        assert len(png(figure)) > 4_000
        assert legend(figure.axes[0])[0] == f"loss beyond 1e+300, not drawn: {num_beyond}"


def test_step_times_and_steps_too_large_for_an_axis_are_drawn_at_its_end(tmp_path: Path) -> None:
    data = read_run(make_run(tmp_path / "run"))
    figure = plot_run(summarise(data), data.steps.assign(step_time_s=1.7e308, step=2**62 + np.arange(10)))
    assert len(png(figure)) > 4_000
    assert figure.axes[1].get_ylim() == (0, 1e300)
