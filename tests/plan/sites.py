"""Sites made by hand: what a cluster has, and a configuration planned against it."""

from __future__ import annotations

import dataclasses
import functools

from hpctrain.config.compose import Point, compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.plan.site.check import plan_on_site
from hpctrain.plan.site.limits import (
    Gres,
    Node,
    NodeGroup,
    NodeShape,
    Partition,
    Site,
)

A100 = NodeShape(cpus=96, memory_mib=1_500_000, gres=(Gres("gpu", "a100", 8),), features=("ib", "a100"))
V100 = NodeShape(cpus=40, memory_mib=380_000, gres=(Gres("gpu", "v100", 4),), features=("eth",))
THIN = NodeShape(cpus=64, memory_mib=250_000)
H100 = NodeShape(cpus=192, memory_mib=2_000_000, gres=(Gres("gpu", "h100", 8),))


def partition(name: str, *groups: NodeGroup, **fields: object) -> Partition:
    total = sum(group.total for group in groups)
    return dataclasses.replace(Partition(name, total_nodes=total, groups=groups, preempt_mode="OFF"), **fields)  # type: ignore[arg-type]


def site(*partitions: Partition, **fields: object) -> Site:
    nodes = {}
    for part in partitions:
        for number, group in enumerate(part.groups):
            for index in range(group.usable):
                name = f"{part.name}{number}-{index:02d}"
                nodes[name] = Node(name, group.shape, "IDLE", True, (part.name,))
    known = {part.name: part for part in partitions}
    base = Site(cluster="c", version="24.05.1", user="carol", user_groups=("users",), gres_types=("gpu",))
    return dataclasses.replace(base, partitions=known, nodes=nodes, reservations={}, **fields)  # type: ignore[arg-type]


GPU = partition("gpu", NodeGroup(A100, 16), is_default=True, max_time_s=86400)
OLD = partition("old", NodeGroup(V100, 40), max_time_s=7 * 86400)
CPU = partition("cpu", NodeGroup(THIN, 100))
SITE = site(GPU, OLD, CPU)


@functools.cache
def base_point(hardware: str) -> Point:
    (point,) = compose_points(["model=1.3b", "parallelism=zero3", f"hardware={hardware}", "nodes=2"], multirun=False)
    return point


def config_of(words: tuple[str, ...]) -> Config:
    """The base configuration with values set directly: composing each anew would take most of the time."""
    hardware = next((word.partition("=")[2] for word in words if word.startswith("hardware=")), "ndm_a100_v4")
    config = base_point(hardware).config
    for word in words:
        key, _, text = word.partition("=")
        group, _, field = key.partition(".")
        is_number = text.isdecimal() and field in ("cpus_per_task", "gpus_per_node")
        value = {"null": None, "true": True}.get(text, int(text) if is_number else text.strip("'"))
        if key == "nodes":
            config = dataclasses.replace(config, nodes=int(text))
        elif field.startswith("extra."):
            extra = {**config.cluster.extra, field.removeprefix("extra."): text}
            config = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, extra=extra))
        elif field:
            changed = dataclasses.replace(getattr(config, group), **{field: value})
            config = dataclasses.replace(config, **{group: changed})
    return config


def held(where: Site, *words: str) -> RunPlan:
    config = config_of(words)
    return plan_on_site(build_run_plan(config), config, where)


def problems(where: Site, *words: str) -> list[str]:
    return [str(problem) for problem in held(where, *words).problems]
