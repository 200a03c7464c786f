"""Which points share an array, and how large one may be."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.site.limits import Accounting, Association, Limits, Partition, Qos, Site
from hpctrain.plan.sweep.groups import array_request, array_spec, group_points, largest_array, request_shape


def requests(*words: str) -> list[SlurmRequest]:
    points = compose_points(["model=tiny", "parallelism=zero3", *words], multirun=True)
    return [build_run_plan(point.config).slurm for point in points]


@pytest.mark.parametrize(
    ("words", "num_shapes"),
    [
        (["model=tiny,125m", "training.seed=1,2"], 1),
        (["nodes=1,2", "training.seed=1,2"], 2),
        (["parallelism=zero1,zero3"], 1),
        (["cluster.time='10','20'"], 2),
        (["env.A=1,2"], 2),
        (["cluster.setup=[a],[b]"], 2),
        (["hardware=hgx_h200,dgx_h100"], 2),
        (["run.name=a,b"], 1),
    ],
    ids=["model", "nodes", "parallelism", "time", "env", "setup", "hardware", "name"],
)
def test_shapes(words: list[str], num_shapes: int) -> None:
    assert len({request_shape(request) for request in requests(*words)}) == num_shapes


def test_every_point_is_in_one_group_of_its_shape() -> None:
    shapes = [f"{index % 7}" for index in range(100)]
    groups = group_points(shapes, dict.fromkeys(shapes, 4))
    assert sorted(index for group in groups for index in group) == list(range(100))
    assert all(len(group) <= 4 and len({shapes[index] for index in group}) == 1 for group in groups)
    assert groups == sorted(groups)


def test_a_thousand_points_are_one_array_of_slurms_default_size() -> None:
    (request,) = requests()
    largest = largest_array(None, request)
    assert [len(group) for group in group_points(["x"] * 1000, {"x": largest})] == [1000]
    assert [len(group) for group in group_points(["x"] * 2500, {"x": largest})] == [1001, 1001, 498]


def site(**limits: int) -> Site:
    qos = {"big": Qos("big", Limits(max_submit=20)), "part": Qos("part", Limits(group_submit=15))}
    associations = (
        Association("physics", limits=Limits(max_submit=50)),
        Association("physics", partition="small", limits=Limits(max_submit=5)),
        Association("other", limits=Limits(max_submit=3)),
    )
    return Site(
        max_array_size=limits.get("max_array_size"),
        enforce=frozenset({"limits"}),
        partitions={
            "gpu": Partition("gpu", is_default=True),
            "small": Partition("small"),
            "shared": Partition("shared", qos="part"),
        },
        accounting=Accounting("physics", associations, {}, qos),
    )


@pytest.mark.parametrize(
    ("options", "limits", "largest"),
    [
        ({}, {}, 50),
        ({}, {"max_array_size": 11}, 11),
        ({"qos": "big"}, {}, 20),
        ({"partition": "small"}, {}, 5),
        ({"partition": "shared"}, {}, 15),
        ({"account": "other"}, {}, 3),
        ({"account": "unknown"}, {}, 1001),
    ],
    ids=["association", "array-size", "qos", "partition", "partition-qos", "account", "unknown"],
)
def test_an_array_is_no_larger_than_what_the_site_takes(
    options: dict[str, str], limits: dict[str, int], largest: int
) -> None:
    (request,) = requests()
    request = dataclasses.replace(request, options=options)
    assert largest_array(site(**limits), request) == largest


def test_limits_that_are_not_enforced_do_not_bind() -> None:
    (request,) = requests()
    assert largest_array(dataclasses.replace(site(), enforce=frozenset()), request) == 1001


def test_the_throttle_is_left_out_where_it_says_nothing() -> None:
    assert [array_spec(5, running) for running in (None, 1, 4, 5, 9)] == ["0-4", "0-4%1", "0-4%4", "0-4", "0-4"]


def test_an_array_has_the_common_name_of_its_points_or_the_sweeps() -> None:
    assert array_request(requests("training.seed=1,2"), "my sweep").job_name == "tiny-1n-zero3"
    assert array_request(requests("parallelism=zero1,zero3"), "my sweep").job_name == "my-sweep"
