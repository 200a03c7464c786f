"""Which points of a sweep share a task array: those that ask Slurm for the same and differ in their run folder only."""

from __future__ import annotations

import dataclasses
import shlex
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from hpctrain.config.schema import Config
from hpctrain.plan.job.batch_script import ScriptTarget, TaskArray, sbatch_script
from hpctrain.plan.job.slurm_request import SlurmRequest, slurm_safe_name
from hpctrain.plan.site.accounts import submit_limit
from hpctrain.plan.site.limits import Site
from hpctrain.plan.site.need import asked_partitions, request_need

_SLURMS_ARRAY_SIZE = 1001
"""MaxArraySize where the site does not set it. Source: slurm.conf(5)."""


def request_shape(request: SlurmRequest) -> Hashable:
    """Equal for points that can be tasks of one array: the text of their batch scripts, but for name and folder."""
    neutral = dataclasses.replace(request, job_name="")
    return sbatch_script(neutral, ScriptTarget(TaskArray("", 0, ""), ""))


def point_shape(config: Config, request: SlurmRequest) -> Hashable:
    """Equal for points that one call of sbatch can submit; secrets are in its environment, not in the script.

    An allocation for all points has as many nodes as the largest of them.
    """
    if config.launch.sweep == "one_allocation":
        request = dataclasses.replace(request, num_nodes=1)
    env = config.env
    return request_shape(request), config.cluster.inherit_env, tuple(sorted((key, str(env[key])) for key in env))


def group_points(shapes: Sequence[Hashable], largest: Mapping[Hashable, int]) -> list[tuple[int, ...]]:
    """Indices of the points of each group, by their first point; a shape has at most ``largest`` of them in one.

    >>> group_points(["a", "b", "a", "a"], {"a": 2, "b": 2})
    [(0, 2), (1,), (3,)]
    """
    by_shape: dict[Hashable, list[int]] = defaultdict(list)
    for index, shape in enumerate(shapes):
        by_shape[shape].append(index)
    groups = [
        tuple(indices[start : start + largest[shape]])
        for shape, indices in by_shape.items()
        for start in range(0, len(indices), largest[shape])
    ]
    return sorted(groups)


def largest_array(site: Site | None, request: SlurmRequest) -> int:
    """How many tasks one array may have here.

    Slurm counts every task as a job of the user, so an array above the submit limit is never taken, a smaller one is when
    others have ended.

    Args:
        site: None: not asked.
        request: what each task asks for; its account, partition and QOS select the limits.
    """
    if site is None:
        return _SLURMS_ARRAY_SIZE
    need = request_need(request)
    most = [site.max_array_size or _SLURMS_ARRAY_SIZE]
    for partition in asked_partitions(need, site):
        if (limit := submit_limit(need, partition, site)) is not None:
            most.append(limit[0])
    return max(1, min(most))


def array_spec(num_tasks: int, max_running: int | None) -> str:
    """Value of --array.

    >>> array_spec(16, None), array_spec(16, 4), array_spec(4, 8)
    ('0-15', '0-15%4', '0-3')
    """
    throttle = f"%{max_running}" if max_running is not None and max_running < num_tasks else ""
    return f"0-{num_tasks - 1}{throttle}"


def array_request(requests: Sequence[SlurmRequest], sweep_name: str) -> SlurmRequest:
    """What the array asks for: what all of its points do, under their common name, or the sweep's."""
    names = {request.job_name for request in requests}
    return dataclasses.replace(requests[0], job_name=names.pop() if len(names) == 1 else slurm_safe_name(sweep_name))


def allocation_request(requests: Sequence[SlurmRequest], sweep_name: str) -> SlurmRequest:
    """What one job asks for in which all points run one after another: the nodes of the largest."""
    return dataclasses.replace(
        array_request(requests, sweep_name), num_nodes=max(request.num_nodes for request in requests)
    )


def allocation_script(directives_of: str, points: Sequence[tuple[SlurmRequest, str]]) -> str:
    """A batch script that runs those of its points, on the first nodes of its allocation, one after another.

    A point that fails does not keep the others; one that is complete is passed over when the job starts again.

    Args:
        directives_of: a batch script with the right directives.
        points: what each asks for, and its run folder, which holds its own batch script.
    """
    directives = [line for line in directives_of.splitlines() if line.startswith("#")]
    lines = [
        *directives,
        "",
        "stop=",
        "trap 'stop=1' TERM",
        "code=0",
        "run_point() {",
        '    [ -z "$stop" ] || return 0',
        '    export SLURM_NNODES="$1" SLURM_JOB_NUM_NODES="$1" SLURM_NTASKS="$2" SLURM_NPROCS="$2"',
        '    bash "$3/submission.sh" < /dev/null >> "$3/logs/batch.log" 2>&1 || code=$?',
        "}",
        "",
        *(
            f"run_point {request.num_nodes} {request.num_nodes * request.tasks_per_node} {shlex.quote(run_dir)}"
            for request, run_dir in points
        ),
        'exit "$code"',
        "",
    ]
    return "\n".join(lines)
