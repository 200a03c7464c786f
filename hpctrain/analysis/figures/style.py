"""How all figures look: colours, sizes, legends.

The colours are those of Okabe and Ito (2008), which colour-blind readers tell apart.
"""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from matplotlib.typing import RcKeyType

from hpctrain.analysis.name_lists import joined_names

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
    "hatch.linewidth": 0.5,
    # Names and messages may hold "$", between two of which matplotlib would read a formula.
    "text.parse_math": False,
}
WIDTH_IN = 7.2
"""Width of every figure in inches: the text width of an A4 or letter page with usual margins."""
TITLE_CHARACTERS = 96
"""Bold characters of a title that fit into one line of ``WIDTH_IN``."""
LABELS_IN = 0.42
"""Height of the numbers and the label below an x axis."""
LEGEND_LINE_IN = 0.145
"""Height of one line of a legend."""
FAR = 3.0
"""A capacity more than so many times above what is used would press all else into a corner: it is told, not drawn."""
DRAWABLE = 1e300
"""No number beyond it is drawn: the ends of an axis, which lie further out, must be numbers too."""
_TIME_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def legend_below(axis: Axes) -> None:
    """A legend under the label of the x axis, where no point can lie behind it; for a figure with a constrained layout."""
    below = ScaledTranslation(0, -LABELS_IN, axis.figure.dpi_scale_trans)
    place = axis.transAxes + below
    axis.legend(loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=place, borderaxespad=0, borderpad=0)


def write_message(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")


def empty_panel(axis: Axes, text: str) -> None:
    """Words in place of a drawing, without the scales, which would be of nothing; not for axes that share theirs."""
    axis.set(xticks=[], yticks=[])
    write_message(axis, text)


def message_figure(title: str, text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.7), layout="constrained")
        axis = figure.subplots()
        axis.set_axis_off()
        set_title(figure, title)
        write_message(axis, textwrap.fill(text, 100))
        return figure


def set_title(figure: Figure, *lines: str) -> None:
    """The title of a whole figure from its left edge, each line wrapped at the figure's width."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, TITLE_CHARACTERS)]
    figure.suptitle("\n".join(wrapped), x=0.008, ha="left", size=8.5, weight="bold")


def is_far_above(capacity: float, used: float) -> bool:
    """Whether a capacity is told instead of drawn; False for one that is not known.

    >>> is_far_above(31, 10), is_far_above(30, 10), is_far_above(float("nan"), 10)
    (True, False, False)
    """
    return capacity > FAR * used


def time_unit(longest_s: float) -> tuple[float, str]:
    """Seconds of one unit, and its name: the largest unit of which the longest time has at least two.

    >>> time_unit(100), time_unit(7200), time_unit(90000)
    ((1.0, 's'), (3600.0, 'h'), (3600.0, 'h'))
    """
    return next((unit for unit in _TIME_UNITS if longest_s >= 2 * unit[0]), (1.0, "s"))


def names(values: pd.Series) -> str:
    """Up to three different values in words.

    >>> names(pd.Series(["a", "b", "a"])), names(pd.Series(list("abcde"))), names(pd.Series([], dtype="string"))
    ('a, b', 'a, b, c and 2 more', 'none')
    """
    return joined_names([str(value) for value in values.dropna().unique()], 3) or "none"


def models_on_hardware(runs: pd.DataFrame, unit: str = "run") -> str:
    """What ran where; logs of other systems often state neither, and where only some do, it is counted who states what."""
    if any(runs[column].notna().nunique() > 1 for column in ("model", "hardware")):
        return _counted_by_what_is_stated(runs, unit)
    models = names(runs["model"]) if runs["model"].notna().any() else "model not stated"
    return f"{models} on {names(runs['hardware'])}" if runs["hardware"].notna().any() else models


def _counted_by_what_is_stated(runs: pd.DataFrame, unit: str) -> str:
    parts: list[str] = []
    for has_model, has_hardware, words in (
        (True, True, "of {models} on {hardware}"),
        (True, False, "of {models}, hardware not stated"),
        (False, True, "on {hardware}, model not stated"),
        (False, False, "with model and hardware not stated"),
    ):
        part = runs[(runs["model"].notna() == has_model) & (runs["hardware"].notna() == has_hardware)]
        if len(part):
            counted = f"{len(part)}" if parts else f"{len(part)} {unit}{'' if len(part) == 1 else 's'}"
            parts.append(f"{counted} {words.format(models=names(part['model']), hardware=names(part['hardware']))}")
    return "; ".join(parts)


def where(runs: pd.DataFrame) -> str:
    """Models, hardware and number of the runs of a figure, for its title."""
    return f"{models_on_hardware(runs)}, {len(runs)} {'run' if len(runs) == 1 else 'runs'}"
