"""The README's tables of how true the planner is: published rows by source and kind, computed, never typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hpctrain.analysis.memory_validation import (
    FALSE_FIT,
    FALSE_REFUSAL,
    UNDECIDED,
    memory_row_name,
    memory_rows,
)
from hpctrain.analysis.validation import VALIDATION, row_name, validation_rows

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- validation: written by tests/bench/plan_validation.py -->", "<!-- end of validation -->"


def written_readme(text: str, section: str) -> str:
    """The README with the section between the markers.

    Args:
        text: of the README.
        section: of ``validation_section``.
    """
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{section}{END}{after}"


def validation_section(published: pd.DataFrame) -> str:
    """Both tables, in Markdown.

    Args:
        published: of ``load_published``.
    """
    return "\n".join([*_speed_lines(published), "", *_memory_lines(published), ""])


def _speed_lines(published: pd.DataFrame) -> Iterator[str]:
    rows = validation_rows(published)
    rows = rows[rows["role"] == VALIDATION]
    yield "| step time of published rows that no constant was fitted on | rows | median | worst |"
    yield "|---|--:|--:|---|"
    judged = rows[rows["stated"] == ""]
    for keys, group in judged.groupby([_short(judged["source"]), "kind"], sort=True):
        yield _speed_line(" · ".join(str(key) for key in keys), group)
    yield _speed_line("**all that state parallelism, batch and recomputation**", judged)
    other = rows[rows["stated"] != ""]
    for keys, group in other.groupby([_short(other["source"]), "stated"], sort=True):
        yield _speed_line(f"{keys[0]}: *{keys[1]}*", group)


def _speed_line(name: str, rows: pd.DataFrame) -> str:
    distance = rows["error"].abs()
    worst = rows.iloc[int(distance.argmax())]
    return f"| {name} | {len(rows)} | {distance.median():.1%} | {row_name(worst)} |"


def _memory_lines(published: pd.DataFrame) -> Iterator[str]:
    rows = memory_rows(published)
    rows = rows[rows["role"] == VALIDATION]
    yield (
        "| peak memory and fits of published rows that no constant was fitted on | peaks | median | within 10 % | worst |"
        " fits told | wrong: said to fit, said not to | left open |"
    )
    yield "|---|--:|--:|--:|---|--:|--:|--:|"
    judged = rows[rows["stated"] == ""]
    for name, group in judged.groupby(_short(judged["source"]), sort=True):
        yield _memory_line(str(name), group)
    yield _memory_line("**all that state shape, batch, degrees and recomputation**", judged)
    for stated, group in rows[rows["stated"] != ""].groupby("stated", sort=True):
        yield _memory_line(f"*{stated}*", group)


def _memory_line(name: str, rows: pd.DataFrame) -> str:
    peaks = rows[rows["memory_error"].notna()]
    errors = ["0", "", "", ""]
    if len(peaks):
        distance = peaks["memory_error"].abs()
        worst = peaks.iloc[int(distance.argmax())]
        errors = [
            str(len(peaks)),
            f"{distance.median():.1%}",
            f"{(distance <= 0.1).mean():.0%}",
            memory_row_name(worst),
        ]
    count = {verdict: int((rows["verdict"] == verdict).sum()) for verdict in (FALSE_FIT, FALSE_REFUSAL, UNDECIDED)}
    told = len(rows) - count[UNDECIDED]
    cells = [name, *errors, str(told), f"{count[FALSE_FIT]}, {count[FALSE_REFUSAL]}", str(count[UNDECIDED])]
    return f"| {' | '.join(cells)} |"


def _short(sources: pd.Series) -> pd.Series:
    """Sources without what stands in brackets and without the number of a version, so that a project is one."""
    return sources.map(lambda source: re.sub(r" \(.*?\)| \d\d\.\d\d$", "", str(source)))
