"""The picture of a rehearsal as a file beside its record."""

from __future__ import annotations

from pathlib import Path

from hpctrain.analysis.figures.figure_bytes import figure_bytes
from hpctrain.analysis.figures.rehearsal_plot import plot_rehearsal
from hpctrain.record.files import replace_file
from hpctrain.rehearse.result import Rehearsal

PICTURE_FILE = "rehearsal.png"


def write_rehearsal_picture(folder: Path, rehearsal: Rehearsal) -> Path:
    """Draws ``rehearsal.png`` in the folder, by replacing, and returns its path.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    path = folder / PICTURE_FILE
    replace_file(path, figure_bytes(plot_rehearsal(rehearsal), "png", dpi=200))
    return path
