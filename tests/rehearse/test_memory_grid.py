"""The planner's memory within its bars of every stored rehearsal, and the stored ones true to the engine of today."""

from __future__ import annotations

import dataclasses

import pytest

from tests.rehearse.grid_table import (
    MEDIAN_BAR,
    WORST_BAR,
    GridRow,
    document,
    errors,
    grid_rows,
    median_and_worst,
)
from tests.rehearse.memory_grid import COLUMNS, DOCUMENT, grid_cases, read_grid, rehearse_case

REHEARSED_AGAIN = ("tiny gpt, zero3, full, 8 ranks", "tiny llama, zero2 offload, none, 8 ranks")
"""Beginnings of the names of two small cases."""
PHASE_BAR = 0.15
"""Of each phase by itself, the height or not; see test_the_engine_says_today_what_is_stored for what is chance in it."""


@pytest.fixture(scope="module")
def rows() -> list[GridRow]:
    return list(grid_rows())


def test_every_case_is_stored_and_no_other() -> None:
    assert list(read_grid()) == [case.name for case in grid_cases()]
    for case in grid_cases():
        assert read_grid()[case.name]["overrides"] == " ".join(case.words)


def test_the_grid_spans_stages_places_recomputation_and_ranks() -> None:
    words = [" ".join(case.words) for case in grid_cases()]
    assert sum("precision=fp16" in text for text in words) >= 3
    for needed in (
        *("parallelism=ddp", "parallelism=zero1", "parallelism=zero2", "parallelism=zero3"),
        "parallelism=zero3_offload",
    ):
        assert sum(needed in text for text in words) >= 4
    assert {row["world_size"] for row in read_grid().values()} == {"8", "32", "64", "1024"}
    assert sum(case.is_deep for case in grid_cases()) >= 3
    assert sum("offload_activations=true" in text for text in words) >= 4
    assert sum("accumulation_steps=1" not in text for text in words) >= 8


@pytest.mark.parametrize("tier", ["gpu", "host"])
def test_peaks_are_within_the_bars(rows: list[GridRow], tier: str) -> None:
    found = errors(rows, tier)
    assert len(found) >= 16
    median, worst = median_and_worst(found)
    far = {case: f"{error:+.1%}" for case, error in found.items() if abs(error) > WORST_BAR}
    assert not far
    assert median <= MEDIAN_BAR
    assert worst <= WORST_BAR


def test_each_phase_of_each_gpu_is_near(rows: list[GridRow]) -> None:
    far = {
        (row.case, phase): f"{planned / rehearsed - 1:+.1%}"
        for row in rows
        for phase, (rehearsed, planned) in row.gpu.items()
        if abs(planned / rehearsed - 1) > PHASE_BAR
    }
    assert not far


def test_the_optimizers_phase_in_stages_1_and_2(rows: list[GridRow]) -> None:
    """It is seldom the peak, so that the bars above do not see it."""
    of_stages = [row for row in rows if "zero1" in row.case or "zero2" in row.case]
    assert len(of_stages) > 15
    for row in of_stages:
        rehearsed, planned = row.gpu["optimizer"]
        assert planned == pytest.approx(rehearsed, rel=1e-3), row.case


def test_pinned_memory_as_torch_takes_it(rows: list[GridRow]) -> None:
    pinned = [row for row in rows if row.pinned_rounded[0] > 2**20]
    assert len(pinned) >= 10
    for row in pinned:
        rehearsed, planned = row.pinned_rounded
        assert planned == pytest.approx(rehearsed, rel=WORST_BAR), row.case


def test_a_rule_that_is_off_would_be_seen(rows: list[GridRow]) -> None:
    """The same numbers with every planned byte a fifth higher."""
    off = [
        dataclasses.replace(row, gpu={phase: (real, int(1.2 * planned)) for phase, (real, planned) in row.gpu.items()})
        for row in rows
    ]
    median, worst = median_and_worst(errors(off, "gpu"))
    assert median > MEDIAN_BAR
    assert worst > WORST_BAR


def test_the_document_is_that_of_the_stored_grid(rows: list[GridRow]) -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(rows), "python -m tests.rehearse.memory_grid --table"


@pytest.mark.train
@pytest.mark.parametrize("beginning", REHEARSED_AGAIN)
def test_the_engine_says_today_what_is_stored(beginning: str) -> None:
    (case,) = (case for case in grid_cases() if case.name.startswith(beginning))
    stored, today = read_grid()[case.name], rehearse_case(case)
    for name in COLUMNS:
        if not name.endswith("_bytes"):
            continue
        # The engine takes the parameters of a block in the order of a set: whether a buffer that two blocks share goes before
        # or behind the next copy is chance, and shows where nothing else is large.
        margin = WORST_BAR if name == "gpu_forward_bytes" else 1e-3
        assert int(today[name]) == pytest.approx(int(stored[name]), rel=margin, abs=4096), name
