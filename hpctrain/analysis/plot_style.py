"""How all figures look: colours, sizes, legends.

The colours are those of Okabe and Ito (2008), which colour-blind readers tell apart.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.typing import LegendLocType, RcKeyType

BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, BLACK = "#0072B2 #E69F00 #009E73 #D55E00 #CC79A7 #56B4E9 #000000".split()
GREY = "#999999"

STYLE: dict[RcKeyType, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 150,
}


def boxed_legend(axis: Axes, place: LegendLocType) -> None:
    """A legend on white, so that points behind it do not mix with its text."""
    axis.legend(loc=place, frameon=True, framealpha=0.9, edgecolor="none", borderpad=0.2)


def write_message(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")
