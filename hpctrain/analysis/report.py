"""What a person reads of runs: the summary of one, the table of several, and the files kept in the run folder."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Sequence

import pandas as pd

from hpctrain.analysis.frames import Frames, read_run, run_summaries
from hpctrain.analysis.run_plot import plot_run
from hpctrain.analysis.scaling import KIND_KEYS, Scaling, scaling_efficiency
from hpctrain.analysis.summary import FLOP_CONVENTIONS, RunSummary, rank_word, summarise
from hpctrain.errors import RecordError
from hpctrain.record.files import write_text
from hpctrain.record.paths import RunPaths
from hpctrain.units import gib

SUMMARY_SCHEMA_VERSION = 1


def summary_table(summary: RunSummary) -> list[tuple[str, str]]:
    """What one run did, as (label, text with unit); what is missing says why."""
    word = rank_word(summary.device)
    table = [("run", summary.folder), ("state", _state(summary))]
    if summary.model is None:
        return [*table, ("problem", summary.reason)]
    table += [
        ("model", f"{summary.model} on {summary.gpus} {word}s of {summary.hardware}, {summary.precision}"),
        ("final loss", "none recorded" if summary.final_loss is None else f"{summary.final_loss:.4f} nats per token"),
        ("median step time", _step_time(summary)),
        ("throughput", _throughput(summary, word)),
    ]
    for name, rate in summary.tflops_per_gpu.items():
        text = _not_measured(summary) if rate is None else f"{rate:.4g} ({FLOP_CONVENTIONS[name]})"
        table.append((f"TFLOP/s per {word}, {name}", text))
    table += [("MFU, HFU", _utilisation(summary)), ("peak memory", _memory(summary))]
    if summary.gpu_hours is not None:
        table.append(("cost", f"{summary.gpu_hours:.4g} {word}-hours in {summary.num_attempts} attempt(s)"))
    if not summary.valid:
        table.append(("not for comparison", summary.reason))
    return table


def render_summary(summary: RunSummary) -> str:
    """``summary_table`` as aligned lines."""
    table = summary_table(summary)
    width = max(len(label) for label, _ in table)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in table)


def write_summary(run: RunPaths) -> str:
    """Saves ``summary.png`` and ``summary.json`` into the run folder and returns the summary as text.

    Raises:
        RecordError: the folder cannot be written.
    """
    data = read_run(run)
    summary = summarise(data)
    figure_bytes = io.BytesIO()
    plot_run(summary, data.steps).savefig(figure_bytes, format="png", dpi=200)
    values = dataclasses.asdict(summary)
    del values["folder"]  # a run folder may be moved
    values = {"schema_version": SUMMARY_SCHEMA_VERSION, **values, "flop_conventions": FLOP_CONVENTIONS}
    figure = run.summary_figure
    temporary = figure.with_name(f".{figure.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(figure_bytes.getvalue())
        os.replace(temporary, figure)
        write_text(run.summary, json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RecordError(f"{run.root}: the summary cannot be written: {error.strerror}") from error
    return render_summary(summary)


def render_text(frames: Frames) -> str:
    """Several runs as one aligned table, then scaling where it can be told, then what was left out and why."""
    parts = []
    if len(frames.runs):
        parts.append(_runs_table(frames.runs))
        scalings = [scaling_efficiency(frames.runs, kind) for kind in KIND_KEYS]
        parts += _scaling_parts(scalings)
        if scalings[0].left_out:
            parts.append("\n  ".join(["Not for comparison (marked !):", *scalings[0].left_out]))
    parts += frames.problems
    return "\n\n".join(part for part in parts if part)


def _scaling_parts(scalings: Sequence[Scaling]) -> list[str]:
    """A table for each kind of scaling that the runs show, or why they show none."""
    tables = [table for scaling in scalings if (table := render_scaling(scaling))]
    if tables:
        return tables
    lines = [f"  {scaling.kind}: {message}" for scaling in scalings for message in scaling.messages]
    return ["\n".join(["No scaling efficiency:", *lines])] if lines else []


def render_scaling(scaling: Scaling) -> str:
    """Efficiencies of one kind as an aligned table, then the groups without; empty if no group has any."""
    points = scaling.points[scaling.points["efficiency"].notna()]
    if points.empty:
        return ""
    rows = [
        [group, f"{gpus}", f"{nodes}", f"{num_runs}", f"{rate:,.0f}", f"{base}", f"{100 * efficiency:.1f}"]
        for group, gpus, nodes, num_runs, rate, base, efficiency in points[
            ["group", "gpus", "nodes", "num_runs", "tokens_per_s", "base_gpus", "efficiency"]
        ].itertuples(index=False)
    ]
    header = ["GROUP", "GPUS", "NODES", "RUNS", "TOKENS/S", "BASE", "EFF %"]
    title = f"{scaling.kind.capitalize()} scaling from tokens/s, equal in all: {scaling.common}"
    return "\n".join([title, _aligned([header, *rows]), *scaling.messages])


def _runs_table(runs: pd.DataFrame) -> str:
    header = [
        "RUN",
        "MODEL",
        "HARDWARE",
        "GPUS",
        "NODES",
        "PARALLEL",
        "PREC",
        "MICRO",
        "GLOBAL",
        "SEQ",
        "STATE",
        "STEPS",
    ]
    header += ["STEP S", "95 %", "TOKENS/S", *(f"TF {name.upper()}" for name in FLOP_CONVENTIONS), "MFU %", "LOSS"]
    rows = [_run_row(summary) for summary in run_summaries(runs)]
    note = "STEP S: median of the steady steps; TF: TFLOP/s per GPU (on the CPU: per rank) by three FLOP counts:"
    counts = [f"  {name}: {meaning}" for name, meaning in FLOP_CONVENTIONS.items()]
    return "\n".join([_aligned([header, *rows]), note, *counts])


def _run_row(row: RunSummary) -> list[str]:
    identity = [row.model, row.hardware, row.gpus, row.nodes, row.parallelism, row.precision]
    batch = [row.micro_batch_size, row.global_batch_size, row.seq_len, row.state]
    interval = "" if row.step_time_low_s is None else f"{row.step_time_low_s:.4g}..{row.step_time_high_s:.4g}"
    return [
        f"{row.run}{'' if row.valid else ' !'}",
        *("-" if value is None else str(value) for value in [*identity, *batch]),
        f"{row.num_recorded_steps}/{row.num_steps or '?'}",
        _number(row.step_time_s),
        interval or "-",
        "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
        *(_number(rate) for rate in row.tflops_per_gpu.values()),
        "-" if row.mfu is None else f"{100 * row.mfu:.1f}",
        _number(row.final_loss),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart; those whose every value below the header is a number are flushed right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = [all(_is_number(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    )


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "").replace("/", "").isdigit()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _state(summary: RunSummary) -> str:
    steps = f"{summary.num_recorded_steps} of {summary.num_steps or 'unknown'} steps recorded"
    damaged = f", {summary.damaged_lines} damaged line(s) in steps.jsonl" if summary.damaged_lines else ""
    return f"{summary.state}, {steps}{damaged}"


def _step_time(summary: RunSummary) -> str:
    if summary.step_time_s is None:
        return "not measured: no steady step"
    interval = "95 % interval needs 6 steady steps"
    if summary.step_time_low_s is not None:
        interval = f"95 % interval {summary.step_time_low_s:.4g} to {summary.step_time_high_s:.4g} s"
    return f"{summary.step_time_s:.4g} s ({interval}; {summary.num_steady_steps} steady step(s))"


def _throughput(summary: RunSummary, word: str) -> str:
    if summary.tokens_per_s is None:
        return "not measured"
    text = f"{summary.tokens_per_s:,.0f} tokens/s"
    return text if summary.tokens_per_s_per_gpu is None else f"{text}, {summary.tokens_per_s_per_gpu:,.0f} per {word}"


def _not_measured(summary: RunSummary) -> str:
    return "not measured" if summary.step_time_s is None else "none, see «not for comparison»"


def _utilisation(summary: RunSummary) -> str:
    if summary.peak_tflops_per_gpu is None:
        return f"none: hardware={summary.hardware} states no peak for {summary.precision}"
    if summary.mfu is None or summary.hfu is None:
        return _not_measured(summary)
    return f"{summary.mfu:.1%}, {summary.hfu:.1%} of {summary.peak_tflops_per_gpu:g} TFLOP/s"


def _memory(summary: RunSummary) -> str:
    predicted = (
        "" if summary.predicted_memory_bytes is None else f"; the plan predicted {gib(summary.predicted_memory_bytes)}"
    )
    if summary.peak_memory_bytes is None:
        return f"not measured{predicted}"
    measure = "resident size of rank 0's process" if summary.device == "cpu" else "rank 0's GPU allocator"
    return f"{gib(summary.peak_memory_bytes)} ({measure}){predicted}"
