"""The picture of a rehearsal: what is drawn is what ``rehearsal.json`` holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hpctrain.analysis.figures.rehearsal_plot import BAND_COLOURS, plot_rehearsal
from hpctrain.analysis.report.rehearsal_picture import write_rehearsal_picture
from hpctrain.plan.memory.terms import CONTEXT_TERM, ROUNDING_TERM
from hpctrain.rehearse.result import (
    PHASES,
    Phase,
    Rehearsal,
    Tier,
    TierPhase,
    Timeline,
    read_rehearsal,
    write_rehearsal,
)
from hpctrain.units import GIB
from tests.analysis.figures.test_plots import png
from tests.rehearse.make_rehearsal import make_rehearsal

GPU_PEAKS: dict[Phase, int] = {"model": 9, "engine": 20, "forward": 40, "backward": 60, "optimizer": 35}
"""GiB by phase."""


def rows_of(tier: Tier, peaks: dict[Phase, int], scale: int = GIB) -> tuple[TierPhase, ...]:
    """Phases before and of step 2; a quarter of each peak belongs to the optimizer."""

    def row(step: int, phase: Phase, size: int) -> TierPhase:
        owners = {"optimizer": size // 4, "activations": size - size // 4}
        return TierPhase(step, phase, tier, size, owners, size // 2, {"optimizer": size // 2})

    before = [row(0, phase, peaks[phase] * scale) for phase in PHASES[:2]]
    return (*before, *(row(step, phase, peaks[phase] * scale) for step in (1, 2) for phase in PHASES[2:]))


def course(num_layers: int) -> Timeline:
    """Two steps of two micro-steps; live bytes rise by 1 GiB a point."""
    phases = [2, 2, 3, 3, 2, 2, 3, 3, 4, 4]
    gpu = [*range(10, 20), *range(20, 30)]
    return Timeline(
        operator=tuple(range(100, 300, 10)),
        step=(1,) * 10 + (2,) * 10,
        phase=(*phases, *phases),
        gpu_bytes=tuple(GIB * size for size in gpu),
        host_bytes=tuple(GIB * size // 2 for size in gpu),
        pinned_bytes=tuple(GIB * size // 4 for size in gpu),
        num_layers=num_layers,
    )


def rehearsal_of_530b(host_gib: int = 30, num_layers: int = 105) -> Rehearsal:
    return make_rehearsal(
        model_name="530b",
        num_parameters=530_000_000_000,
        world_size=1024,
        memory=(*rows_of("gpu", GPU_PEAKS), *rows_of("host", dict.fromkeys(PHASES, host_gib))),
        timeline=course(num_layers),
        late_free_margin_bytes=3 * GIB,
        gpu_capacity_bytes=80 * GIB,
        planned_memory=(("states", "gpu", 50 * GIB), (CONTEXT_TERM, "gpu", 2 * GIB), (ROUNDING_TERM, "host", 9 * GIB)),
        num_layers=105,
    )


def axes_of(figure: Figure) -> list[Axes]:
    assert len(png(figure)) > 4_000
    return figure.axes


def stacked(axis: Axes) -> dict[str, list[float]]:
    """Heights by label."""
    bars = [container for container in axis.containers if isinstance(container, BarContainer)]
    return {str(bar.get_label()): [patch.get_height() for patch in bar.patches] for bar in bars}


def levels(axis: Axes) -> dict[str, float]:
    """The horizontal lines by label."""
    return {
        str(line.get_label()): float(np.asarray(line.get_ydata())[0])
        for line in axis.lines
        if str(line.get_label()) in ("predicted by the plan", "capacity of the GPU")
    }


def band_edges(axis: Axes) -> list[float]:
    patches = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
    assert all(left.get_x() + left.get_width() == right.get_x() for left, right in pairwise(patches))
    return [*(patch.get_x() for patch in patches), patches[-1].get_x() + patches[-1].get_width()]


def test_a_row_for_each_tier_with_what_the_record_holds(tmp_path: Path) -> None:
    write_rehearsal(tmp_path, rehearsal_of_530b())
    figure = plot_rehearsal(read_rehearsal(tmp_path))
    gpu, gpu_bars, host, host_bars = axes_of(figure)
    assert [label.get_text() for label in gpu_bars.get_xticklabels()] == list(PHASES)
    heights = stacked(gpu_bars)
    assert heights["optimizer"] == pytest.approx([size / 4 for size in GPU_PEAKS.values()])
    assert np.add(heights["optimizer"], heights["activations"]) == pytest.approx(list(GPU_PEAKS.values()))
    assert stacked(host_bars)["activations"] == pytest.approx([22.5] * 5)
    live = {str(line.get_label()): line for line in host.lines}
    assert np.asarray(live["live"].get_ydata()).tolist() == [size / 2 for size in (*range(20, 30), 29)]
    assert np.asarray(live["of it pinned"].get_ydata()).tolist() == [size / 4 for size in (*range(20, 30), 29)]
    (line,) = (line for line in gpu.lines if line.get_label() == "live")
    assert np.asarray(line.get_xdata()).tolist() == list(range(11)), "a point a unit, and the end of the last"
    assert isinstance(gpu.collections[0], FillBetweenPolyCollection)
    assert (gpu.get_ylabel(), host.get_ylabel()) == ("live bytes (GiB)", "live bytes (GiB)")


def test_margin_prediction_and_capacity() -> None:
    figure = plot_rehearsal(rehearsal_of_530b())
    gpu, bars, host, host_bars = axes_of(figure)
    expected = {"predicted by the plan": 50.0, "capacity of the GPU": 80.0}
    assert levels(gpu) == levels(bars) == expected, "CUDA's context is no storage of torch's"
    assert levels(host) == levels(host_bars) == {}
    assert gpu.get_ylim() == bars.get_ylim()
    (margin,) = (c for c in bars.containers if c.get_label() == "if a parameter is freed late")
    assert isinstance(margin, BarContainer)
    (patch,) = margin.patches
    assert (patch.get_y(), patch.get_height()) == (60.0, 3.0)
    assert patch.get_x() + patch.get_width() / 2 == PHASES.index("backward")
    title = figure.get_suptitle()
    assert "rank 0 of 1024: 530b (530 B parameters, 105 layers), ZeRO-3" in title
    assert "GPU peak 60 GiB in backward, 3 GiB more if a parameter is freed late; capacity 80 GiB" in title.replace(
        "\n", " "
    )
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == len(set(labels))


def test_the_planner_predicts_the_host_too() -> None:
    terms = (("fp32 master", "host", 20 * GIB), ("Adam moments", "host", 5 * GIB), (ROUNDING_TERM, "host", GIB))
    figure = plot_rehearsal(replace(rehearsal_of_530b(), planned_memory=terms))
    assert [levels(axis) for axis in axes_of(figure)[2:]] == [{"predicted by the plan": 25.0}] * 2


def test_a_far_capacity_is_told_and_not_drawn() -> None:
    figure = plot_rehearsal(replace(rehearsal_of_530b(), gpu_capacity_bytes=1000 * GIB))
    assert "capacity of the GPU" not in levels(axes_of(figure)[1])
    assert "capacity 1e+03 GiB" in figure.get_suptitle().replace("\n", " ")


def test_bands_are_the_stretches_of_the_phases() -> None:
    axis = plot_rehearsal(rehearsal_of_530b()).axes[0]
    assert band_edges(axis) == [0, 2, 4, 6, 8, 10]
    assert sorted(text.get_text() for text in axis.texts) == sorted(BAND_COLOURS)


def test_a_phase_of_few_changes_is_widened() -> None:
    """100 points, of which the optimizer has one: it takes 5 % of them; the 96 of the backward pass are in two stretches."""
    phases = (*[2] * 3, *[3] * 95, 2, 3, 4)[-100:]
    line = Timeline(
        operator=tuple(range(100)), step=(2,) * 100, phase=phases, gpu_bytes=(GIB,) * 100, host_bytes=(0,) * 100,
        pinned_bytes=(0,) * 100, num_layers=105,
    )  # fmt: skip
    axis = plot_rehearsal(replace(rehearsal_of_530b(), timeline=line)).axes[0]
    assert band_edges(axis) == pytest.approx([0, 2.5, 97.5, 100, 102.5, 107.5])


def test_a_host_that_holds_next_to_nothing_in_the_step_has_no_panels() -> None:
    at_first: dict[Phase, int] = {"model": 0, "engine": 3 * 1024, "forward": 0, "backward": 1, "optimizer": 1}
    rehearsal = replace(rehearsal_of_530b(), memory=(*rows_of("gpu", GPU_PEAKS), *rows_of("host", at_first, 2**20)))
    figure = plot_rehearsal(rehearsal)
    assert len(axes_of(figure)) == 2
    assert figure.get_suptitle().replace("\n", " ").endswith("; host at most 3 GiB, in engine")


def test_on_the_cpu_all_is_host() -> None:
    rehearsal = replace(
        rehearsal_of_530b(), device_way="cpu", memory=rows_of("host", GPU_PEAKS, 1000), gpu_capacity_bytes=None
    )
    course_axis, bars = axes_of(plot_rehearsal(rehearsal))
    assert course_axis.get_title("left") == "Host over step 2"
    assert bars.get_ylabel() == "GiB", "the margin of 3 GiB is drawn, too"


def test_a_quick_rehearsal_says_which_depth_is_drawn() -> None:
    rehearsal = replace(rehearsal_of_530b(num_layers=4), way="quick")
    course_axis, bars, *_ = axes_of(plot_rehearsal(rehearsal))
    assert course_axis.get_title("left") == "GPU over step 2, at 4 of 105 layers"
    assert bars.get_title("left") == "Peaks, extended to 105 layers"
    assert levels(course_axis) == {}, "the plan's prediction is of 105 layers"


def test_nothing_recorded_is_said() -> None:
    rehearsal = replace(rehearsal_of_530b(), memory=(), timeline=Timeline())
    assert plot_rehearsal(rehearsal).axes[0].texts[0].get_text() == "no memory recorded"
    without_course = plot_rehearsal(replace(rehearsal_of_530b(), timeline=Timeline()))
    assert without_course.axes[0].texts[0].get_text() == "no course of the step recorded"


def test_the_picture_lies_beside_the_record(tmp_path: Path) -> None:
    path = write_rehearsal_picture(tmp_path, rehearsal_of_530b())
    assert path == tmp_path / "rehearsal.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    first = path.read_bytes()
    write_rehearsal_picture(tmp_path, rehearsal_of_530b())
    assert path.read_bytes() == first
