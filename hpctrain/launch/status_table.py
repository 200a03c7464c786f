"""``status`` as text: one aligned row a run, wide enough for files and narrow terminals alike."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.launch.jobs import RunStatus
from hpctrain.text_table import MISSING, aligned

_DETAIL_WIDTH = 100
_HEADER = ("run", "job", "state", "attempt", "step", "loss", "last ms/step", "model TFLOP/s/GPU", "detail")


def status_table(rows: Sequence[RunStatus]) -> str:
    """An aligned table; ``-`` where nothing was measured yet."""
    if not rows:
        return "no runs"
    cells = [_HEADER, *(_cells(row) for row in rows)]
    return aligned(cells)


def _short(detail: str) -> str:
    """The first line, cut; ``--json`` has all of it."""
    line = detail.splitlines()[0] if detail else ""
    return line if len(line) <= _DETAIL_WIDTH else line[: _DETAIL_WIDTH - 3] + "..."


def _cells(row: RunStatus) -> tuple[str, ...]:
    return (
        row.run,
        row.job_id or MISSING,
        row.state,
        str(row.attempt or MISSING),
        f"{row.step}/{row.num_steps}",
        MISSING if row.loss is None else f"{row.loss:.4f}",
        MISSING if row.step_time_s is None else f"{row.step_time_s * 1e3:.1f}",
        MISSING if row.model_tflops_per_gpu is None else f"{row.model_tflops_per_gpu:.4g}",
        _short(row.detail),
    )
