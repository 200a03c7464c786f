"""Several runs as one aligned table that fits a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from hpctrain.analysis.frames import run_summaries
from hpctrain.analysis.name_lists import short_name
from hpctrain.analysis.report.run_columns import RUN_COLUMNS, cell_text
from hpctrain.analysis.run_row import FLOP_CONVENTIONS, OWN_SOURCE, RunSummary, rank_word
from hpctrain.text_table import MISSING, WIDTH, aligned, printable, wrapped

_NAME_WIDTH, _NAME_WIDTH_WITH_LOGS = 40, 31


def runs_table(runs: pd.DataFrame) -> str:
    """The runs in at most ``WIDTH`` columns: what is equal in all runs stands above, what is too wide is named below."""
    rows = run_summaries(runs)
    cells = {header: [_cell(row, header) for row in rows] for header in _COLUMNS}
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
    words = _COMMON_WORDS | {"GPUS": _gpus_words(rows)}
    parts = [f"Equal in all: {', '.join(words[header].format(text) for header, text in common.items())}"]
    table = aligned([fitting, *map(list, zip(*(shown[header] for header in fitting), strict=True))])
    narrower = f"; not shown: {', '.join(left_out)}" if left_out else ""
    notes = [meaning for header, meaning in _MEANINGS.items() if header in fitting]
    notes.append(wrapped(f"All columns: -o runs.csv or -o report.html{narrower}"))
    return "\n".join([*(map(wrapped, parts) if common else []), table, *notes])


def _gpus_words(rows: Sequence[RunSummary]) -> str:
    """The word after a number of ranks that all rows share; on CPUs and GPUs alike it is that number of ranks."""
    devices = {row.device for row in rows}
    word = rank_word(devices.pop()) if len(devices) == 1 else "rank"
    return f"{{}} {word}{'' if rows[0].gpus == 1 else 's'}"


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


def _cell(row: RunSummary, header: str) -> str:
    if header in _MADE_CELLS:
        return _MADE_CELLS[header](row)
    key = _COLUMNS[header]
    return cell_text(getattr(row, key), _BY_KEY[key])


def _interval(row: RunSummary) -> str:
    return MISSING if row.step_time_low_s is None else f"{row.step_time_low_s:.4g}..{row.step_time_high_s:.4g}"


def _printed(row: RunSummary) -> str:
    """What a foreign log itself gives as TFLOP/s a GPU, with the name of its count."""
    rate = cell_text(row.printed_tflops_per_gpu, _BY_KEY["printed_tflops_per_gpu"])
    return MISSING if rate == MISSING else f"{rate} {row.printed_convention}"


_BY_KEY = {column.key: column for column in RUN_COLUMNS}
_COLUMNS = {
    "RUN": "run",
    "SYSTEM": "source",
    "MODEL": "model",
    "HARDWARE": "hardware",
    "GPUS": "gpus",
    "NODES": "nodes",
    "PARALLEL": "parallelism",
    "PREC": "precision",
    "MICRO": "micro_batch_size",
    "GLOBAL": "global_batch_size",
    "SEQ": "seq_len",
    "STATE": "state",
    "STEPS": "num_recorded_steps",
    "STEP S": "step_time_s",
    "95 %": "step_time_low_s",
    "TOKENS/S": "tokens_per_s",
    "TFLOP/S": "model_tflops_per_gpu",
    "PRINTED": "printed_tflops_per_gpu",
    "MFU %": "mfu",
    "GIB": "peak_memory_bytes",
    "LOSS": "final_loss",
}
"""Columns of the table of runs, in order, and the column of the frame that each shows."""
_MADE_CELLS: dict[str, Callable[[RunSummary], str]] = {
    "RUN": lambda row: printable(row.run, kept=""),
    "STEPS": lambda row: f"{row.num_recorded_steps}/{row.num_steps or '?'}",
    "95 %": _interval,
    "PRINTED": _printed,
}
"""Cells of more than one value, or of a name that must not command the terminal."""

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
