"""Requests held against a site: each impossible wish is refused with the nearest possible one."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.plan.site.limits import (
    Gres,
    NodeGroup,
    Site,
)
from tests.plan.sites import (
    A100,
    CPU,
    GPU,
    OLD,
    SITE,
    THIN,
    V100,
    held,
    partition,
    problems,
    site,
)

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


@pytest.mark.parametrize("name", [name for name, (_, _, texts) in REFUSED.items() if texts[0].startswith("nodes=")])
def test_the_nearest_number_of_nodes_is_one_that_the_partition_takes(name: str) -> None:
    where, words, _ = REFUSED[name]
    offered = [problem.fix for problem in held(where, *words).problems if problem.key == "nodes"]
    for fix in (fix for fix in offered if fix.startswith("nearest: ")):
        nodes = fix.removeprefix("nearest: ").removeprefix("nodes=")
        others = [word for word in words if not word.startswith("nodes=")]
        left = [problem for problem in held(where, *others, f"nodes={nodes}").problems if problem.key == "nodes"]
        assert left == [], fix


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
