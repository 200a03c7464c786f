"""analysis/PARALLELISM.md: every group is in it and within its bars, and what is stored is what the engine does today."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import group_choices
from hpctrain.config.open_keys import AUTO
from hpctrain.plan.run_plan import build_run_plan
from tests.parallelism.group_cases import CASES
from tests.parallelism.group_table import beyond_the_bars, document
from tests.parallelism.measure_groups import DOCUMENT, measure, planned_bytes, read_rows

AGAIN = "python -m tests.parallelism.measure_groups"
MEASURED_AGAIN = ("zero3_offload", "zero1, pipeline")
PEAK_TOLERANCE = 0.01
"""At times a thread of gloo frees a gathered parameter late."""


def test_every_group_is_in_the_table() -> None:
    assert {case.group for case in CASES.values() if not case.form} == set(group_choices("parallelism")) - {AUTO}
    assert list(read_rows()) == list(CASES), AGAIN
    for name, case in CASES.items():
        assert read_rows()[name]["overrides"] == " ".join(case.words(case.is_gpu_only)), f"{AGAIN} --again '{name}'"


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_within_its_bars(name: str) -> None:
    assert beyond_the_bars(read_rows()[name]) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_difference": "1.01e-05"}, ["loss 1.01e-05"]),
        ({"loss_difference": "nan"}, ["loss nan"]),
        ({"norm_difference": "2e-5"}, ["norm 2e-5"]),
        ({"gradient_difference": "1e-4"}, ["gradient 1e-4"]),
        ({"planned_bytes": "1060", "measured_bytes": "1000"}, ["memory +6.0%"]),
        ({"flops": "1"}, ["flops"]),
        ({"parameters": "1"}, ["parameters"]),
        ({"steps": "19"}, ["19 steps"]),
    ],
    ids=str,
)
def test_a_row_that_is_off_would_be_seen(changes: dict[str, str], words: list[str]) -> None:
    row = read_rows()["zero2"]
    assert row["precision"] == "fp32"
    assert beyond_the_bars(row | changes) == words


def test_the_plan_of_today_is_the_stored_one() -> None:
    """Without ranks: what was planned when the row was measured is what is planned now."""
    for name, case in CASES.items():
        if case.is_gpu_only:
            continue
        row, config = read_rows()[name], case.config(DOCUMENT.parent)
        plan = build_run_plan(config)
        planned = {
            "planned_parameters": plan.num_parameters,
            "planned_flops": int(plan.flops_per_step.hardware_flops),
            "planned_bytes": planned_bytes(int(row["rank"]), plan, config),
        }
        assert {key: int(row[key]) for key in planned} == planned, f"{AGAIN} --again '{name}'"


def test_the_document_is_that_of_the_stored_rows() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(read_rows()), AGAIN


@pytest.mark.train
@pytest.mark.parametrize("name", MEASURED_AGAIN)
def test_the_engine_says_today_what_is_stored(name: str) -> None:
    stored, today = read_rows()[name], measure(CASES[name])
    assert beyond_the_bars(today) == []
    for key in ("parameters", "flops", "planned_bytes"):
        assert today[key] == stored[key]
    assert int(today["measured_bytes"]) == pytest.approx(int(stored["measured_bytes"]), rel=PEAK_TOLERANCE)
