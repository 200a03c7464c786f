"""Warnings about a node's limits (cases 25, 32)."""

from __future__ import annotations

import resource
from dataclasses import replace

from hpctrain.worker.node_checks import cpu_warnings, memlock_warnings
from tests.worker.test_rank_env import SLURM, slurm


def test_fewer_cpus_than_planned() -> None:
    env = replace(slurm(SLURM), rank=0, node_name="n1")
    assert cpu_warnings([0, 1, 2, 3], 4, env) == []
    assert cpu_warnings([0], None, env) == []
    (text,) = cpu_warnings([0, 5], 8, env)
    assert text.startswith("rank 0 on node n1 may run on 2 CPUs (0,5), the plan has cpus_per_task=8")


def test_low_limit_of_locked_memory() -> None:
    assert memlock_warnings(65536, [], "n1") == []
    assert memlock_warnings(resource.RLIM_INFINITY, ["InfiniBand adapters"], "n1") == []
    assert memlock_warnings(2**30, ["InfiniBand adapters"], "n1") == []
    (text,) = memlock_warnings(65536, ["parallelism.offload with pin_memory=true", "InfiniBand adapters"], "n1")
    assert "node n1: locked memory is limited to 64 KiB (ulimit -l), less than 1.00 GiB" in text
    assert "pin_memory=true and InfiniBand adapters lock memory" in text
