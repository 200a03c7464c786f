"""Requests that a site takes: what is left out comes from it and is told, and what may go wrong is a warning."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.plan.changes.cheapest import is_short_of_memory
from hpctrain.plan.site.limits import (
    NodeGroup,
    Reservation,
)
from tests.plan.sites import (
    A100,
    GPU,
    H100,
    SITE,
    held,
    partition,
    problems,
    site,
)


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
    by_cpu = held(SITE, "cluster.extra.mem_per_cpu=1M")
    assert "cluster.extra.mem-per-cpu gives 96.0 MiB a node" in "\n".join(by_cpu.warnings)
    stated = held(SITE, "cluster.memory_per_node=1M")
    assert [problem.key for problem in stated.problems] == ["memory.host"]
    assert "cluster.memory_per_node=1M" in stated.problems[0].rule
    assert not [text for text in stated.warnings if "gives" in text]
    assert not [text for text in held(low, "cluster.memory_per_node=0").warnings if "Slurm gives" in text]


def test_nodes_without_the_memory_that_the_plan_needs_are_a_problem_of_memory() -> None:
    p = partition("p", NodeGroup(dataclasses.replace(A100, memory_mib=64), 4), is_default=True)
    (problem,) = held(site(p)).problems
    assert (problem.kind, problem.key) == ("memory", "memory.host")
    assert "those of partition p have 64.0 MiB, short by" in str(problem)
    assert held(site(p)).blocking_problems(force=True) == ()
    assert not is_short_of_memory(held(site(p))), "the plan itself fits, so no change of it is looked for"
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
