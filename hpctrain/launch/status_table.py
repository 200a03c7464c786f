"""``status`` as text: one aligned row a run, wide enough for files and narrow terminals alike."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.launch.jobs import RunStatus

_DETAIL_WIDTH = 100
_HEADER = ("run", "job", "state", "attempt", "step", "loss", "last ms/step", "model TFLOP/s/GPU", "detail")


def status_table(rows: Sequence[RunStatus]) -> str:
    """An aligned table; ``-`` where nothing was measured yet."""
    if not rows:
        return "no runs"
    cells = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    )


def _short(detail: str) -> str:
    """The first line, cut; ``--json`` has all of it."""
    line = detail.splitlines()[0] if detail else ""
    return line if len(line) <= _DETAIL_WIDTH else line[: _DETAIL_WIDTH - 3] + "..."


def _cells(row: RunStatus) -> tuple[str, ...]:
    return (
        row.run,
        row.job_id or "-",
        row.state,
        str(row.attempt or "-"),
        f"{row.step}/{row.num_steps}",
        "-" if row.loss is None else f"{row.loss:.4f}",
        "-" if row.step_time_s is None else f"{row.step_time_s * 1e3:.1f}",
        "-" if row.model_tflops_per_gpu is None else f"{row.model_tflops_per_gpu:.4g}",
        _short(row.detail),
    )
