"""What a terminal shows of runs: the summary of one, whose picture and numbers its folder keeps, and the table of several."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from hpctrain.analysis.figures.figure_bytes import figure_bytes
from hpctrain.analysis.figures.run_plot import plot_run
from hpctrain.analysis.frames import Frames, read_run
from hpctrain.analysis.report.prediction_text import predicted_memory_text, predicted_step_text, predictions_table
from hpctrain.analysis.report.run_names import distinct_runs
from hpctrain.analysis.report.runs_text import runs_table
from hpctrain.analysis.run_row import FLOP_CONVENTIONS, OWN_SOURCE, RunSummary, counted_ranks, rank_word
from hpctrain.analysis.scaling import KIND_KEYS, Scaling, scaling_efficiency
from hpctrain.analysis.summary import summarise
from hpctrain.errors import RecordError
from hpctrain.record.files import read_record, replace_file
from hpctrain.record.launch_check import LaunchCheck, summary_text
from hpctrain.record.paths import RunPaths
from hpctrain.text_table import aligned, printable, wrapped
from hpctrain.units import gib, short_count

SUMMARY_SCHEMA_VERSION = 1


def summary_table(summary: RunSummary) -> list[tuple[str, str]]:
    """What one run did, as (label, text with unit); what is missing says why."""
    if summary.source != OWN_SOURCE:
        return _log_table(summary)
    word, ranks = rank_word(summary.device), counted_ranks(summary.gpus or 0, summary.device)
    table = [("run", summary.folder), ("state", _state(summary))]
    if summary.model is None:
        return [*table, ("problem", summary.reason)]
    table += [
        ("model", f"{summary.model} on {ranks} of {summary.hardware}, {summary.precision}"),
        ("final loss", "none recorded" if summary.final_loss is None else f"{summary.final_loss:.4f} nats per token"),
        *_validation(summary),
        ("median step time", _step_time(summary)),
        ("predicted step time", predicted_step_text(summary)),
        *_parts(summary),
        ("throughput", _throughput(summary, word)),
        ("by the wall clock", _wall_clock(summary)),
    ]
    for name, rate in summary.tflops_per_gpu.items():
        text = _not_measured(summary) if rate is None else f"{rate:.4g} ({FLOP_CONVENTIONS[name]})"
        table.append((f"TFLOP/s per {word}, {name}", text))
    table += [("MFU, HFU", _utilisation(summary)), ("peak memory", _memory(summary))]
    if summary.forced is not None:
        table.append(("submitted with --force", summary.forced))
    if summary.gpu_hours is not None:
        table.append(("cost", f"{summary.gpu_hours:.4g} {word}-hours in {summary.num_attempts} attempt(s)"))
    if not summary.valid:
        table.append(("not for comparison", summary.reason))
    return table


def _log_table(summary: RunSummary) -> list[tuple[str, str]]:
    """What the log of another system tells; what it does not tell has no line, except speeds, which every log should."""
    rate, mfu = summary.printed_tflops_per_gpu, summary.mfu
    table = [
        ("log", summary.folder),
        ("system", summary.source),
        ("state", _state(summary)),
        ("model", _log_setup(summary)),
        ("final loss", "" if summary.final_loss is None else f"{summary.final_loss:.4g}, as the log tells it"),
        ("median step time", _step_time(summary)),
        ("throughput", _log_throughput(summary)),
        ("by the wall clock", "" if summary.wall_tokens_per_s is None else _wall_clock(summary)),
        ("TFLOP/s per GPU, printed", "" if rate is None else f"{rate:.4g} (FLOP count: {_printed_count(summary)})"),
        ("MFU", "" if mfu is None else f"{mfu:.1%}"),
        ("peak memory", "" if summary.peak_memory_bytes is None else f"{gib(summary.peak_memory_bytes)}, as the log tells it"),
        ("not for comparison", summary.reason),
    ]  # fmt: skip
    return [(label, text) for label, text in table if text]


def _log_throughput(summary: RunSummary) -> str:
    if summary.tokens_per_s is not None or summary.num_steady_steps == 0:
        return _throughput(summary, "GPU")
    if summary.tokens_per_s_per_gpu is not None:
        return f"{summary.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"
    return "not known: the log tells neither tokens/s nor batch and sequence"


def _log_setup(summary: RunSummary) -> str:
    """Model, GPUs, hardware and precision, as far as the log tells them."""
    size = None if summary.num_parameters is None else f"{short_count(summary.num_parameters)} parameters"
    gpus = None if summary.gpus is None else f"{summary.gpus} GPU{'' if summary.gpus == 1 else 's'}"
    parts = (summary.model or "model not stated", size, gpus, summary.hardware, summary.parallelism, summary.precision)
    return ", ".join(part for part in parts if part)


def _printed_count(summary: RunSummary) -> str:
    """Which FLOPs the printed rate counts, in words where it is one of ours."""
    name = summary.printed_convention or "unknown"
    return f"{name}, {FLOP_CONVENTIONS[name]}" if name in FLOP_CONVENTIONS else name


def render_summary(summary: RunSummary) -> str:
    """``summary_table`` as aligned lines."""
    table = summary_table(summary)
    width = max(len(label) for label, _ in table)
    return "\n".join(f"{label:<{width}}  {printable(text)}" for label, text in table)


def write_summary(run: RunPaths) -> str:
    """The summary as text, its last line about the picture; saves ``summary.png`` and ``summary.json`` if the folder lets it.

    A run without a step gets no picture. A folder that cannot be written is no error: the line says why and what to do.
    """
    data = read_run(run)
    summary = summarise(data)
    text = render_summary(summary)
    if data.plan is not None and data.plan.payload == "launch_check":
        state = summary.state if summary.state == "completed" else summary.reason
        return f"run    {summary.folder}\nstate  {state}\n{_launch_check(run)}"
    values = dataclasses.asdict(summary)
    del values["folder"]  # a run folder may be moved
    values = {"schema_version": SUMMARY_SCHEMA_VERSION, **values, "flop_conventions": FLOP_CONVENTIONS}
    try:
        numbers = json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        replace_file(run.summary, numbers.encode("utf-8", errors="backslashreplace"))
        if data.steps.empty:
            return f"{text}\n\nno picture: no step was recorded"
        replace_file(run.summary_figure, figure_bytes(plot_run(summary, data.steps, data.validations), "png", dpi=200))
    except OSError as error:
        place = printable(str(run.root))
        return f"{text}\n\npicture not saved, {place}: {error.strerror}; -o FILE.html writes a report elsewhere"
    return f"{text}\n\npicture {printable(str(run.summary_figure))}"


def _launch_check(run: RunPaths) -> str:
    """What a launch check measured, or why that is not known."""
    if not run.launch_check.exists():
        return "launch check: nothing measured, the ranks did not meet; see status and logs"
    try:
        return printable(summary_text(read_record(run.launch_check, LaunchCheck)))
    except RecordError as error:
        return str(error)


def render_text(frames: Frames) -> str:
    """Several runs as one aligned table, then scaling where it can be told, then what was left out and why."""
    parts = []
    if len(frames.runs):
        runs = distinct_runs(frames.runs)
        parts += [runs_table(runs), predictions_table(runs)]
        scalings = [scaling_efficiency(runs, kind) for kind in KIND_KEYS]
        parts += _scaling_parts(scalings)
        if scalings[0].contradictions:
            texts = (wrapped(text, "  ") for text in scalings[0].contradictions)
            parts.append("\n".join(["Contradictions between printed TFLOP/s and tokens/s:", *texts]))
        if scalings[0].left_out:
            reasons = (wrapped(text, "  ") for text in scalings[0].left_out)
            parts.append("\n".join(["Not for comparison (marked !):", *reasons]))
    parts += frames.problems
    return printable("\n\n".join(part for part in parts if part))


def _scaling_parts(scalings: Sequence[Scaling]) -> list[str]:
    """A table for each kind of scaling that the runs show, or why they show none."""
    tables = [table for scaling in scalings if (table := render_scaling(scaling))]
    if tables:
        return tables
    lines = [wrapped(f"{scaling.kind}: {message}", "  ") for scaling in scalings for message in scaling.short_messages]
    if any(scaling.short_messages != scaling.messages for scaling in scalings):
        lines.append("  each run by name: -o report.html")
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
    title = wrapped(f"{scaling.kind.capitalize()} scaling from tokens/s, equal in all: {scaling.common}")
    return "\n".join([title, aligned([header, *rows]), *map(wrapped, scaling.short_messages)])


def _state(summary: RunSummary) -> str:
    is_log = summary.source != OWN_SOURCE
    # A log seldom tells how many steps were planned.
    planned = "" if is_log and not summary.num_steps else f" of {summary.num_steps or 'unknown'}"
    steps = f"{summary.num_recorded_steps}{planned} steps recorded"
    place = "" if is_log else " in steps.jsonl"
    damaged = f", {summary.damaged_lines} damaged line(s){place}" if summary.damaged_lines else ""
    return f"{summary.state}, {steps}{damaged}"


def _step_time(summary: RunSummary) -> str:
    if summary.step_time_s is None:
        return "not measured: no steady step"
    interval = "too few steady steps for a 95 % interval"
    if summary.step_time_low_s is not None:
        interval = f"95 % interval {summary.step_time_low_s:.4g} to {summary.step_time_high_s:.4g} s"
    return f"{summary.step_time_s:.4g} s ({interval}; {summary.num_steady_steps} steady step(s))"


def _validation(summary: RunSummary) -> list[tuple[str, str]]:
    loss = summary.validation_loss
    return [] if loss is None else [("validation loss", f"{loss:.4f} nats per token, on held-out data")]


def _parts(summary: RunSummary) -> list[tuple[str, str]]:
    """Where the median step goes; what is left of it is the loop, the sum of the losses, or on a GPU idle."""
    times = {
        "forward": summary.forward_time_s,
        "backward": summary.backward_time_s,
        "optimizer": summary.optimizer_time_s,
        "waiting for data": summary.data_time_s,
    }
    if summary.step_time_s is None or None in times.values():
        return []
    texts = [f"{name} {_share(time_s / summary.step_time_s)}" for name, time_s in times.items() if time_s is not None]
    return [("parts of a step", ", ".join(texts))]


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 else "0 %"


def _wall_clock(summary: RunSummary) -> str:
    if summary.wall_tokens_per_s is None or summary.lost_time_share is None:
        return "not measured"
    lost = f"{summary.lost_time_share:.1%} of the time was not spent in steps of the curve"
    return f"{summary.wall_tokens_per_s:,.0f} tokens/s over all attempts; {lost}"


def _throughput(summary: RunSummary, word: str) -> str:
    if summary.tokens_per_s is None:
        return "not measured"
    text = f"{summary.tokens_per_s:,.0f} tokens/s"
    return text if summary.tokens_per_s_per_gpu is None else f"{text}, {summary.tokens_per_s_per_gpu:,.0f} per {word}"


def _not_measured(summary: RunSummary) -> str:
    was_rejected = summary.step_time_s is not None or summary.num_rejected_steps
    return "none, see «not for comparison»" if was_rejected else "not measured"


def _utilisation(summary: RunSummary) -> str:
    if summary.peak_tflops_per_gpu is None:
        return f"none: hardware={summary.hardware} states no peak for {summary.precision}"
    if summary.mfu is None or summary.hfu is None:
        return _not_measured(summary)
    return f"{summary.mfu:.1%}, {summary.hfu:.1%} of {summary.peak_tflops_per_gpu:g} TFLOP/s"


def _memory(summary: RunSummary) -> str:
    predicted = predicted_memory_text(summary)
    if summary.peak_memory_bytes is None:
        return "; ".join(filter(None, ("not measured", predicted)))
    measure = "resident size of rank 0's process" if summary.device == "cpu" else "rank 0's GPU allocator"
    return "; ".join(filter(None, (f"{gib(summary.peak_memory_bytes)} ({measure})", predicted)))
