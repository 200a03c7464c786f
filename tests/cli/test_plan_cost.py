"""What ``plan`` prints with cost options and for a sweep."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hpctrain.cli_plan_cost import plan_json, plan_text, take_cost_words
from hpctrain.config.compose import Point, compose_points
from hpctrain.errors import ConfigError
from hpctrain.plan.cost.options import CostOptions
from hpctrain.plan.render.plan import render_plan
from hpctrain.plan.run_plan import RunPlan, build_run_plan

TOKENS = CostOptions(tokens=1e9)


@pytest.fixture(scope="module")
def planned() -> list[tuple[Point, RunPlan]]:
    words = ["model=530b", "parallelism=zero3", "training.micro_batch_size=4", "nodes=64,128"]
    points = compose_points(words, multirun=True)
    return [(point, build_run_plan(point.config)) for point in points]


def test_cost_words_are_taken_out() -> None:
    words = ["model=530b", "--json", "--tokens", "1B"]
    assert take_cost_words(words) == (TOKENS, ("model=530b", "--json"))
    assert take_cost_words(words[:2]) == (None, ("model=530b", "--json"))
    assert take_cost_words(words[:1]) == (None, ["model=530b"])
    with pytest.raises(ConfigError, match="--tokens=0: must be above zero"):
        take_cost_words(["--tokens", "0"])


def test_without_a_question_it_is_the_plan_alone(planned: list[tuple[Point, RunPlan]]) -> None:
    plan = planned[0][1]
    assert plan_text(planned[:1], None, False, False, "python") == render_plan(plan, "python")
    assert plan_json(planned[:1], None, False, False) == plan.to_json()


def test_a_plain_plan_does_not_load_the_rooms_of_cost() -> None:
    code = (
        "import sys; from hpctrain import cli_plan_cost as cli; cli.take_cost_words(['model=tiny']);"
        "print([name for name in sys.modules if 'cost_options' in name or 'sweep_table' in name or 'goodput' in name])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_the_cost_stands_below_the_plan_and_inside_its_json(planned: list[tuple[Point, RunPlan]]) -> None:
    text = plan_text(planned[:1], TOKENS, False, False, "python")
    assert text.startswith(render_plan(planned[0][1], "python") + "\ncost of 1.002 B tokens in ")
    answer = json.loads(plan_json(planned[:1], TOKENS, False, False))
    assert answer["cost"]["tokens"] >= 1e9
    assert answer["cost"]["gpu_hours"]["low"] < answer["cost"]["gpu_hours"]["high"]
    assert answer["cost_gap"] == ""
    assert answer["name"] == planned[0][1].name


def test_a_cost_that_cannot_be_told_is_null_with_its_reason() -> None:
    (point,) = compose_points(["model=tiny", "parallelism=zero3", "cluster=local"], multirun=False)
    planned = [(point, build_run_plan(point.config))]
    answer = json.loads(plan_json(planned, TOKENS, False, False))
    assert answer["cost"] is None
    assert answer["cost_gap"].startswith("no predicted step time, hardware=cpu")
    assert "cost: none, no predicted step time" in plan_text(planned, TOKENS, False, False, "python")


@pytest.mark.parametrize("number", [1, 2])
def test_a_sweep_is_a_table_even_of_one_point(planned: list[tuple[Point, RunPlan]], number: int) -> None:
    text = plan_text(planned[:number], None, True, False, "python")
    assert text.startswith(f"sweep of {number} point{'s' * (number > 1)}: model=530b")
    answer = json.loads(plan_json(planned[:number], TOKENS, True, False))
    assert [plan["layout"]["num_nodes"] for plan in answer] == [64, 128][:number]
    assert [plan["sweep_row"]["base_nodes"] for plan in answer] == [[None], [64, 64]][number - 1]
    assert all(plan["sweep_row"]["cost"]["money"] is None for plan in answer)
