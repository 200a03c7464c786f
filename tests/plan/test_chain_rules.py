"""Chains at plan time."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.rules.chain import chain_problems, chain_warnings, num_links
from hpctrain.plan.run_plan import build_run_plan


def config_of(*words: str) -> Config:
    (point,) = compose_points(["model=tiny", *words], multirun=False)
    return point.config


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cluster=local",), ("launch.chain=requeue", "Slurm's jobs", "cluster=local")),
        (("launch.mode=here",), ("launch.chain=requeue", "launch.mode=here")),
        (("training=launch_check",), ("training.payload=launch_check", "nothing to go on from")),
        (
            ("training.checkpoint_interval=null", "training.checkpoint_at_stop=false"),
            ("training.checkpoint_interval=null", "nothing to go on from"),
        ),
        (("launch.max_attempts=1",), ("launch.max_attempts=1", "nearest: 2")),
        (("cluster.requeue=false",), ("cluster.requeue=false", "launch.chain=requeue")),
    ],
)
def test_chains_that_cannot_be(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    plan = build_run_plan(config_of("launch.chain=requeue", *words))
    told = "\n".join(map(str, plan.problems))
    assert all(text in told for text in expected), told


@pytest.mark.parametrize("words", [(), ("training.checkpoint_interval=10", "training.checkpoint_at_stop=false")])
@pytest.mark.parametrize("chain", ["requeue", "dependency"])
def test_chains_that_can_be(chain: str, words: tuple[str, ...]) -> None:
    assert chain_problems(config_of(f"launch.chain={chain}", *words)) == ()
    assert chain_problems(config_of(*words, "cluster=local")) == ()


def test_what_a_chain_may_lose_is_told() -> None:
    (told,) = chain_warnings(config_of("launch.chain=dependency", "training.checkpoint_interval=null"))
    assert "the only checkpoint is the one at Slurm's warning, 2 min before the limit" in told
    assert chain_warnings(config_of("launch.chain=dependency", "training.checkpoint_interval=10")) == ()
    told = "\n".join(
        chain_warnings(config_of("launch.chain=requeue", "cluster.requeue=null", "training.checkpoint_interval=10"))
    )
    assert "the site's JobRequeue" in told


@pytest.mark.parametrize(
    ("step_time_s", "words", "done", "links"),
    [
        # 1,000 steps of 30 s in jobs of an hour less two minutes are 8.6 jobs.
        (30.0, ("cluster.time=1:00:00",), 0, 9),
        (30.0, ("cluster.time=1:00:00",), 900, 1),
        (30.0, ("cluster.time=1:00:00", "launch.max_attempts=4"), 0, 3),
        (0.01, ("cluster.time=1:00:00",), 0, 1),
        (None, ("cluster.time=1:00:00",), 0, 9),
        (30.0, (), 0, 9),
        (30.0, ("cluster.time=UNLIMITED",), 0, 9),
    ],
)
def test_the_number_of_links(step_time_s: float | None, words: tuple[str, ...], done: int, links: int) -> None:
    config = config_of("training.num_steps=1000", "launch.chain=dependency", *words)
    assert num_links(config, step_time_s, done) == links


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("launch.chain=requeue",), "requeues itself at its time limit while there is progress, up to 10 starts"),
        (("launch.chain=dependency", "launch.max_attempts=4"), "3 more jobs of this script are submitted"),
        (("launch.chain=dependency", "launch.max_attempts=2"), "1 more job of this script is submitted"),
        (
            ("launch.chain=dependency", "cluster.time=1:00:00", "training.num_steps=100000000"),
            "as predicted, in jobs of 58 min; launch.max_attempts=10",
        ),
    ],
)
def test_the_plan_tells_how_many_jobs_a_chain_takes(words: tuple[str, ...], expected: str) -> None:
    assert expected in "\n".join(build_run_plan(config_of(*words)).assumptions)


def test_a_time_that_is_none_is_told_once_and_breaks_nothing() -> None:
    plan = build_run_plan(config_of("launch.chain=dependency", "cluster.time=soon"))
    assert [problem.key for problem in plan.problems] == ["cluster.time"]
