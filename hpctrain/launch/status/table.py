"""``status`` as text: one line a run, columns dropped and not wrapped where the terminal is narrow, sweeps with a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.launch.status.filter import group_of
from hpctrain.launch.status.rows import RunStatus
from hpctrain.text_table import MISSING, aligned, column_widths, printable
from hpctrain.units import duration_in_words

_DETAIL_WIDTH = 100
_LEAST_DETAIL, _LEAST_NAME = 28, 16
_LEAST_POINT = 24
"""Columns that a point of a sweep keeps while others than the step can go."""
_GOOD_DETAIL = 60
"""Columns of lesser use are dropped for a reason of this length."""
_LESSER_USE = 5
_GAP = 2
_FIRST, _LAST = ("running", "waiting", "done"), ("unknown",)
"""Groups of runs before and after the bad ends."""


@dataclass(frozen=True)
class _Column:
    name: str
    cell: Callable[[RunStatus], str]
    rank: int
    """Columns with the highest rank are dropped first."""


def _number(value: float | None, form: str, factor: float = 1.0) -> str:
    return MISSING if value is None else format(value * factor, form)


def _duration(value_s: float | None) -> str:
    if value_s is None:
        return MISSING
    return f"{value_s:.0f}s" if value_s < 60 else duration_in_words(value_s).replace(" ", "")


def _start(row: RunStatus) -> str:
    if row.expected_start_s is None:
        return MISSING
    return time.strftime("%d %b %H:%M", time.localtime(row.expected_start_s))


_COLUMNS = (
    _Column("job", lambda row: row.job_id or MISSING, 4),
    _Column("state", lambda row: row.state + ("?" if row.stale_since_s is not None else ""), 0),
    _Column("try", lambda row: str(row.attempt or MISSING), 5),
    _Column("step", lambda row: f"{row.step}/{row.num_steps}" if row.payload == "train" else "check", 1),
    _Column("loss", lambda row: _number(row.loss, ".4f"), 3),
    _Column("val loss", lambda row: _number(row.validation_loss, ".4f"), 6),
    _Column("ms/step", lambda row: _number(row.step_time_s, ".1f", 1e3), 3),
    _Column("of plan", lambda row: _number(row.measured_over_predicted, ".2f"), 6),
    _Column("TFLOPs/GPU", lambda row: _number(row.model_tflops_per_gpu, ".4g"), 4),
    _Column("ETA", lambda row: _duration(row.eta_s), 2),
    _Column("GPU-h", lambda row: _number(row.gpu_hours, ",.1f"), 5),
    _Column("queued", lambda row: _duration(row.queue_time_s), 7),
    _Column("starts", _start, 8),
    _Column("detail", lambda row: _short(row.detail), 9),
)


def status_table(
    rows: Sequence[RunStatus],
    width: int | None = None,
    not_submitted: Mapping[str, int] | None = None,
    totals: Mapping[str, int] | None = None,
) -> str:
    """An aligned table, runs of a sweep below its summary; ``-`` where nothing was measured yet.

    Args:
        rows: oldest first.
        width: columns of the terminal; None: as wide as it gets.
        not_submitted: by sweep folder, how many of its points have no job yet.
        totals: by sweep folder, how many points it has, where rows are a choice.
    """
    if not rows and not not_submitted:
        return "no runs"
    groups: dict[str, list[RunStatus]] = {}
    for row in rows:
        groups.setdefault(row.sweep or row.path, []).append(row)
    names = {row.path: _name(row) for row in rows}
    columns = [column for column in _COLUMNS if _is_told(column, rows, width)]
    table = _fitting(rows, names, columns, width)
    lines = dict(zip(names, table[1:], strict=True))
    text = [table[0]] if rows else []
    for key in dict.fromkeys([*groups, *(not_submitted or {})]):
        members = groups.get(key, [])
        if not members or members[0].sweep:
            summary = sweep_summary(key, members, (not_submitted or {}).get(key, 0), (totals or {}).get(key, 0))
            text.append(_cut(summary, width))
        text += [lines[row.path] for row in members]
    return "\n".join(text)


def sweep_summary(folder: str, rows: Sequence[RunStatus], not_submitted: int, total: int = 0) -> str:
    """One line: how many points of a sweep are in which state; of how many, where some are not shown."""
    counts = Counter(group_of(row) for row in rows)
    ends = sorted(set(counts).difference(_FIRST, _LAST))
    parts = [f"{counts[group]} {group}" for group in (*_FIRST, *ends, *_LAST) if counts[group]]
    if not_submitted:
        parts.append(f"{not_submitted} not submitted")
    hours = sum(row.gpu_hours for row in rows)
    shown = f"{len(rows)} of {total} points: " if len(rows) + not_submitted < total else ""
    name = printable(Path(folder).name, kept="")
    return f"sweep {name}: {shown}{', '.join(parts) or 'no points'}; {hours:,.1f} GPU-h"


def _name(row: RunStatus) -> str:
    """Points of a sweep are set in, with what tells them apart."""
    name = " ".join(filter(None, (row.run, row.point)))
    return f"{'  ' if row.sweep else ''}{printable(name, kept='')}"


def _is_told(column: _Column, rows: Sequence[RunStatus], width: int | None) -> bool:
    """Whether a column has anything to say; in files the main ones stay all the same."""
    return column.rank < (6 if width is None else 2) or any(column.cell(row) not in (MISSING, "") for row in rows)


def _fitting(rows: Sequence[RunStatus], names: dict[str, str], columns: list[_Column], width: int | None) -> list[str]:
    """Header and lines of the table; the least useful columns go first, then the run's name is cut."""
    while True:
        cells = [["run", *(column.name for column in columns)]]
        cells += [[names[row.path], *(column.cell(row) for column in columns)] for row in rows]
        if width is None:
            return aligned(cells).splitlines()
        widths = column_widths(cells)
        fixed = sum(widths[1:]) + _GAP * len(columns)
        has_detail = bool(columns) and columns[-1].name == "detail"
        if has_detail:
            fixed -= widths[-1]
        others = [column for column in columns if column.rank > 0 and column.name != "detail"]
        least_detail = _GOOD_DETAIL if any(column.rank >= _LESSER_USE for column in others) else _LEAST_DETAIL
        room = width - fixed - (min(least_detail, widths[-1]) if has_detail else 0)
        is_wide = any(row.point for row in rows) and any(column.rank > 1 for column in others)
        if room >= min(widths[0], _LEAST_POINT if is_wide else _LEAST_NAME) or not columns:
            name_width = min(widths[0], max(room, 1))
            cells = [[_middle_cut(cell[0], name_width), *cell[1:]] for cell in cells]
            return [_cut(line, width) for line in aligned(cells).splitlines()]
        dropped = max(others, key=lambda column: column.rank) if others else columns[-1]
        columns = [column for column in columns if column is not dropped]


def _short(detail: str) -> str:
    """The first line, cut; ``--json`` has all of it."""
    line = printable(detail.splitlines()[0], kept="") if detail else ""
    return line if len(line) <= _DETAIL_WIDTH else line[: _DETAIL_WIDTH - 3] + "..."


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else (line[: max(0, width - 2)] + "..")[:width]


def _middle_cut(name: str, width: int) -> str:
    """Name and time of a run are at its two ends.

    >>> _middle_cut("tiny-1n-zero3-20261130-080000-ab12", 16)
    'tiny-1n..00-ab12'
    """
    if len(name) <= width:
        return name
    tail = max(0, (width - 2) // 2)
    return name[: max(0, width - 2 - tail)] + ".." + (name[-tail:] if tail else "")
