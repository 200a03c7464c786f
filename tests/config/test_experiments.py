"""The group ``experiment``: studies with the axes of their sweep."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpctrain.config.compose import Point, compose_points, group_choices
from hpctrain.errors import ConfigError
from hpctrain.plan.run_plan import build_run_plan

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published" / "azure-deepspeed.csv"


def published(figure: str) -> set[tuple[str, int, int, int]]:
    """Model, tokens a sequence, GPUs and micro batch of the points of one figure, by its caption."""
    with PUBLISHED.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["tflops_convention"] == "hardware incl. recompute"]
    found = {
        (
            row["model"].removeprefix("GPT ").lower(),
            int(row["seq_len"]),
            int(row["num_gpus"]),
            int(row["micro_batch_per_gpu"]),
        )
        for row in rows
        if row["seq_len"] and row["micro_batch_per_gpu"]
    }
    return {
        point
        for point in found
        if {
            "3a": point[1:] == (1024, 1024, 8),
            "3b": point[0] == "175b" and point[1] == 1024 and point[3] == 16,
            "5a": point[:2] == ("175b", 512),
            "5b": point[:2] == ("175b", 1024),
            "6": point[:2] == ("530b", 1024),
            "7": point[:2] == ("1t", 1024),
        }[figure]
    }


def shapes(points: Iterable[Point]) -> list[tuple[str, int, int, int]]:
    plans = [build_run_plan(point.config) for point in points]
    return [
        (plan.model.name, plan.batch.seq_len, plan.layout.world_size, plan.batch.micro_batch_size) for plan in plans
    ]


@pytest.mark.parametrize("figure", ["3a", "3b", "5a", "5b", "6", "7"])
def test_a_figure_of_the_azure_post_has_the_published_points(figure: str) -> None:
    found = shapes(compose_points([f"experiment=azure_fig{figure}"], multirun=True))
    assert len(found) == len(set(found))
    assert set(found) == published(figure)


def test_every_experiment_composes_and_plans() -> None:
    names = group_choices("experiment")
    assert len(names) == 8
    for name in names:
        for point in compose_points([f"experiment={name}"], multirun=True):
            plan = build_run_plan(point.config, point.assumptions)
            assert not [problem for problem in plan.problems if problem.kind != "memory"], name
            assert plan.assumptions[0] == "not stated: data=stdlib"


def test_what_is_typed_replaces_an_axis() -> None:
    points = compose_points(["experiment=azure_fig5a", "nodes=2,4", "cluster.time='10'"], multirun=True)
    assert [(p.config.nodes, p.config.training.micro_batch_size) for p in points] == [
        (nodes, size) for size in (1, 2, 4, 8, 16) for nodes in (2, 4)
    ] + [(nodes, 32) for nodes in (2, 4)]
    assert {point.config.cluster.time for point in points} == {"10"}


def test_experiments_are_joined() -> None:
    both = compose_points(["experiment=azure_fig6,azure_fig7"], multirun=True)
    assert [point.config.model.name for point in both] == ["530b"] * 8 + ["1t"] * 8
    assert len(compose_points(["experiment=glob(azure_fig5*)"], multirun=True)) == 17 + 20


def test_a_sweep_wants_m_and_one_of_its_points_does_not() -> None:
    with pytest.raises(
        ConfigError, match=r"experiment=azure_fig6: is a sweep over nodes, training.micro_batch_size; put -m"
    ):
        compose_points(["experiment=azure_fig6"], multirun=False)
    with pytest.raises(ConfigError, match=r"is a sweep over training.micro_batch_size; put -m"):
        compose_points(["experiment=azure_fig6", "nodes=64"], multirun=False)
    (point,) = compose_points(["experiment=azure_fig6", "nodes=64", "training.micro_batch_size=4"], multirun=False)
    assert shapes([point]) == [("530b", 1024, 512, 4)]


def test_no_experiment_is_the_default() -> None:
    assert compose_points(["model=tiny", "experiment=null"], multirun=False)[0].config == (
        compose_points(["model=tiny"], multirun=False)[0].config
    )


def site_experiment(folder: Path, sweep: str) -> list[Path]:
    (folder / "experiment").mkdir()
    text = f"# @package _global_\ndefaults:\n  - override /model: tiny\n{sweep}"
    (folder / "experiment" / "ours.yaml").write_text(text, encoding="utf-8")
    return [folder]


@pytest.mark.parametrize(
    ("sweep", "count"),
    [
        ("sweep:\n  nodes: 1,2\n  training.seed: range(0,5)\n", 10),
        ("sweep:\n  nodes: [1, 2]\n  env.A: [true, false, x]\n", 6),
        ("sweep:\n  - nodes: 1,2\n  - nodes: 2,3\n", 3),
        ("training:\n  seed: 5\n", 1),
    ],
    ids=["texts", "lists", "overlapping", "no-sweep"],
)
def test_a_sites_experiment(tmp_path: Path, sweep: str, count: int) -> None:
    points = compose_points(["experiment=ours"], multirun=True, extra_dirs=site_experiment(tmp_path, sweep))
    assert len(points) == count
    assert {point.config.model.name for point in points} == {"tiny"}


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("sweep: 3\n", "sweep: must be a mapping"),
        ("sweep: []\n", "sweep: must be a mapping"),
        ("sweep:\n  nodes: {a: 1}\n", r"sweep.nodes: must be a value, a comma list"),
        ("sweep:\n  nodez: 1,2\n", "nodez=1,2: is no key of hpctrain; nearest: nodes"),
        ("sweep:\n  model: tiny,125x\n", "model=125x: there is no such model"),
        ("sweep:\n  nodes: 1,zero\n", "nodes='zero': must be a whole number"),
    ],
    ids=["scalar", "empty", "mapping", "key", "choice", "value"],
)
def test_mistakes_of_a_sites_experiment(tmp_path: Path, sweep: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        compose_points(["experiment=ours"], multirun=True, extra_dirs=site_experiment(tmp_path, sweep))


def test_an_unknown_experiment_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"experiment=azure_fig5: there is no such experiment; nearest: azure_fig5"):
        compose_points(["experiment=azure_fig5"], multirun=True)
