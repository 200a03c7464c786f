"""A figure as the bytes of an image file."""

from __future__ import annotations

import io
import warnings
from typing import Literal

from matplotlib.figure import Figure


def figure_bytes(figure: Figure, kind: Literal["png", "svg"], dpi: int = 100) -> bytes:
    """The image; without a date in it, so that the same figure gives the same bytes.

    A sign that the font lacks (a run may be named in any script) is drawn as a box; the text beside the picture has it.

    Args:
        figure: to be drawn.
        kind: pixels or shapes.
        dpi: pixels an inch; of no meaning for shapes.
    """
    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        figure.savefig(stream, format=kind, dpi=dpi, metadata=metadata)
    return stream.getvalue()
