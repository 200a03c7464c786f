"""Runs inside an allocation: what keeps them out of it."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.launch.here import here_problems
from hpctrain.plan.run_plan import build_run_plan

ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}


@pytest.mark.parametrize(
    ("words", "shell", "expected"),
    [
        ((), ALLOCATION, ""),
        (("launch.mode=here",), ALLOCATION, ""),
        (("launch.mode=here", "nodes=3", "cluster.cpus_per_task=2"), ALLOCATION, ""),
        (("launch.mode=here",), {}, "salloc --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=2 first"),
        (
            ("launch.mode=here", "nodes=4"),
            ALLOCATION,
            "nodes=4: is more than the 3 of the allocation, job 7; nearest: 3",
        ),
        (
            ("launch.mode=here", "cluster.cpus_per_task=3"),
            ALLOCATION,
            "2 ranks a node need 6 CPUs, and the allocation, job 7,",
        ),
        (("launch.mode=here", "cluster=local"), ALLOCATION, "is a Slurm allocation, and this is cluster=local"),
    ],
    ids=["another mode", "fits", "fits all", "no allocation", "nodes", "CPUs", "no Slurm"],
)
def test_what_does_not_fit_the_allocation_is_refused(
    words: tuple[str, ...], shell: dict[str, str], expected: str
) -> None:
    (point,) = compose_points(["model=tiny", "cluster=sandbox", *words], multirun=False)
    problems = here_problems(point.config, build_run_plan(point.config).slurm, shell)
    assert "\n".join(map(str, problems)) == expected if not expected else expected in "\n".join(map(str, problems))
