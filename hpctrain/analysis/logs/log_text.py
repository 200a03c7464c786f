"""What a person reads of one foreign log: system, records, the measured figures of each run in it, and what to beware of."""

from __future__ import annotations

import textwrap
from pathlib import Path

from hpctrain.analysis.logs.conditions import find_conditions
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.log_runs import LogRun, log_runs
from hpctrain.record.files import plain_text
from hpctrain.text_table import MISSING, aligned, printable

_WIDTH = 100


def render_log(reading: LogReading) -> str:
    """The reading as text; ``--json`` has every record."""
    conditions = find_conditions(reading)
    damaged = f", {reading.damaged_lines:,} damaged" if reading.damaged_lines else ""
    head = [
        f"file        {printable(plain_text(reading.file), kept='')}: {reading.num_lines:,} lines{damaged}, {reading.encoding}",
        f"system      {reading.system}: {reading.format}",
        f"records     {_records(reading)}",
    ]
    if "tflops_per_gpu" in reading.records.names:
        head.append(f"TFLOP/s     as printed, counted by convention: {reading.tflops_convention}")
    if conditions.flags:
        head.append(textwrap.fill(f"conditions  {', '.join(conditions.flags)}", _WIDTH, subsequent_indent=" " * 12))
    runs = log_runs(reading, Path(reading.file))
    return "\n".join([*head, "", aligned([_HEADER, *map(_row, runs)]), *_reasons(runs)])


def _records(reading: LogReading) -> str:
    iterations = [value for value in reading.records.numbers("iteration") if value == value]
    cut = f"; {len(reading.incomplete_records)} cut off" if reading.incomplete_records else ""
    if not iterations:
        return f"{len(reading.records):,}{cut}"
    return f"{len(reading.records):,}, iterations {iterations[0]:,.0f} to {iterations[-1]:,.0f}{cut}"


_HEADER = ["RUN", "STATE", "STEPS", "STEP S", "TOKENS/S", "TF/GPU", "MFU %", "LOSS"]


def _row(run: LogRun) -> list[str]:
    row = run.summary
    return [
        f"{printable(row.run, kept='')}{'' if row.valid else ' !'}",
        row.end_reason or row.state,
        str(row.num_recorded_steps),
        _number(row.step_time_s),
        MISSING if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
        _number(row.printed_tflops_per_gpu),
        MISSING if row.mfu is None else f"{100 * row.mfu:.1f}",
        _number(row.final_loss),
    ]


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def _reasons(runs: tuple[LogRun, ...]) -> list[str]:
    lines = [printable(f"{run.summary.run}: {run.summary.reason}", kept="") for run in runs if not run.summary.valid]
    return ["", "Not for comparison (marked !):", *(f"  {line}" for line in lines)] if lines else []
