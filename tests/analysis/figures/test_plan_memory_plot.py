"""The picture of planned memory: what is drawn is what the plan says."""

from __future__ import annotations

import dataclasses
import functools
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from hpctrain.analysis.figures.figure_bytes import figure_bytes
from hpctrain.analysis.figures.plan_memory_plot import MAX_POINTS, PlannedMemory, plot_plan_memory, term_looks
from hpctrain.analysis.report.plan_picture import write_plan_picture
from hpctrain.config.compose import compose_points
from hpctrain.plan.memory.phases import gpu_phases
from hpctrain.plan.memory.terms import MEMORY_PHASES, SOURCES, MemoryTerm
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.units import GIB

SHOWPIECE = ("model=530b", "nodes=128", "parallelism=zero3", "hardware=ndm_a100_v4")
SHORT = ("model=175b", "nodes=2", "parallelism=zero3_offload", "hardware=ndm_a100_v4")
NVME = ("model=28b", "nodes=1", "parallelism=zero3_nvme", "hardware=dgx_h100")


@functools.cache
def planned(*words: str, label: str = "-") -> PlannedMemory:
    (point,) = compose_points(words, multirun=False)
    plan = build_run_plan(point.config)
    return PlannedMemory(label, plan, gpu_phases(point.config, plan))


def panels(figure: Figure) -> dict[str, Axes]:
    return {axis.get_title("left"): axis for axis in figure.axes}


def bars(axis: Axes) -> list[Rectangle]:
    return [bar for container in axis.containers if isinstance(container, BarContainer) for bar in container]


def heights(axis: Axes) -> list[float]:
    """Of each upright stack its top."""
    tops: dict[float, float] = {}
    for bar in bars(axis):
        middle = round(bar.get_x() + bar.get_width() / 2, 3)
        tops[middle] = max(tops.get(middle, 0.0), bar.get_y() + bar.get_height())
    return [tops[middle] for middle in sorted(tops)]


def texts(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def legend_labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_one_plan_has_a_bar_a_phase_and_one_for_the_node() -> None:
    point = planned(*SHOWPIECE)
    memory = point.plan.memory
    figure = plot_plan_memory([point])
    gpu, host = panels(figure)["GPU, by phase"], panels(figure)["Host, per node"]
    context = memory.gpu_bytes - memory.allocator_bytes
    assert heights(gpu) == pytest.approx([(each.gpu_bytes + context) / GIB for each in memory.phases])
    assert [tick.get_text() for tick in gpu.get_xticklabels()] == list(MEMORY_PHASES)
    assert heights(host) == pytest.approx([memory.host_bytes_per_node / GIB])
    assert memory.gpu_capacity_bytes is not None
    (line,) = (line for line in gpu.lines if line.get_label() == "capacity")
    assert np.unique(np.asarray(line.get_ydata())) == pytest.approx([memory.gpu_capacity_bytes / GIB])
    free = (memory.gpu_capacity_bytes - memory.gpu_bytes) / GIB
    assert f"{free:.3g} GiB\nfree" in texts(gpu)
    assert not host.lines, "1,583 GiB would press 11 into a corner: told, not drawn"
    assert texts(host) == ["1,572 GiB\nfree\nof 1,583 GiB"]
    assert legend_labels(figure)[0] == "capacity"
    assert {"block inputs", "gathered parameters", "Adam moments", "context and NCCL"} <= set(legend_labels(figure))
    assert "530b (529.6 B), zero3, 128 x 8 ranks of ndm_a100_v4" in figure.get_suptitle()


def test_terms_of_one_owner_share_a_colour_and_differ_in_their_hatch() -> None:
    figure = plot_plan_memory([planned(*SHOWPIECE)])
    looks = {
        container.get_label(): (container[0].get_facecolor(), container[0].get_hatch())
        for container in panels(figure)["GPU, by phase"].containers
        if isinstance(container, BarContainer)
    }
    assert looks["Adam moments"][0] == looks["fp32 master"][0] != looks["block inputs"][0]
    assert looks["Adam moments"][1] != looks["fp32 master"][1]


def test_a_term_looks_the_same_in_every_picture() -> None:
    def looks(figure: Figure) -> dict[str, tuple[object, str]]:
        return {
            str(container.get_label()): (container[0].get_facecolor(), container[0].get_hatch())
            for axis in panels(figure).values()
            for container in axis.containers
            if isinstance(container, BarContainer) and not str(container.get_label()).startswith("_")
        }

    # In one Adam moments are the largest term of the optimizer, in the other fp32 master; in a sweep both.
    alone = looks(plot_plan_memory([planned(*SHOWPIECE)]))
    short = looks(plot_plan_memory([planned(*SHORT)]))
    sweep = looks(plot_plan_memory([planned(*SHOWPIECE), planned(*SHORT), planned(*NVME)]))
    assert {"Adam moments", "fp32 master", "context and NCCL"} <= alone.keys() & sweep.keys()
    for other in (short, sweep):
        shared = alone.keys() & other.keys()
        assert {term: alone[term] for term in shared} == {term: other[term] for term in shared}


def test_every_term_has_a_look_of_its_own() -> None:
    looks = term_looks()
    known = [looks[term] for term in SOURCES]
    assert len(set(known)) == len(known)


def test_what_lacks_is_told_in_red_above_the_bar() -> None:
    figure = plot_plan_memory([planned(*SHORT)])
    host = panels(figure)["Host, per node"]
    (words,) = host.texts
    assert words.get_text().endswith(" GiB\nshort")
    assert words.get_color() != "#444444"
    assert words.get_position()[1] >= heights(host)[0]


def test_the_name_of_the_last_of_three_tiers_is_whole() -> None:
    """Cut off, some of its letters would be in the last column of pixels."""
    figure = plot_plan_memory([planned("model=175b", "nodes=2", *NVME[2:])])
    pixels = imread(io.BytesIO(figure_bytes(figure, "png", dpi=200)))
    assert (pixels[:, -1, :3] == 1.0).all()


def test_a_capacity_far_above_all_phases_is_in_the_title() -> None:
    point = planned(*NVME, "training.micro_batch_size=1", "training.activation_checkpointing=full")
    figure, plan = plot_plan_memory([point]), point.plan
    assert list(panels(figure)) == ["GPU, by phase (of 79.1 GiB)", "Host, per node", "NVMe, per node"]
    assert plan.nvme is not None
    assert heights(panels(figure)["NVMe, per node"]) == pytest.approx([plan.nvme.bytes_per_node / GIB])
    assert {"parameters on NVMe", "optimizer states on NVMe"} <= set(legend_labels(figure))


def test_a_sweep_has_a_row_a_point_in_a_panel_a_tier() -> None:
    points = [planned(*SHOWPIECE[:1], f"nodes={nodes}", *SHOWPIECE[2:], label=f"nodes={nodes}") for nodes in (8, 128)]
    figure = plot_plan_memory(points)
    gpu = panels(figure)["GPU"]
    assert [tick.get_text() for tick in gpu.get_yticklabels()] == ["nodes=8", "nodes=128"]
    ends: dict[float, float] = {}
    for bar in bars(gpu):
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    assert [ends[0], ends[1]] == pytest.approx([point.plan.memory.gpu_bytes / GIB for point in points])
    assert [text.rpartition(" ")[2] for text in texts(gpu)] == ["short", "free"]
    assert gpu.yaxis_inverted(), "the first point is the uppermost"


def test_of_very_many_points_the_first_are_drawn_and_the_rest_is_told() -> None:
    point = planned(*SHOWPIECE)
    figure = plot_plan_memory([point] * (MAX_POINTS + 1))
    assert len(panels(figure)["GPU"].get_yticklabels()) == MAX_POINTS
    assert f"Planned memory of {MAX_POINTS + 1} points, the first {MAX_POINTS}" in figure.get_suptitle()


def test_ranks_on_processors_have_no_gpu() -> None:
    figure = plot_plan_memory([planned("model=tiny", "cluster=local", "hardware=cpu", "parallelism=zero3")])
    assert list(panels(figure)) == ["Host, per node"]
    assert figure.axes[0].get_ylabel() == "MiB"
    assert texts(figure.axes[0]) == [], "nobody states what the node has"


def rehearsed(plan: RunPlan) -> RunPlan:
    terms = (
        MemoryTerm("optimizer", 8 * GIB, "gpu", "rehearsal"),
        MemoryTerm("activations", 30 * GIB, "gpu", "rehearsal"),
    )
    return dataclasses.replace(plan, memory=dataclasses.replace(plan.memory, terms=terms, found_by="rehearsal"))


def test_a_rehearsed_plan_is_drawn_by_its_owners_at_the_peak() -> None:
    point = planned(*SHOWPIECE)
    figure = plot_plan_memory([dataclasses.replace(point, plan=rehearsed(point.plan))])
    assert heights(panels(figure)["GPU"]) == pytest.approx([38])
    assert "found by a rehearsal, not measured" in figure.get_suptitle()


def test_every_term_has_an_owner_or_stands_outside_of_torch() -> None:
    plan = planned(*SHOWPIECE).plan
    terms = tuple(MemoryTerm(name, GIB, "gpu", source) for name, source in SOURCES.items())
    memory = dataclasses.replace(plan.memory, terms=terms, found_by="rehearsal")
    figure = plot_plan_memory([PlannedMemory("-", dataclasses.replace(plan, memory=memory), {})])
    assert set(legend_labels(figure)) - {"capacity"} == set(SOURCES)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_plan_gives_the_same_file(suffix: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    for path in paths:
        write_plan_picture(path, [planned(*SHOWPIECE)])
    first, second = (path.read_bytes() for path in paths)
    assert first[:8] == b"\x89PNG\r\n\x1a\n" if suffix == ".png" else b"<svg" in first
    if suffix == ".png":
        assert first == second
