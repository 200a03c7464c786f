"""Accounts, QOS and their limits: a request that they refuse, and the names that a refusal gets beside it."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.plan.site.check import sweep_warnings
from hpctrain.plan.site.hint import site_hint
from hpctrain.plan.site.limits import (
    Account,
    Accounting,
    Association,
    Limits,
    Qos,
    Site,
)
from hpctrain.plan.site.need import request_need
from hpctrain.plan.site.nodes import short_list
from tests.plan.sites import (
    GPU,
    OLD,
    SITE,
    held,
    problems,
    site,
)

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


def test_names_of_qos_and_accounts_have_no_case() -> None:
    assert problems(enforced(accounting()), "cluster.account=LAB", "cluster.qos=Long") == []


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
