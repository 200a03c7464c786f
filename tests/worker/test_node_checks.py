"""A node's limits (cases 25, 32, 99)."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.paths import RunPaths
from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.host_memory import HostMemory
from hpctrain.worker.node_checks import check_node, cpu_warnings, memlock_warnings, memory_warnings
from tests.worker.run_folder import make_config
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


def test_memory_that_others_use_is_told_and_memory_that_is_not_there_ends_the_run() -> None:
    plan = build_run_plan(make_config())
    needed = plan.memory.host_bytes_per_node
    assert needed > 2**29
    assert memory_warnings(plan, HostMemory(2**30, needed + 2**30), "n1") == []
    (text,) = memory_warnings(plan, HostMemory(1, needed), "n1")
    assert text.startswith(
        f"memory.host={needed / 2**30:.2f} GiB: the plan's estimate for the ranks of a node; node n1 has"
    )
    assert text.endswith(" free now")
    rule = r"memory.host=.*; node n1 has 0.25 GiB for this job, short by .*; nearest: .* hardware.host_memory_gib=0.2 has the"
    with pytest.raises(RankEnvironmentError, match=rule):
        memory_warnings(plan, HostMemory(0, 2**28), "n1")


def test_a_plan_that_was_forced_is_warned_of_its_memory() -> None:
    config = make_config()
    plan = build_run_plan(replace(config, hardware=replace(config.hardware, host_memory_gib=0.25)))
    assert [problem.key for problem in plan.problems] == ["memory.host"]
    (text,) = memory_warnings(plan, HostMemory(0, 2**28), "n1")
    assert "for this job, short by" in text


def test_memory_that_cannot_be_read_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unread() -> NoReturn:
        raise OSError("no /proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", unread)
    config, env = make_config(), replace(slurm(SLURM), rank=1, local_rank=0, node_name="n1")
    check_node(RunPaths(tmp_path), config, build_run_plan(config), env)
    assert "hpctrain: warning: node n1: its memory cannot be read" in capsys.readouterr().out
