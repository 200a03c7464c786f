"""Runs as a file for other programs (CSV, Parquet: every column) or for a paper (LaTeX, Markdown: chosen columns)."""

from __future__ import annotations

import io
import re

import pandas as pd
from tabulate import tabulate

from hpctrain.analysis.report.run_columns import RUN_COLUMNS, RunColumn, cell_text
from hpctrain.analysis.report.run_names import distinct_runs
from hpctrain.text_table import MISSING, printable

PAPER_KEYS = (
    "run", "model", "hardware", "nodes", "gpus", "parallelism", "precision", "micro_batch_size", "global_batch_size",
    "seq_len", "step_time_s", "tokens_per_s", "model_tflops_per_gpu", "mfu", "peak_memory_bytes", "final_loss",
)  # fmt: skip
"""Columns for a paper, in its order."""

_LATEX_ARGUMENT = re.compile(r"^(\s*)([\[*])", re.MULTILINE)
"""What \\\\ and \\midrule would take for their argument or star, though it begins the row after them."""
_MARKDOWN_SPECIAL = re.compile(r"([\\`*<>|\[\]~]|(?<!\w)_|_(?!\w))")


def csv_bytes(runs: pd.DataFrame) -> bytes:
    """Every column in SI units or shares, a row a run, empty where nothing was measured; UTF-8.

    Control signs in names and reasons are spelled out (Parquet keeps them), so that a row is one line and commands no
    terminal. Cells that begin with ``=``, ``+``, ``-`` or ``@`` go out as they are, since this is data: a spreadsheet
    takes such a name for a formula unless it is told to import text.
    """
    texts = {
        str(name): [printable(value, kept="") if isinstance(value, str) else value for value in values]
        for name, values in runs.items()
        if isinstance(values.dtype, pd.StringDtype)
    }
    text: str = runs.assign(**texts).to_csv(index=False, lineterminator="\n")
    return text.encode("utf-8")


def parquet_bytes(runs: pd.DataFrame) -> bytes:
    """Every column with its dtype."""
    stream = io.BytesIO()
    runs.to_parquet(stream, index=False)
    return stream.getvalue()


def paper_table(runs: pd.DataFrame) -> tuple[list[RunColumn], list[list[str]]]:
    """Columns and cells for a paper: valid runs only, under names that differ, and only columns in which some run has a value."""
    valid = distinct_runs(runs)[runs["valid"].astype(bool)]
    described = {column.key: column for column in RUN_COLUMNS}
    columns = [described[key] for key in PAPER_KEYS if valid[key].notna().any()]
    cells = [[cell_text(value, column) for value in valid[column.key]] for column in columns]
    return columns, [list(row) for row in zip(*cells, strict=True)]


def markdown_text(runs: pd.DataFrame) -> str:
    """``paper_table`` in Markdown, a line under it that says what was left out."""
    columns, rows = paper_table(runs)
    if not rows:
        return f"{_note(runs)}\n"
    header = [_markdown(column.header) for column in columns]
    cells = [[_markdown(cell) for cell in row] for row in rows]
    table = tabulate(cells, header, tablefmt="pipe", disable_numparse=True, colalign=_alignment(columns))
    return f"{table}\n\n{_markdown(_note(runs))}\n"


def latex_text(runs: pd.DataFrame) -> str:
    """``paper_table`` as a LaTeX ``tabular`` for the package ``booktabs``, with a comment that says what was left out."""
    columns, rows = paper_table(runs)
    note = " ".join(_note(runs).split())
    if not rows:
        return f"% {note}\n"
    table = tabulate(
        [[_one_line(cell) for cell in row] for row in rows],
        [column.header for column in columns],
        tablefmt="latex_booktabs",
        disable_numparse=True,
        colalign=_alignment(columns),
    )
    table = _LATEX_ARGUMENT.sub(r"\1{}\2", table).replace("|", r"\textbar{}")  # in TeX's first encoding a bar is a dash
    return f"% \\usepackage{{booktabs}}; {note}\n{table}\n"


def _alignment(columns: list[RunColumn]) -> list[str]:
    return ["left" if column.kind in ("text", "flag") else "right" for column in columns]


def _note(runs: pd.DataFrame) -> str:
    num_valid = int(runs["valid"].sum())
    left_out = len(runs) - num_valid
    text = f"{num_valid} run(s); medians of the steady steps; {MISSING}: not measured"
    return f"{text}; left out as not valid: {left_out}" if left_out else text


def _markdown(cell: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", _one_line(cell))


def _one_line(cell: str) -> str:
    return printable(" ".join(cell.split()))
