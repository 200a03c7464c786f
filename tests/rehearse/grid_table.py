"""The planner's memory beside the stored grid of rehearsals: errors by case, and the table of analysis/REHEARSAL_GRID.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.config.compose import compose_points
from hpctrain.plan.memory.terms import MEMORY_PHASES
from hpctrain.plan.run_plan import build_run_plan, with_memory_of
from hpctrain.units import GIB
from tests.rehearse.memory_grid import grid_cases, read_grid

MEDIAN_BAR, WORST_BAR = 0.05, 0.10
"""Of the peak of the GPU and of that of the host, over all cases."""
NOTHING_BYTES = 2**20
"""Below it a tier holds a few numbers only, which the planner leaves out."""


@dataclass(frozen=True)
class GridRow:
    """One case: bytes at the height of each phase, rehearsed and planned."""

    case: str
    gpu: dict[str, tuple[int, int]]
    host: dict[str, tuple[int, int]]
    pinned_rounded: tuple[int, int]

    def error(self, tier: str) -> float | None:
        """Of the tier's height over all phases, as a fraction; None: the tier holds nothing."""
        phases = self.gpu if tier == "gpu" else self.host
        rehearsed, planned = (max(pair[side] for pair in phases.values()) for side in (0, 1))
        if max(rehearsed, planned) < NOTHING_BYTES:
            return None
        return planned / rehearsed - 1


def grid_rows(word: str = "") -> Iterator[GridRow]:
    """Every stored case whose name has the word, planned anew for rank 0, which was rehearsed."""
    stored = read_grid()
    for case in grid_cases():
        if word not in case.name:
            continue
        row = stored[case.name]
        (point,) = compose_points(list(case.words), multirun=False)
        plan = with_memory_of(0, build_run_plan(point.config, point.assumptions), point.config)
        peaks = {peak.phase: peak for peak in plan.memory.phases}
        yield GridRow(
            case=case.name,
            gpu={phase: (int(row[f"gpu_{phase}_bytes"]), peaks[phase].gpu_bytes) for phase in MEMORY_PHASES},
            host={phase: (int(row[f"host_{phase}_bytes"]), peaks[phase].host_bytes) for phase in MEMORY_PHASES},
            pinned_rounded=(
                int(row["pinned_rounded_bytes"]),
                sum(term.pinned_rounded_bytes for term in plan.memory.terms),
            ),
        )


def errors(rows: list[GridRow], tier: str) -> dict[str, float]:
    """By case, of those in which the tier holds anything."""
    return {row.case: error for row in rows if (error := row.error(tier)) is not None}


def median_and_worst(found: dict[str, float]) -> tuple[float, float]:
    """Of the distances; fractions."""
    distances = [abs(error) for error in found.values()]
    return statistics.median(distances), max(distances)


def document(rows: list[GridRow]) -> str:
    """The table in Markdown, with what it was made with."""
    stored = read_grid().values()
    versions = sorted({f"torch {row['torch']}, DeepSpeed {row['deepspeed']}" for row in stored})
    dates = sorted({row["rehearsed_on"] for row in stored})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    lines = [
        "# The planner's memory against rehearsals",
        "",
        f"{len(rows)} plans, rank 0 of each rehearsed with {'; '.join(versions)}, {when}. Bytes that torch's storages hold;"
        " CUDA's context, NCCL and fragmentation stand outside of both. Models are cut to a few layers of their full width, but"
        " those called deep, which have all their layers and are extended from a few depths.",
        "",
        "Written by `python -m tests.rehearse.memory_grid --table`; `tests/rehearse/test_memory_grid.py` holds it to its bars.",
        "",
    ]
    for tier in ("gpu", "host"):
        median, worst = median_and_worst(found := errors(rows, tier))
        name = max(found, key=lambda case: abs(found[case]))
        lines.append(
            f"- {tier.upper() if tier == 'gpu' else 'Host'}: {len(found)} plans, median {median:.2%} off (bar {MEDIAN_BAR:.0%}),"
            f" worst {worst:.2%} (bar {WORST_BAR:.0%}): {name}"
        )
    header = ["plan", "GPU rehearsed, GiB", "planned", "error", "fullest in", "host rehearsed, GiB", "planned", "error"]
    lines += ["", f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: GridRow) -> list[str]:
    fullest = max(row.gpu, key=lambda phase: row.gpu[phase][0])
    return [row.case, *_numbers(row, "gpu"), fullest, *_numbers(row, "host")]


def _numbers(row: GridRow, tier: str) -> list[str]:
    error = row.error(tier)
    if error is None:
        return ["-", "-", "-"]
    phases = row.gpu if tier == "gpu" else row.host
    rehearsed, planned = (max(pair[side] for pair in phases.values()) for side in (0, 1))
    return [f"{rehearsed / GIB:.2f}", f"{planned / GIB:.2f}", f"{error:+.2%}"]


def write_document(path: Path) -> str:
    """Writes the table and returns it."""
    text = document(list(grid_rows()))
    path.write_text(text, encoding="utf-8")
    return text
