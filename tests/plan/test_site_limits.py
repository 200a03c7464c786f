"""Requests held against a site: each impossible wish is refused with the nearest possible one, what was left out is told."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from hpctrain.config.compose import Point, compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.plan.site_check import plan_on_site, sweep_warnings
from hpctrain.plan.site_hint import site_hint
from hpctrain.plan.site_limits import (
    Account,
    Accounting,
    Association,
    Gres,
    Limits,
    Node,
    NodeGroup,
    NodeShape,
    Partition,
    Qos,
    Reservation,
    Site,
)
from hpctrain.plan.site_need import request_need
from hpctrain.plan.site_nodes import short_list

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
    (point,) = compose_points(["model=1.3b", f"hardware={hardware}", "nodes=2"], multirun=False)
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


REFUSED: dict[str, tuple[Site, list[str], list[str]]] = {
    "partition-unknown": (
        SITE,
        ["cluster.partition=gpus"],
        ["cluster.partition=gpus: the site has no such partition; nearest: gpu", "known: cpu, gpu, old"],
    ),
    "no-default-partition": (
        site(OLD, CPU),
        [],
        ["cluster.partition=null: must be stated: this site has no default partition; known: cpu, old"],
    ),
    "too-many-nodes": (
        SITE,
        ["nodes=128"],
        ["nodes=128: partition gpu has 16 nodes; Slurm would take the job and never start it; nearest: 16"],
    ),
    "more-than-max-nodes": (
        site(dataclasses.replace(GPU, max_nodes=4)),
        ["nodes=8"],
        ["nodes=8: partition gpu allows at most 4 nodes a job (MaxNodes); nearest: 4"],
    ),
    "fewer-than-min-nodes": (
        site(dataclasses.replace(GPU, min_nodes=4)),
        ["nodes=2"],
        ["nodes=2: partition gpu wants at least 4 nodes a job (MinNodes); nearest: 4"],
    ),
    "time-above": (
        SITE,
        ["cluster.time=2-00:00:00"],
        ["cluster.time=2-00:00:00: 2 d, and partition gpu allows 1 d (MaxTime); nearest: 1-00:00:00"],
    ),
    "time-unlimited": (
        SITE,
        ["cluster.time=UNLIMITED"],
        ["cluster.time=UNLIMITED: no limit, and partition gpu allows 1 d"],
    ),
    "warning-before-the-start": (
        site(dataclasses.replace(GPU, default_time_s=60)),
        [],
        [
            "cluster.signal_lead_s=120: the warning must come before the end, and cluster.time=null gets 1 min here; nearest: 30"
        ],
    ),
    "gpus-a-node": (
        SITE,
        ["cluster.partition=old", "hardware.gpus_per_node=8", "cluster.cpus_per_task=4"],
        [
            "hardware.gpus_per_node=8: no node of partition old has 8 GPUs (most: 4); nearest: 4",
            "cluster.partition=gpu could run it",
        ],
    ),
    "gpus-of-few-nodes": (
        site(partition("mix", NodeGroup(A100, 1), NodeGroup(V100, 9), is_default=True)),
        ["cluster.cpus_per_task=1"],
        [
            "hardware.gpus_per_node=8: only 1 of the 10 nodes of partition mix have 8 a100 GPUs; choose another partition"
        ],
    ),
    "gpu-type-unknown": (
        SITE,
        ["cluster.gpu_type=h100"],
        ["cluster.gpu_type=h100: the site has no GPUs of this type; nearest: v100", "known: a100, v100"],
    ),
    "gpu-type-elsewhere": (
        SITE,
        ["cluster.gpu_type=v100", "hardware.gpus_per_node=4", "cluster.cpus_per_task=4"],
        [
            "cluster.gpu_type=v100: no node of partition gpu has GPUs of type v100; types there: a100",
            "cluster.partition=old",
        ],
    ),
    "gpu-type-where-none-is-named": (
        site(partition("p", NodeGroup(dataclasses.replace(A100, gres=(Gres("gpu", "", 8),)), 4), is_default=True)),
        ["cluster.gpu_type=a100"],
        ["cluster.gpu_type=a100: the site has no GPUs of this type; it names no types: leave it out"],
    ),
    "no-gres-at-all": (
        site(CPU, gres_types=()),
        ["cluster.partition=cpu"],
        [
            "cluster.gpu_request=auto: asks Slurm for gpu, and the site configures no resources; cluster.gpu_request=none"
        ],
    ),
    "no-gpus-in-the-partition": (
        SITE,
        ["cluster.partition=cpu", "cluster.cpus_per_task=4"],
        ["hardware.gpus_per_node=8: no node of partition cpu has 8 GPUs; choose another partition"],
    ),
    "form-that-an-old-select-plug-in-does-not-know": (
        dataclasses.replace(SITE, select_type="select/cons_res"),
        ["cluster.gpu_request=gpus_per_node"],
        [
            "cluster.gpu_request=gpus_per_node: this site's select/cons_res knows no --gpus-per-node;"
            " set cluster.gpu_request=gres"
        ],
    ),
    "memory": (
        SITE,
        ["cluster.memory_per_node=2T"],
        [
            "cluster.memory_per_node=2T: no node of partition gpu has 2,048.00 GiB for jobs (most: 1,464.84 GiB)",
            "nearest: 1500000M",
        ],
    ),
    "memory-of-each-cpu": (
        SITE,
        ["cluster.extra.mem_per_cpu=64G"],
        ["cluster.extra.mem-per-cpu=64G: no node of partition gpu has 6,144.00 GiB"],
    ),
    "memory-above-the-partitions": (
        site(dataclasses.replace(GPU, max_mem_per_node_mib=1000)),
        ["cluster.memory_per_node=2G"],
        ["cluster.memory_per_node=2G: no node", "nearest: 1000M"],
    ),
    "memory-by-default": (
        site(dataclasses.replace(GPU, def_mem_per_cpu_mib=20_000)),
        [],
        ["cluster.memory_per_node=null: no node of partition gpu has", "set cluster.memory_per_node=0"],
    ),
    "cpus": (
        SITE,
        ["cluster.cpus_per_task=13"],
        ["cluster.cpus_per_task=13: no node of partition gpu has 104 CPUs for 8 ranks of 13 (most: 96); nearest: 12"],
    ),
    "cpus-without-hyperthreads": (
        site(partition("p", NodeGroup(dataclasses.replace(A100, cpus=192, threads_per_core=2), 4), is_default=True)),
        ["cluster.cpus_per_task=13", "cluster.extra.hint=nomultithread"],
        ["cluster.cpus_per_task=13: no node", "(most: 96); nearest: 12"],
    ),
    "cpus-above-the-partitions": (
        site(dataclasses.replace(GPU, max_cpus_per_node=48)),
        ["cluster.cpus_per_task=12"],
        ["cluster.cpus_per_task=12", "(most: 48); nearest: 6"],
    ),
    "more-ranks-than-cpus": (
        site(partition("p", NodeGroup(dataclasses.replace(A100, cpus=4), 4), is_default=True)),
        ["cluster.cpus_per_task=1"],
        ["hardware.gpus_per_node=8: no node of partition p has 8 CPUs", "hardware.gpus_per_node=4 is the most"],
    ),
    "all-at-once-on-no-node": (
        site(
            partition(
                "p",
                NodeGroup(A100, 2),
                NodeGroup(dataclasses.replace(A100, gres=(), features=(), memory_mib=3_000_000), 2),
                is_default=True,
            )
        ),
        ["cluster.memory_per_node=2T"],
        ["nodes=2: only 0 of partition p's 4 nodes have 96 CPUs", "at once; ask for less of one"],
    ),
    "feature": (
        SITE,
        ["cluster.constraint=a10"],
        ["cluster.constraint=a10: no node there has the feature a10; nearest: a100; known: a100, eth, ib"],
    ),
    "features-together": (
        SITE,
        ["cluster.partition=old", "hardware.gpus_per_node=4", "cluster.constraint='eth&ib'"],
        ["cluster.constraint=eth&ib: no node of partition old has the features eth&ib; features there: eth"],
    ),
    "node-unknown": (
        SITE,
        ["cluster.nodelist='gpu0-00,gpu0-99'"],
        ["cluster.nodelist=gpu0-99: the site has no nodes of these names; nearest: gpu0-"],
    ),
    "excluded-node-unknown": (
        SITE,
        ["cluster.exclude=nosuch"],
        ["cluster.exclude=nosuch: the site has no nodes of these names"],
    ),
    "more-nodes-named-than-asked-for": (
        SITE,
        ["nodes=1", "cluster.nodelist='gpu0-[00-02]'"],
        ["cluster.nodelist=gpu0-00, gpu0-01, gpu0-02: names 3 nodes", "nodes=1; set nodes=3"],
    ),
    "node-of-another-partition": (
        SITE,
        ["nodes=1", "cluster.nodelist=old0-00"],
        ["cluster.nodelist=old0-00: not in partition gpu; they are in old"],
    ),
    "named-nodes-without-gpus": (
        site(partition("p", NodeGroup(A100, 2), NodeGroup(THIN, 2), is_default=True)),
        ["cluster.nodelist='p1-[00-01]'", "cluster.cpus_per_task=1"],
        ["hardware.gpus_per_node=8: no node of partition p has 8 GPUs"],
    ),
    "too-many-excluded": (
        SITE,
        ["nodes=15", "cluster.exclude='gpu0-[00-01]'"],
        ["nodes=15: partition gpu has 14 nodes that are not excluded"],
    ),
    "drained": (
        site(dataclasses.replace(GPU, state="DRAIN"), OLD),
        [],
        ["cluster.partition=gpu: partition gpu is DRAIN and takes no jobs"],
    ),
    "inactive": (site(dataclasses.replace(GPU, state="INACTIVE")), [], ["is INACTIVE and takes no jobs"]),
    "group": (
        site(dataclasses.replace(GPU, allow_groups=("staff",))),
        [],
        ["cluster.partition=gpu: is for the groups staff, and carol is in none of them"],
    ),
    "root-only": (site(dataclasses.replace(GPU, root_only=True)), [], ["cluster.partition=gpu: is for root only"]),
    "no-root-jobs": (site(dataclasses.replace(GPU, no_root_jobs=True), is_root=True), [], ["takes no jobs of root"]),
    "account-not-taken": (
        site(dataclasses.replace(GPU, allow_accounts=("physics",))),
        ["cluster.account=chem"],
        ["cluster.account=chem: partition gpu does not take it; known: physics"],
    ),
    "account-denied": (
        site(dataclasses.replace(GPU, deny_accounts=("chem",))),
        ["cluster.account=chem"],
        ["cluster.account=chem: partition gpu does not take it; any but chem"],
    ),
    "qos-not-taken": (
        site(dataclasses.replace(GPU, allow_qos=("long",))),
        ["cluster.qos=short"],
        ["cluster.qos=short: partition gpu does not take it; known: long"],
    ),
    "needs-a-reservation": (
        site(dataclasses.replace(GPU, needs_reservation=True)),
        [],
        ["cluster.reservation=null: partition gpu takes jobs with a reservation only"],
    ),
    "reservation-unknown": (
        SITE,
        ["cluster.reservation=course"],
        ["cluster.reservation=course: the site has no such reservation; there is none: leave it out"],
    ),
    "several-partitions-one-unknown": (
        SITE,
        ["cluster.partition='gpu,nosuch'"],
        ["cluster.partition=nosuch: the site has no such partition"],
    ),
    "several-partitions-none-can": (
        SITE,
        ["cluster.partition='gpu,old'", "nodes=50", "hardware.gpus_per_node=4"],
        ["nodes=50: partition gpu has 16 nodes", "nodes=50: partition old has 40 nodes"],
    ),
    "several-partitions-all-must": (
        dataclasses.replace(SITE, enforce_part_limits="ALL"),
        ["cluster.partition='gpu,old'", "nodes=20", "hardware.gpus_per_node=4"],
        ["nodes=20: partition gpu has 16 nodes"],
    ),
    "everything-at-once": (
        SITE,
        ["nodes=99", "cluster.time=9-0", "cluster.gpu_type=k80", "cluster.reservation=x"],
        ["nodes=99", "cluster.time=9-00:00:00", "cluster.gpu_type=k80", "cluster.reservation=x"],
    ),
    "partition-without-nodes": (site(partition("p", is_default=True)), [], ["nodes=2: partition p has 0 nodes"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused(name: str) -> None:
    where, words, expected = REFUSED[name]
    found = held(where, *words)
    text = "\n".join(map(str, found.problems))
    for part in expected:
        assert part in text
    assert found.blocking_problems(force=False)
    assert not found.blocking_problems(force=True)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (SITE, []),
        (SITE, ["nodes=16", "cluster.time=1-00:00:00", "cluster.cpus_per_task=12", "cluster.memory_per_node=1500000M"]),
        (SITE, ["cluster.partition='gpu,old'", "nodes=40", "hardware.gpus_per_node=4"]),
        (SITE, ["cluster.gpu_type=A100"]),
        (SITE, ["cluster.memory_per_node=0"]),
        (SITE, ["cluster.constraint='ib&a100|eth'"]),
        (SITE, ["cluster.constraint='[ib*2]'"]),
        (SITE, ["cluster.nodelist='gpu0-[00-01]'", "cluster.exclude=gpu0-05"]),
        (SITE, ["cluster.nodelist=/home/me/hosts"]),
        (
            dataclasses.replace(SITE, partitions=None, nodes=None, reservations=None),
            ["nodes=9999", "cluster.partition=x"],
        ),
        (dataclasses.replace(SITE, nodes=None), ["cluster.nodelist=whatever", "nodes=1"]),
        (site(dataclasses.replace(GPU, allow_groups=("users",), allow_accounts=("chem",))), ["cluster.account=Chem"]),
        (site(dataclasses.replace(GPU, allow_groups=("staff",)), is_root=True), []),
    ],
    ids=[
        "defaults",
        "exactly-the-most",
        "one-of-two-partitions",
        "type-in-other-case",
        "all-memory",
        "features",
        "features-of-the-job",
        "named-nodes",
        "node-file",
        "nothing-known",
        "nodes-not-known",
        "group-and-account",
        "root-is-in-no-group",
    ],
)
def test_what_can_run_is_not_refused(where: Site, words: list[str]) -> None:
    assert problems(where, *words) == []


def test_an_unknown_constraint_name_in_brackets_is_found() -> None:
    assert "no node there has the feature rack9" in problems(SITE, "cluster.constraint='[rack9|ib]'")[0]


# --- what was left out, and doubts -------------------------------------------------------------------------


def test_the_defaults_of_the_partition_are_told() -> None:
    told = held(SITE).assumptions
    assert "cluster.partition not stated: gpu, this site's default" in told
    assert "cluster.time not stated: 1 d, partition gpu's MaxTime, since it has no DefaultTime" in told
    short = site(dataclasses.replace(GPU, default_time_s=1800))
    assert "cluster.time not stated: 30 min, partition gpu's DefaultTime" in held(short).assumptions
    assert "cluster.time not stated: no limit, partition cpu's" in "\n".join(
        held(SITE, "cluster.partition=cpu", "cluster.gpu_request=none", "cluster.cpus_per_task=1").assumptions
    )


def test_cpus_come_from_the_node_where_the_hardware_states_none() -> None:
    found = held(SITE, "hardware.cpu_cores_per_node=null")
    assert found.slurm.cpus_per_task == 12
    assert "cluster.cpus_per_task not stated: 12, a rank's share of a node's CPUs in partition gpu" in found.assumptions
    assert not [text for text in found.warnings if "states no cores" in text]


def test_a_job_on_some_gpus_of_a_node_takes_its_share_of_the_cpus() -> None:
    found = held(SITE, "hardware.cpu_cores_per_node=null", "hardware.gpus_per_node=2")
    assert found.slurm.cpus_per_task == 12
    whole = held(SITE, "hardware.cpu_cores_per_node=null", "hardware.gpus_per_node=2", "cluster.exclusive=true")
    assert whole.slurm.cpus_per_task == 48


def test_cpus_of_the_hardware_are_lowered_to_what_the_nodes_have() -> None:
    small = site(partition("p", NodeGroup(dataclasses.replace(A100, cpus=88), 4), is_default=True))
    found = held(small)
    assert found.problems == ()
    assert found.slurm.cpus_per_task == 11
    assert "hardware=ndm_a100_v4 would give 12" in "\n".join(found.assumptions)


def test_several_partitions_get_the_cpus_that_both_have() -> None:
    found = held(SITE, "cluster.partition='gpu,old'", "hardware.gpus_per_node=4", "hardware.cpu_cores_per_node=null")
    assert found.slurm.cpus_per_task == 10


MIXED = site(partition("mix", NodeGroup(A100, 8), NodeGroup(H100, 8), is_default=True))


def test_the_type_of_mixed_gpus_follows_the_hardware() -> None:
    found = held(MIXED)
    assert found.slurm.options["gpus-per-node"] == "a100:8"
    assert "cluster.gpu_type not stated: a100" in "\n".join(found.assumptions)
    by_gres = held(MIXED, "hardware=dgx_h100", "cluster.gpu_request=gres")
    assert by_gres.slurm.options["gres"] == "gpu:h100:8"
    unknown = held(MIXED, "hardware=hgx_h200")
    assert unknown.slurm.options["gpus-per-node"] == "8"
    assert "GPUs of several types (a100, h100): set cluster.gpu_type" in "\n".join(unknown.warnings)


def test_gpus_are_asked_for_in_the_form_that_the_site_knows() -> None:
    found = held(dataclasses.replace(SITE, select_type="select/cons_res"))
    assert found.problems == ()
    assert found.slurm.options["gres"] == "gpu:8"
    assert "gpus-per-node" not in found.slurm.options
    assert "this site's select/cons_res knows no --gpus-per-node" in "\n".join(found.assumptions)


def test_a_job_that_asks_for_no_gpus_where_there_are_some_is_a_warning() -> None:
    found = held(SITE, "cluster.gpu_request=none")
    assert "ranks see none; set cluster.gpu_request=auto" in "\n".join(found.warnings)


def test_other_gpus_than_the_plan_rests_on_are_a_warning() -> None:
    only = site(partition("p", NodeGroup(H100, 8), is_default=True))
    assert "the GPUs of partition p are h100, but hardware=ndm_a100_v4 plans with A100" in "\n".join(
        held(only).warnings
    )
    assert not [text for text in held(SITE).warnings if "plans with" in text]


def test_nodes_that_are_down_are_a_warning_with_their_states() -> None:
    some = site(partition("p", NodeGroup(A100, 3, (("DOWN", 4), ("DRAIN", 1))), is_default=True))
    (warning,) = [text for text in held(some, "nodes=8").warnings if "take jobs now" in text]
    assert "only 3 take jobs now (4 DOWN, 1 DRAIN)" in warning
    assert problems(some, "nodes=9")[0].startswith("nodes=9: partition p has 8 nodes")


def test_a_named_node_that_is_down_is_a_warning() -> None:
    nodes = dict(SITE.nodes or {})
    nodes["gpu0-00"] = dataclasses.replace(nodes["gpu0-00"], state="DOWN*", is_usable=False)
    found = held(dataclasses.replace(SITE, nodes=nodes), "nodes=1", "cluster.nodelist=gpu0-00")
    assert "cluster.nodelist: gpu0-00 is DOWN* and takes no jobs now" in "\n".join(found.warnings)


def test_names_of_qos_and_accounts_have_no_case() -> None:
    assert problems(enforced(accounting()), "cluster.account=LAB", "cluster.qos=Long") == []


def test_a_partition_that_is_down_takes_jobs_for_later() -> None:
    found = held(site(dataclasses.replace(GPU, state="DOWN")))
    assert found.problems == ()
    assert "partition gpu is DOWN" in "\n".join(found.warnings)


def test_a_partition_of_several_that_cannot_run_it_is_a_warning() -> None:
    found = held(SITE, "cluster.partition='gpu,old'", "nodes=20", "hardware.gpus_per_node=4")
    assert "partition gpu of cluster.partition=gpu,old cannot run it: nodes=20" in "\n".join(found.warnings)


def test_a_default_memory_that_would_starve_the_ranks_is_a_warning() -> None:
    low = site(dataclasses.replace(GPU, def_mem_per_cpu_mib=1))
    assert "cluster.memory_per_node not stated: Slurm gives 96.0 MiB a node" in "\n".join(held(low).warnings)
    by_gpu = site(dataclasses.replace(GPU, def_mem_per_gpu_mib=2))
    assert "Slurm gives 16.0 MiB a node" in "\n".join(held(by_gpu).warnings)
    stated = held(SITE, "cluster.memory_per_node=1M")
    assert "cluster.memory_per_node gives 1.0 MiB a node" in "\n".join(stated.warnings)
    assert not [text for text in held(low, "cluster.memory_per_node=0").warnings if "Slurm gives" in text]


def test_nodes_without_the_memory_that_the_plan_needs_are_a_problem_of_memory() -> None:
    p = partition("p", NodeGroup(dataclasses.replace(A100, memory_mib=64), 4), is_default=True)
    (problem,) = held(site(p)).problems
    assert (problem.kind, problem.key) == ("memory", "memory.host")
    assert "those of partition p have 64.0 MiB, short by" in str(problem)
    assert held(site(p)).blocking_problems(force=True) == ()
    assert not held(SITE).problems
    assert not held(site(p), "training.payload=launch_check").problems
    # Slurm may choose the one or the other.
    either = held(site(p, GPU), "cluster.partition='p,gpu'")
    assert not either.problems
    assert "those of partition p have 64.0 MiB" in "\n".join(either.warnings)
    # RealMemory that nobody stated is 1 MiB.
    unknown = site(dataclasses.replace(p, groups=(NodeGroup(dataclasses.replace(A100, memory_mib=1), 4),)))
    assert not held(unknown).problems


def test_a_partition_that_cancels_preempted_jobs_is_told() -> None:
    assert "does not requeue them" in "\n".join(held(site(dataclasses.replace(GPU, preempt_mode="CANCEL"))).warnings)
    found = held(site(GPU, job_requeue=False), "cluster.requeue=null")
    assert "does not requeue jobs by itself" in "\n".join(found.warnings)


# --- reservations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reservation", "expected"),
    [
        (Reservation("r", "ACTIVE", 4, users=("carol",)), ""),
        (Reservation("r", "ACTIVE", 4, accounts=("lab",)), ""),
        (Reservation("r", "ACTIVE", 4, users=("alice", "bob")), "is for users alice, bob and accounts -"),
        (Reservation("r", "ACTIVE", 4, users=("-carol",)), "is for users - and accounts -"),
        (Reservation("r", "ACTIVE", 1, users=("carol",)), "nodes=2: reservation r has 1 node; nearest: 1"),
    ],
    ids=["user", "account", "others", "denied", "too-small"],
)
def test_reservations(reservation: Reservation, expected: str) -> None:
    where = dataclasses.replace(SITE, reservations={"r": reservation})
    found = problems(where, "cluster.reservation=r", "cluster.account=lab")
    assert (expected in found[0]) if expected else not found


def test_a_reservation_that_is_not_active_is_a_warning() -> None:
    where = dataclasses.replace(SITE, reservations={"r": Reservation("r", "INACTIVE", 4, users=("carol",))})
    assert "cluster.reservation: r is INACTIVE" in "\n".join(held(where, "cluster.reservation=r").warnings)


# --- accounting --------------------------------------------------------------------------------------------

ENFORCED = frozenset({"associations", "limits", "qos"})


def accounting(**of: Limits) -> Accounting:
    """Account lab under science, with QOS normal (default), long and part (of the partition); named limits at each."""
    return Accounting(
        default_account="lab",
        associations=(
            Association("lab", qos=("normal", "long"), default_qos="normal", limits=of.get("lab", Limits())),
            Association("debugging", partition="old", qos=("normal",)),
        ),
        accounts={
            "root": Account("root", "", Limits()),
            "science": Account("science", "root", of.get("science", Limits())),
            "lab": Account("lab", "science", of.get("shared", Limits())),
        },
        qos={
            "normal": Qos("normal", of.get("normal", Limits())),
            "long": Qos("long", of.get("long", Limits()), ("PartitionTimeLimit", "OverPartQOS", "PartitionMaxNodes")),
            "part": Qos("part", of.get("part", Limits())),
            "secret": Qos("secret", Limits()),
        },
    )


def enforced(found: Accounting, **fields: object) -> Site:
    part = dataclasses.replace(GPU, **fields)  # type: ignore[arg-type]
    return site(part, OLD, enforce=ENFORCED, has_accounting=True, accounting=found)


ACCOUNTED: dict[str, tuple[Site, list[str], str]] = {
    "account-unknown": (
        enforced(accounting()),
        ["cluster.account=labs"],
        "cluster.account=labs: user carol may not use this account on cluster c; nearest: lab; known: debugging, lab",
    ),
    "no-account-at-all": (
        enforced(Accounting(qos={"normal": Qos("normal", Limits())})),
        [],
        "cluster.account=null: user carol has no account on cluster c, which it asks for; ask the site for one",
    ),
    "no-default-account": (
        enforced(dataclasses.replace(accounting(), default_account="")),
        [],
        "cluster.account=null: must be stated: you have no default account; known: debugging, lab",
    ),
    "account-of-one-partition": (
        enforced(accounting()),
        ["cluster.account=debugging"],
        "cluster.partition=gpu: account debugging may be used in old only; nearest: old",
    ),
    "qos-unknown": (
        enforced(accounting()),
        ["cluster.qos=lon"],
        "cluster.qos=lon: the site has no such QOS; nearest: long; known: long, normal",
    ),
    "qos-of-others": (
        enforced(accounting()),
        ["cluster.qos=secret"],
        "cluster.qos=secret: account lab may not use it; known: long, normal",
    ),
    "default-account-not-taken": (
        enforced(accounting(), allow_accounts=("physics",)),
        [],
        "cluster.account=lab: partition gpu does not take it; known: physics",
    ),
    "wall-of-the-qos": (
        enforced(accounting(normal=Limits(max_wall_s=3600))),
        ["cluster.time=2:00:00"],
        "cluster.time=2:00:00: QOS normal allows at most 1 h (MaxWall); nearest: 1:00:00",
    ),
    "wall-of-the-partitions-qos-first": (
        enforced(accounting(part=Limits(max_wall_s=1800), normal=Limits(max_wall_s=7200)), qos="part"),
        ["cluster.time=1:00:00"],
        "QOS part of partition gpu allows at most 30 min",
    ),
    "wall-of-the-account": (
        enforced(accounting(lab=Limits(max_wall_s=3600))),
        ["cluster.time=2:00:00"],
        "account lab allows at most 1 h",
    ),
    "nodes-of-the-qos": (
        enforced(accounting(normal=Limits(max_tres={"node": 1}))),
        [],
        "nodes=2: the job asks for 2 nodes; QOS normal: MaxTRES, one job, is 1 node; nearest: nodes=1",
    ),
    "gpus-of-one-user": (
        enforced(accounting(normal=Limits(max_tres_per_user={"gres/gpu": 8}))),
        [],
        "nodes=2: the job asks for 16 GPUs; QOS normal: MaxTRESPerUser, all jobs of one user, is 8 GPUs; nearest: nodes=1",
    ),
    "gpus-of-the-group-above": (
        enforced(accounting(science=Limits(group_tres={"gres/gpu": 12}))),
        [],
        "the job asks for 16 GPUs; account science: GrpTRES, all its jobs together, is 12 GPUs; nearest: nodes=1",
    ),
    "gpus-of-one-node": (
        enforced(accounting(normal=Limits(max_tres_per_node={"gres/gpu": 4}))),
        [],
        "hardware.gpus_per_node: the job asks for 8 GPUs a node; QOS normal: MaxTRESPerNode, is 4 GPUs; at most 4 GPUs a node",
    ),
    "typed-gpus": (
        enforced(accounting(normal=Limits(max_tres={"gres/gpu:a100": 8}))),
        ["cluster.gpu_type=a100"],
        "the job asks for 16 gpu:a100; QOS normal: MaxTRES, one job, is 8 gpu:a100",
    ),
    "cpus-of-the-job": (
        enforced(accounting(lab=Limits(max_tres={"cpu": 100}))),
        [],
        "the job asks for 192 CPUs; account lab: MaxTRES, one job, is 100 CPUs; nearest: nodes=1",
    ),
    "memory-of-the-job": (
        enforced(accounting(lab=Limits(max_tres={"mem": 1024.0}))),
        ["cluster.memory_per_node=1G"],
        "the job asks for 2.00 GiB of memory; account lab: MaxTRES, one job, is 1.00 GiB of memory; nearest: nodes=1",
    ),
    "too-little": (
        enforced(accounting(part=Limits(min_tres={"gres/gpu": 32})), qos="part"),
        [],
        "the job asks for 16 GPUs; QOS part of partition gpu wants at least 32 GPUs (MinTRES)",
    ),
    "no-gpus-where-some-are-wanted": (
        enforced(accounting(part=Limits(min_tres={"gres/gpu": 1})), qos="part"),
        ["cluster.gpu_request=none"],
        "the job asks for 0 GPUs; QOS part of partition gpu wants at least 1 GPU (MinTRES)",
    ),
    "qos-with-a-reservation": (
        enforced(dataclasses.replace(accounting(), qos={"normal": Qos("normal", Limits(), ("RequiresReservation",))})),
        [],
        "cluster.reservation=null: QOS normal takes jobs with a reservation only",
    ),
    "no-jobs-at-all": (
        enforced(accounting(shared=Limits(group_jobs=0))),
        [],
        "account lab allows no job at all (GrpJobs=0)",
    ),
}


@pytest.mark.parametrize("name", ACCOUNTED)
def test_accounting_refuses(name: str) -> None:
    where, words, expected = ACCOUNTED[name]
    assert expected in "\n".join(problems(where, *words))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (enforced(accounting()), []),
        (enforced(accounting(normal=Limits(max_wall_s=7200), lab=Limits(max_wall_s=60))), ["cluster.time=2:00:00"]),
        (
            enforced(accounting(part=Limits(max_wall_s=60), long=Limits(max_wall_s=10**7)), qos="part"),
            ["cluster.qos=long", "cluster.time=9-0"],
        ),
        (enforced(accounting(normal=Limits(max_wall_s=60))), []),
        (enforced(accounting(normal=Limits(group_tres={"gres/gpu": 64}), lab=Limits(group_tres={"gres/gpu": 1}))), []),
        (dataclasses.replace(enforced(accounting(normal=Limits(max_tres={"node": 1}))), enforce=frozenset()), []),
        (enforced(accounting(science=Limits(max_wall_s=1, max_tres={"node": 1}))), ["cluster.time=1:00:00"]),
    ],
    ids=[
        "nothing-set",
        "qos-before-account",
        "qos-over-the-partitions",
        "slurm-fills-the-time-in",
        "qos-group-before-account",
        "nothing-enforced",
        "only-group-limits-of-accounts-above",
    ],
)
def test_accounting_lets_pass(where: Site, words: list[str]) -> None:
    assert problems(where, *words) == []


def test_a_sweep_larger_than_a_submit_limit_is_a_warning() -> None:
    where = dataclasses.replace(enforced(accounting(normal=Limits(max_submit=5))), max_job_count=100)
    need = request_need(held(where).slurm)
    (warning,) = sweep_warnings(need, 6, where)
    assert "a sweep of 6 points: QOS normal (MaxSubmitJobs) allows 5 jobs" in warning
    assert len(sweep_warnings(need, 101, where)) == 2
    assert sweep_warnings(need, 5, where) == []


# --- after a refusal ---------------------------------------------------------------------------------------

HINTS = {
    "sbatch: error: invalid partition specified: nosuch": "partitions (cluster.partition=NAME): known: gpu, old",
    "Batch job submission failed: Invalid account or account/partition combination specified": "your accounts",
    "Batch job submission failed: Invalid qos specification": "QOS of your account (cluster.qos=NAME): known: long, normal",
    "sbatch: error: Invalid generic resource (gres) specification": "gpu has gpu:a100:8 a node; old has gpu:v100:4 a node",
    "Batch job submission failed: Invalid feature specification": "features (cluster.constraint): a100, eth, ib",
    "Requested time limit is invalid (missing or exceeds some limit)": "gpu allows 1-00:00:00; QOS normal allows 1:00:00",
    "Node count specification invalid": "partition gpu has 16 nodes, at most 8 a job",
    "Requested node configuration is not available": "nodes of partition gpu: 16 of 96 CPUs, 1,465 GiB, 8 GPUs",
    "Invalid node name specified": "nodes: gpu0-00",
    "Requested reservation is invalid": "reservations (cluster.reservation): there is none",
    "Invalid license specification": "licenses of the site: matlab:10",
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)": "QOS normal: MaxWall 1 h",
    "error: QOSMaxSubmitJobPerUserLimit": "QOS normal: MaxWall 1 h, MaxSubmitJobs 5",
}


@pytest.mark.parametrize("words", HINTS)
def test_a_refusal_gets_the_sites_names(words: str) -> None:
    where = enforced(accounting(normal=Limits(max_wall_s=3600, max_submit=5)), max_nodes=8)
    where = dataclasses.replace(where, licenses=("matlab:10",))
    assert HINTS[words] in site_hint(words, held(where).slurm, where)


def test_a_refusal_that_names_nothing_and_a_site_that_said_nothing_get_no_hint() -> None:
    request = held(SITE).slurm
    assert site_hint("job_submit.lua: please read the wiki", request, SITE) == ""
    for words in HINTS:
        assert site_hint(words, request, Site()) == ""


def test_long_lists_are_cut() -> None:
    assert short_list(f"n{index}" for index in range(100)).endswith("n7, ... (100)")
