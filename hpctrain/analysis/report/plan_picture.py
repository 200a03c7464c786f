"""The picture of planned memory as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hpctrain.analysis.figures.figure_bytes import figure_bytes
from hpctrain.analysis.figures.plan_memory_plot import PlannedMemory, plot_plan_memory
from hpctrain.record.files import replace_file


def write_plan_picture(path: Path, points: Sequence[PlannedMemory]) -> None:
    """Draws one plan, or the points of a sweep, by replacing.

    Args:
        path: with the ending .png or .svg.
        points: at least one.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    kind: Literal["png", "svg"] = "svg" if path.suffix.lower() == ".svg" else "png"
    replace_file(path, figure_bytes(plot_plan_memory(points), kind, dpi=200))
