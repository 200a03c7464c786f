"""Several runs as one aligned table that fits a terminal."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from hpctrain.analysis.figures.style import short_name
from hpctrain.analysis.frames import run_summaries
from hpctrain.analysis.report.run_columns import MISSING
from hpctrain.analysis.report.text_table import WIDTH, aligned, printable, wrapped
from hpctrain.analysis.run_row import FLOP_CONVENTIONS, OWN_SOURCE, RunSummary
from hpctrain.units import GIB

_NAME_WIDTH, _NAME_WIDTH_WITH_LOGS = 40, 31


def runs_table(runs: pd.DataFrame) -> str:
    """The runs in at most ``WIDTH`` columns: what is equal in all runs stands above, what is too wide is named below."""
    rows = run_summaries(runs)
    cells = {header: [cell(row) for row in rows] for header, cell in _TABLE_CELLS.items()}
    # Logs need room for what they print; their names are those of files.
    name_width = _NAME_WIDTH if {row.source for row in rows} == {OWN_SOURCE} else _NAME_WIDTH_WITH_LOGS
    cells["RUN"] = [
        f"{short_name(name, name_width)}{'' if row.valid else ' !'}"
        for name, row in zip(cells["RUN"], rows, strict=True)
    ]
    common = {
        header: values[0]
        for header, values in cells.items()
        if header in _COMMON_WORDS and len(rows) > 1 and len(set(values)) == 1 and values[0] not in _UNSAID
    }
    shown = {header: values for header, values in cells.items() if header not in common}
    shown = {header: values for header, values in shown.items() if not set(values) <= _UNSAID}
    fitting = _fitting(shown)
    left_out = [header for header in shown if header not in fitting]
    parts = [f"Equal in all: {', '.join(_COMMON_WORDS[header].format(text) for header, text in common.items())}"]
    table = aligned([fitting, *map(list, zip(*(shown[header] for header in fitting), strict=True))])
    narrower = f"; not shown: {', '.join(left_out)}" if left_out else ""
    notes = [meaning for header, meaning in _MEANINGS.items() if header in fitting]
    notes.append(wrapped(f"All columns: -o runs.csv or -o report.html{narrower}"))
    return "\n".join([*(map(wrapped, parts) if common else []), table, *notes])


def _fitting(cells: dict[str, list[str]]) -> list[str]:
    """Headers, in the table's order, of columns that fit side by side: the least important of the others go first."""
    widths = {header: max(map(len, (header, *values))) + 2 for header, values in cells.items()}
    shown = set(widths)
    dropped = []
    for header in _DROP_ORDER:
        if sum(widths[name] for name in shown) - 2 <= WIDTH:
            break
        if header in shown:
            shown.remove(header)
            dropped.append(header)
    # A wide column that had to go may leave room for a narrow one that went before it.
    for header in reversed(dropped):
        if sum(widths[name] for name in (*shown, header)) - 2 <= WIDTH:
            shown.add(header)
    return [header for header in cells if header in shown]


def _interval(row: RunSummary) -> str:
    return MISSING if row.step_time_low_s is None else f"{row.step_time_low_s:.4g}..{row.step_time_high_s:.4g}"


def _printed(row: RunSummary) -> str:
    """What a foreign log itself gives as TFLOP/s a GPU, with the name of its count."""
    return (
        MISSING if row.printed_tflops_per_gpu is None else f"{row.printed_tflops_per_gpu:.4g} {row.printed_convention}"
    )


def _text(value: object) -> str:
    return MISSING if value is None else str(value)


_TABLE_CELLS: dict[str, Callable[[RunSummary], str]] = {
    "RUN": lambda row: printable(row.run, kept=""),
    "SYSTEM": lambda row: row.source,
    "MODEL": lambda row: _text(row.model),
    "HARDWARE": lambda row: _text(row.hardware),
    "GPUS": lambda row: _text(row.gpus),
    "NODES": lambda row: _text(row.nodes),
    "PARALLEL": lambda row: _text(row.parallelism),
    "PREC": lambda row: _text(row.precision),
    "MICRO": lambda row: _text(row.micro_batch_size),
    "GLOBAL": lambda row: _text(row.global_batch_size),
    "SEQ": lambda row: _text(row.seq_len),
    "STATE": lambda row: row.state,
    "STEPS": lambda row: f"{row.num_recorded_steps}/{row.num_steps or '?'}",
    "STEP S": lambda row: _number(row.step_time_s),
    "95 %": _interval,
    "TOKENS/S": lambda row: MISSING if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
    "TFLOP/S": lambda row: _number(row.model_tflops_per_gpu),
    "PRINTED": _printed,
    "MFU %": lambda row: MISSING if row.mfu is None else f"{100 * row.mfu:.1f}",
    "GIB": lambda row: MISSING if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / GIB:.2f}",
    "LOSS": lambda row: _number(row.final_loss),
}
"""Columns of the table of runs, in order."""

_COMMON_WORDS = {
    "SYSTEM": "{}",
    "MODEL": "{}",
    "HARDWARE": "{}",
    "GPUS": "{} GPUs",
    "NODES": "{} node(s)",
    "PARALLEL": "{}",
    "PREC": "{}",
    "MICRO": "micro batch {}",
    "GLOBAL": "global batch {}",
    "SEQ": "{} tokens a sequence",
    "STATE": "{}",
    "STEPS": "{} steps",
}
"""Columns that say what a run was; where all runs agree they become words above the table."""

_UNSAID = {MISSING, OWN_SOURCE}
"""Where a column holds nothing else it is not shown."""

_DROP_ORDER = (
    "95 %", "SEQ", "PREC", "GLOBAL", "GIB", "NODES", "MICRO", "HARDWARE", "PARALLEL", "LOSS", "STEPS", "MODEL",
    "TFLOP/S", "MFU %", "STATE", "PRINTED", "SYSTEM",
)  # fmt: skip
"""Least important first."""

_MEANINGS = {
    "STEP S": "STEP S: median of the steady steps",
    "TFLOP/S": f"TFLOP/S: per GPU (on the CPU: per rank), model FLOPs: {FLOP_CONVENTIONS['model']}",
    "PRINTED": "PRINTED: TFLOP/s per GPU as the log gives it, and the FLOP count behind it",
    "GIB": "GIB: peak memory of rank 0",
}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
