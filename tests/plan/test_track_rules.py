"""Rules of trackers and of validation."""

from __future__ import annotations

import secrets

import pytest

from tests.plan.test_run_plan import plan_of

TINY = ("model=tiny", "cluster=local")


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (
            ["training.validation_interval=10"],
            ["training.validation_interval=10: needs held-out data", "data.validation_fraction=0.01"],
        ),
        (
            ["track.mlflow={tracking_uri: 'sqlite:///x.db'}"],
            ["track.mlflow.tracking_uri=sqlite:///x.db", "MLflow's server", "file:///FOLDER"],
        ),
        (["track.mlflow={tracking_uri: mlruns}"], ["track.mlflow.tracking_uri=mlruns", "http://SERVER:PORT"]),
    ],
)
def test_problems_name_key_rule_and_fix(words: list[str], texts: list[str]) -> None:
    (problem,) = plan_of(*TINY, *words).problems
    assert all(text in str(problem) for text in texts), str(problem)


def test_a_launch_check_needs_no_held_out_data() -> None:
    assert plan_of(*TINY, "training=launch_check", "training.validation_interval=10").problems == ()


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    password = secrets.token_hex(8)
    (problem,) = plan_of(*TINY, f"track.mlflow.tracking_uri='http://me:{password}@host:5000'").problems
    assert "env_from_shell=[MLFLOW_TRACKING_USERNAME,MLFLOW_TRACKING_PASSWORD]" in str(problem)
    assert password not in str(problem)


@pytest.mark.parametrize("uri", ["http://h:5000", "https://h/x", "databricks", "databricks://profile", "file:///a/b c"])
def test_addresses_that_are_taken(uri: str) -> None:
    plan = plan_of(*TINY, f"track.mlflow={{tracking_uri: '{uri}'}}", "track.tensorboard=true")
    assert (plan.problems, plan.trackers) == ((), ("tensorboard", "mlflow"))


def test_a_key_that_the_ranks_may_lack_is_warned_of() -> None:
    told = "without env_from_shell=[WANDB_API_KEY]"
    assert told in " ".join(plan_of(*TINY, "track.wandb={project: p}").warnings)
    for words in (
        ["track.wandb={project: p, mode: offline}"],
        ["track.wandb={project: p}", "env_from_shell=[WANDB_API_KEY]"],
    ):
        assert told not in " ".join(plan_of(*TINY, *words).warnings)


def test_a_validation_that_takes_a_good_part_of_the_time_is_warned_of() -> None:
    held_out = "data.validation_fraction=0.1"
    often = plan_of(*TINY, held_out, "training.validation_interval=10").warnings
    assert "training.validation_batches=10 every 10 steps add about 33% to the time of the steps" in often
    assert plan_of(*TINY, held_out, "training.validation_interval=100").warnings == ()
