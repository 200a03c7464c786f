"""The README's tables of how true the planner is are what is computed."""

from __future__ import annotations

import pytest

from hpctrain.analysis.published import load_published
from tests.bench.validation_section import BEGIN, END, README, validation_section, written_readme


@pytest.fixture(scope="module")
def section() -> str:
    return validation_section(load_published())


def test_the_readme_holds_what_is_computed(section: str) -> None:
    """After a change: python -m tests.bench.plan_validation --readme."""
    text = README.read_text(encoding="utf-8")
    assert written_readme(text, section) == text


def test_worst_rows_are_named_and_what_is_not_judged_is_told(section: str) -> None:
    lines = section.splitlines()
    (judged,) = [line for line in lines if line.startswith("| **all that state parallelism")]
    assert "GPUs" in judged
    assert "%" in judged
    assert any("*source warns of noise*" in line for line in lines)
    assert any("*recomputation not stated*" in line for line in lines)
    assert {line.count("|") for line in lines if line.startswith("|")} == {5, 9}


def test_only_what_stands_between_the_marks_is_written() -> None:
    assert written_readme(f"a\n{BEGIN}\nold\n{END}\nz\n", "new\n") == f"a\n{BEGIN}\nnew\n{END}\nz\n"
