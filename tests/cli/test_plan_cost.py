"""What ``plan`` prints with cost options and for a sweep."""

from __future__ import annotations

import json

import pytest

from hpctrain.cli_plan_cost import plan_json, plan_text
from hpctrain.config.compose import compose_points
from hpctrain.plan.cost_options import CostOptions
from hpctrain.plan.render import render_plan
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.sweep_table import PlannedPoint

NOTHING, TOKENS = CostOptions(), CostOptions(tokens=1e9)


@pytest.fixture(scope="module")
def points() -> list[PlannedPoint]:
    composed = compose_points(["model=530b", "training.micro_batch_size=4", "nodes=64,128"], multirun=True)
    return [PlannedPoint(point.overrides, point.config, build_run_plan(point.config)) for point in composed]


def test_without_a_question_it_is_the_plan_alone(points: list[PlannedPoint]) -> None:
    plan = points[0].plan
    assert plan_text(points[:1], NOTHING, False, False, "python") == render_plan(plan, "python")
    assert plan_json(points[:1], NOTHING, False, False) == plan.to_json()


def test_the_cost_stands_below_the_plan_and_inside_its_json(points: list[PlannedPoint]) -> None:
    text = plan_text(points[:1], TOKENS, False, False, "python")
    assert text.startswith(render_plan(points[0].plan, "python") + "\ncost of 1.002 B tokens in ")
    answer = json.loads(plan_json(points[:1], TOKENS, False, False))
    assert answer["cost"]["tokens"] >= 1e9
    assert answer["cost"]["gpu_hours"]["low"] < answer["cost"]["gpu_hours"]["high"]
    assert answer["cost_gap"] == ""
    assert answer["name"] == points[0].plan.name


def test_a_cost_that_cannot_be_told_is_null_with_its_reason() -> None:
    (composed,) = compose_points(["model=tiny", "cluster=local"], multirun=False)
    point = PlannedPoint(composed.overrides, composed.config, build_run_plan(composed.config))
    answer = json.loads(plan_json([point], TOKENS, False, False))
    assert answer["cost"] is None
    assert answer["cost_gap"].startswith("no predicted step time, hardware=cpu")
    assert "cost: none, no predicted step time" in plan_text([point], TOKENS, False, False, "python")


@pytest.mark.parametrize("number", [1, 2])
def test_a_sweep_is_a_table_even_of_one_point(points: list[PlannedPoint], number: int) -> None:
    assert plan_text(points[:number], NOTHING, True, False, "python").startswith(
        f"sweep of {number} point{'s' * (number > 1)}: model=530b"
    )
    answer = json.loads(plan_json(points[:number], TOKENS, True, False))
    assert [plan["layout"]["num_nodes"] for plan in answer] == [64, 128][:number]
    assert [plan["sweep_row"]["base_nodes"] for plan in answer] == [[None], [64, 64]][number - 1]
    assert all(plan["sweep_row"]["cost"]["money"] is None for plan in answer)
