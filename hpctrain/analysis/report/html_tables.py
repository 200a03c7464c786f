"""The tables of the report's page as plain data: cells with their text and the number that they sort by."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hpctrain.analysis.comparison import Comparison
from hpctrain.analysis.name_lists import joined_names
from hpctrain.analysis.report.comparison_text import change_cells
from hpctrain.analysis.report.environment import Environment, EnvironmentKey
from hpctrain.analysis.report.run_columns import RUN_COLUMNS, RunColumn, all_columns, cell_number, cell_text
from hpctrain.analysis.run_row import OWN_SOURCE
from hpctrain.analysis.scaling import Scaling
from hpctrain.text_table import MISSING

MAX_NAMES = 6


@dataclass(frozen=True)
class Header:
    """A column's head."""

    text: str
    is_number: bool = False
    meaning: str = ""
    is_extra: bool = False
    """Hidden until all columns are asked for."""
    screen_only: bool = False
    """Not printed."""


@dataclass(frozen=True)
class Cell:
    """``number`` is what the column sorts by; None in a column of numbers: missing, always last."""

    text: str
    number: float | None = None
    anchor: str = ""
    """Name of the part of the page that the text links to."""
    share: float | None = None
    """0 to 1, drawn as a bar beside the text."""
    tone: str = ""
    """``good``, ``bad`` or ``quiet``."""


@dataclass(frozen=True)
class Row:
    """``valid`` is None where validity has no meaning."""

    cells: tuple[Cell, ...]
    valid: bool | None = None


@dataclass(frozen=True)
class Table:
    """``name`` is its anchor; ``caption`` what it shows."""

    name: str
    caption: str
    headers: tuple[Header, ...]
    rows: tuple[Row, ...]

    @property
    def has_extra(self) -> bool:
        return any(header.is_extra for header in self.headers)

    @property
    def has_validity(self) -> bool:
        return len({row.valid for row in self.rows}) > 1


def runs_table(runs: pd.DataFrame, pictures: Mapping[str, str]) -> Table:
    """Every run with every column.

    Args:
        runs: frame ``runs``.
        pictures: anchor of the picture by folder, for the runs that have one.
    """
    columns = [column for column in all_columns(runs) if column.key != "reason"]
    columns.append(next(column for column in RUN_COLUMNS if column.key == "reason"))
    unsaid = {column.key for column in columns if not runs[column.key].notna().any()}
    if (runs["source"] == OWN_SOURCE).all():
        unsaid.add("source")
    headers = tuple(_header(column, column.extra or column.key in unsaid) for column in columns)
    rows = []
    for folder, valid, values in _records(runs, columns):
        cells = [cell(value, column) for value, column in zip(values, columns, strict=True)]
        cells[0] = Cell(cells[0].text, anchor=pictures.get(folder, ""))
        state = next((place for place, column in enumerate(columns) if column.key == "state"), None)
        if state is not None:
            tone = "good" if cells[state].text == "completed" else ""
            cells[state] = Cell(cells[state].text, tone=tone if valid else "bad")
        rows.append(Row(tuple(cells), valid))
    return Table("runs-table", f"{len(runs)} run(s), one a row", headers, tuple(rows))


def _records(runs: pd.DataFrame, columns: Sequence[RunColumn]) -> Iterable[tuple[str, bool, list[Any]]]:
    values = [runs[column.key].tolist() for column in columns]
    for folder, valid, *row in zip(runs["folder"].tolist(), runs["valid"].tolist(), *values, strict=True):
        yield str(folder), valid is True, row


def cell(value: Any, column: RunColumn) -> Cell:
    text = cell_text(value, column)
    return Cell(text, cell_number(value, column), tone="quiet" if text == MISSING else "")


def _header(column: RunColumn, is_extra: bool) -> Header:
    return Header(column.header, column.kind not in ("text", "flag"), column.meaning, is_extra, column.screen_only)


def scaling_table(scaling: Scaling) -> Table:
    """Points of one kind; those without an efficiency too."""
    headers = (
        Header("Group"),
        *(Header(text, True) for text in ("GPUs", "Nodes", "Runs", "Tokens/s", "Tokens/s/GPU", "Base (GPUs)")),
        Header("Efficiency (%)", True, "tokens/s a GPU over that of the base"),
    )
    columns = "gpus nodes num_runs tokens_per_s tokens_per_s_per_gpu base_gpus".split()
    count, share = RunColumn("", "", "count"), RunColumn("", "", "share")
    rows = [
        Row(
            (
                Cell(str(point["group"])),
                *(cell(point[column], count) for column in columns),
                _bar(point["efficiency"], share),
            )
        )
        for point in scaling.points.to_dict("records")
    ]
    return Table(
        f"{scaling.kind}-scaling",
        f"{scaling.kind.capitalize()} scaling; equal in all: {scaling.common}",
        headers,
        tuple(rows),
    )


def _bar(value: Any, column: RunColumn) -> Cell:
    plain = cell(value, column)
    return plain if plain.number is None else Cell(plain.text, plain.number, share=min(1.0, plain.number / 100))


def prediction_table(runs: pd.DataFrame, host_peaks: Mapping[str, int]) -> Table:
    """Runs for which the plan predicted what was measured: step time and memory, error = predicted / measured - 1.

    Args:
        runs: frame ``runs``.
        host_peaks: bytes that the ranks of the fullest node held together, by folder, where telemetry tells it.
    """
    seconds, size, flag = RunColumn("", "", "number"), RunColumn("", "", "bytes"), RunColumn("", "", "flag")
    rows = []
    for run in predicted_runs(runs).to_dict("records"):
        low, high = run["predicted_step_time_low_s"], run["predicted_step_time_high_s"]
        is_inside = cell(run["in_predicted_range"], flag)
        rows.append(
            Row(
                (
                    Cell(str(run["run"])),
                    cell(run["predicted_step_time_s"], seconds),
                    Cell(MISSING if pd.isna(low) or pd.isna(high) else f"{low:.4g} to {high:.4g}"),
                    cell(run["step_time_s"], seconds),
                    cell(_ratio(run["step_time_s"], run["predicted_step_time_s"]), seconds),
                    _error(run["prediction_error"]),
                    Cell(is_inside.text, tone={"yes": "good", "no": "bad"}.get(is_inside.text, "quiet")),
                    cell(run["predicted_memory_bytes"], size),
                    cell(run["peak_memory_bytes"], size),
                    _error(run["memory_error"]),
                    cell(run["predicted_host_bytes"], size),
                    cell(host_peaks.get(str(run["folder"])), size),
                    cell(run["calibration"], RunColumn("", "")),
                ),
                run["valid"] is True,
            )
        )
    headers = (
        Header("Run"),
        Header("Step time, plan (s)", True),
        Header("its range (s)"),
        *(Header(text, True) for text in ("measured (s)", "measured / plan", "error (%)")),
        Header("in the range"),
        Header("Memory, plan (GiB)", True, "of one rank: its GPU allocator, on the CPU its resident size"),
        *(Header(text, True) for text in ("measured (GiB, rank 0)", "error (%)")),
        Header("Host memory, plan (GiB)", True, "of all ranks of a node"),
        Header("measured (GiB, a node's ranks)", True, "resident sizes together: pages that ranks share count in each"),
        Header("Calibration of the plan", meaning="factors in its step time, and the runs they are from"),
    )
    return Table("plan-table", "error = predicted / measured - 1", headers, tuple(rows))


def predicted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with a predicted and a measured value of step time or memory."""
    return runs[runs["prediction_error"].notna() | runs["memory_error"].notna()]


def _ratio(measured: Any, predicted: Any) -> float | None:
    return None if pd.isna(measured) or pd.isna(predicted) else float(measured) / float(predicted)


def _error(value: Any) -> Cell:
    if value is pd.NA or value is None or value != value:
        return Cell(MISSING, tone="quiet")
    return Cell(f"{100 * value:+.1f}", 100 * float(value))


def attempts_table(attempts: pd.DataFrame) -> Table:
    """Every start of every run, and how it ended."""
    texts = ("run", "attempt", "job_id", "state", "end_reason", "exit_code", "failed_rank", "failed_node")
    count = RunColumn("", "", "count")
    rows = []
    for attempt in attempts.to_dict("records"):
        rows.append(
            Row(
                (
                    *(cell(attempt[key], RunColumn("", "") if key in _TEXTS else count) for key in texts),
                    cell(attempt["setup_time_s"], RunColumn("", "", "number")),
                    cell(_duration_s(attempt["started_at_s"], attempt["ended_at_s"]), RunColumn("", "", "number")),
                    Cell(_moment(attempt["started_at_s"]), _finite(attempt["started_at_s"])),
                    cell(attempt["message"] or MISSING, RunColumn("", "")),
                ),
                attempt["state"] == "completed",
            )
        )
    words = ("Run", "Attempt", "Job", "State", "End reason", "Exit code", "Failed rank", "Failed node")
    headers = (
        *(Header(word, key not in _TEXTS) for word, key in zip(words, texts, strict=True)),
        Header("Set-up (s)", True, "from the rank's start to the first step"),
        Header("Duration (s)", True),
        Header("Started (UTC)", True),
        Header("Message"),
    )
    return Table("attempts-table", f"{len(attempts)} attempt(s)", headers, tuple(rows))


_TEXTS = {"run", "job_id", "state", "end_reason", "failed_node"}


def _finite(value: Any) -> float | None:
    return cell_number(value, RunColumn("", "", "number"))


def _duration_s(started_at_s: Any, ended_at_s: Any) -> float | None:
    """None while the attempt runs, and where a time is not known."""
    start, end = _finite(started_at_s), _finite(ended_at_s)
    return None if start is None or end is None else end - start


def _moment(seconds: Any) -> str:
    """Date and time; a record of an attempt holds none that the calendar lacks, see ``read_each_attempt``."""
    if _finite(seconds) is None:
        return MISSING
    return datetime.datetime.fromtimestamp(float(seconds), datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def environment_table(keys: Sequence[EnvironmentKey], num_runs: int, differing: bool) -> Table:
    """Keys that are equal in all runs, or a row for each value of those that differ."""
    headers = [Header("Key"), Header("Value")]
    if differing:
        headers += [Header("Runs", True), Header("Which")]
    rows = [
        Row(
            (
                Cell(key.key),
                Cell(value),
                *((Cell(str(len(runs)), len(runs)), Cell(joined_names(runs, MAX_NAMES))) if differing else ()),
            )
        )
        for key in keys
        if key.differs == differing
        for value, runs in key.groups
    ]
    name, caption = ("differences", "differs") if differing else ("equal", "is equal")
    return Table(f"environment-{name}", f"What {caption} in {num_runs} run(s)", tuple(headers), tuple(rows))


def comparison_table(comparison: Comparison) -> Table:
    """A row a configuration and metric."""
    headers = ("Configuration", "Metric", "Base", "Now", "Change", "95 % interval", "Verdict", "Noise")
    tones = {"worse": "bad", "better": "good", "unclear": "quiet", "not judged": "quiet", "equal": ""}
    rows = []
    for pair in comparison.pairs:
        for change in pair.changes:
            metric, base, new, ratio, interval, verdict = change_cells(change)
            numbers = (change.base, change.new, None if change.ratio is None else change.ratio - 1)
            texts = (Cell(pair.configuration), Cell(metric))
            values = (Cell(text, number) for text, number in zip((base, new, ratio), numbers, strict=True))
            verdict_cell = Cell(verdict, tone=tones[change.judgement])
            rows.append(Row((*texts, *values, Cell(interval), verdict_cell, Cell(change.noise))))
    numeric = {"Base", "Now", "Change"}
    return Table(
        "comparison-table",
        "95 % interval of Now / Base: of the medians of one run a side, of the geometric means of three runs or more",
        tuple(Header(text, text in numeric) for text in headers),
        tuple(rows),
    )


def problems_of(frames_problems: Sequence[str], runs: pd.DataFrame, environments: Sequence[Environment]) -> list[str]:
    """Places without runs, unreadable runs, damaged lines, and environments that could not be read."""
    problems = list(frames_problems)
    for run in runs.to_dict("records"):
        if run["state"] == "unreadable":
            problems.append(f"{run['folder']}: {run['reason']}")
        elif _finite(run["damaged_lines"]):
            problems.append(f"{run['folder']}: {run['damaged_lines']} damaged line(s), left out")
    return problems + [environment.problem for environment in environments if environment.problem]
