"""What is looked at on each node before the ranks meet: limits, processors, memory, network, disk, other users of the GPUs.

What would make the run wrong or hang ends it here, with the node's name; what only makes it slow or likely to fail later is a
warning in the rank's log. Free of torch.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.paths import RunPaths
from hpctrain.units import GIB, gib, number_ranges
from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.gpu_tenants import foreign_tenants
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.socket_names import SOCKET_VARIABLES, check_socket_names, interfaces_up

if TYPE_CHECKING:
    from hpctrain.worker.host_memory import HostMemory

_SMALL_LOCKED_BYTES = 2**30
"""Below it registering the buffers of RDMA or of an offloaded optimizer fails. A choice: sites set 64 KiB, 8 MiB or no limit."""
_SMALL_DISK_BYTES = 2**30
_SMALL_DISK_FILES = 1000
_OTHERS_SPEAK_S = 5.0
_FABRIC = Path("/sys/class/infiniband")


def check_node(paths: RunPaths, config: Config, plan: RunPlan, env: RankEnv) -> None:
    """Looks at this node as this rank; prints warnings.

    Raises:
        RankEnvironmentError: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME fits none of the node's interfaces, or the node has less
            memory than the plan needs.
    """
    check_interfaces(env)
    warnings = cpu_warnings(sorted(os.sched_getaffinity(0)), plan.slurm.cpus_per_task, env)
    if env.rank == 0:
        print(f"hpctrain: rank 0 may run on CPUs {number_ranges(sorted(os.sched_getaffinity(0)))}", flush=True)
        warnings += _disk_warnings(paths.root)
    if env.local_rank == 0:
        locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        print(f"hpctrain: node {env.node_name}: locked memory limit {_limit_text(locked)}", flush=True)
        warnings += memlock_warnings(locked, _memlock_needs(config), env.node_name)
        if plan.device == "cuda":
            warnings += foreign_tenants(os.environ, env.node_name)
        if plan.payload == "train":
            warnings += _memory_checks(plan, env.node_name)
    for warning in warnings:
        print(f"hpctrain: warning: {warning}", flush=True)


def _memory_checks(plan: RunPlan, node: str) -> list[str]:
    # With psutil, which ranks that do not train do without.
    from hpctrain.worker.host_memory import host_memory, memory_groups

    try:
        memory = host_memory(memory_groups())
    except (OSError, ValueError, KeyError) as error:  # of a control group; no reason to end a run
        return [f"node {node}: its memory cannot be read, and the plan is not held against it: {error}"]
    return memory_warnings(plan, memory, node)


def memory_warnings(plan: RunPlan, memory: HostMemory, node: str) -> list[str]:
    """Whether the node, or what a control group leaves of it, has the memory that the plan's estimate says.

    The submission knows what the hardware states, and of a Slurm site what its nodes have; here it is measured. What could
    never fit ends the run, before the kernel ends some process of the node; what others use now may be free again.

    Args:
        plan: one that trains.
        memory: as this rank's job may use it.
        node: this node.

    Raises:
        RankEnvironmentError: all of it is less than the estimate, and nobody forced the plan.
    """
    needed, total, free = plan.memory.host_bytes_per_node, memory.total_bytes, memory.total_bytes - memory.used_bytes
    if needed <= free:
        return []
    rule = f"memory.host={gib(needed)}: the plan's estimate for the ranks of a node"
    if needed <= total:
        return [f"{rule}; node {node} has {gib(free)} of its {gib(total)} free now"]
    short = f"{rule}; node {node} has {gib(total)} for this job, short by {gib(needed - total)}"
    if any(problem.key == "memory.host" for problem in plan.problems):
        return [short]
    raise RankEnvironmentError(
        f"{short}; nearest: a smaller training.micro_batch_size or model, or more nodes; hardware.host_memory_gib="
        f"{math.floor(10 * total / GIB) / 10} has the plan look for what fits, and --force then submits all the same"
    )


def check_interfaces(env: RankEnv) -> None:
    """Raises RankEnvironmentError if a variable names interfaces that this node does not have."""
    if any(os.environ.get(name) for name in SOCKET_VARIABLES):
        problem = check_socket_names(os.environ, interfaces_up(), env.node_name)
        if problem:
            print(f"hpctrain: {problem}", flush=True)
            # The first rank to leave has Slurm end the others, and each node is to say which interfaces it has.
            time.sleep(_OTHERS_SPEAK_S)
            raise RankEnvironmentError(problem)


def cpu_warnings(affinity: Sequence[int], cpus_per_task: int | None, env: RankEnv) -> list[str]:
    """Whether the task got the CPUs of the plan: since Slurm 22.05 a step no longer takes them over from its job."""
    if cpus_per_task is None or len(affinity) >= cpus_per_task:
        return []
    return [
        f"rank {env.rank} on node {env.node_name} may run on {len(affinity)} CPUs ({number_ranges(affinity)}), the plan has"
        f" cpus_per_task={cpus_per_task}: data loading and an offloaded optimizer will be slow"
    ]


def memlock_warnings(locked_bytes: int, needs: Sequence[str], node: str) -> list[str]:
    """A low limit of locked memory where something needs it.

    Args:
        locked_bytes: soft limit of this process; ``resource.RLIM_INFINITY``: none.
        needs: what would lock memory.
        node: this node.
    """
    if not needs or locked_bytes == resource.RLIM_INFINITY or locked_bytes >= _SMALL_LOCKED_BYTES:
        return []
    return [
        f"node {node}: locked memory is limited to {_limit_text(locked_bytes)} (ulimit -l), less than"
        f" {gib(_SMALL_LOCKED_BYTES)}, and {' and '.join(needs)} lock memory: «Cannot allocate memory» may follow; have"
        " LimitMEMLOCK=infinity set for slurmd, or submit from a shell with ulimit -l unlimited"
    ]


def _memlock_needs(config: Config) -> list[str]:
    parallelism = config.parallelism
    is_offloading = (parallelism.offload_optimizer, parallelism.offload_param) != ("none", "none")
    # On a CPU nothing is pinned, see ds_config; the buffers of NVMe are held against the limit in nvme_folder.
    is_pinning = is_offloading and parallelism.pin_memory and config.hardware.device == "cuda"
    needs = ["parallelism.offload_* with parallelism.pin_memory=true"] if is_pinning else []
    return needs + (["InfiniBand adapters"] if _FABRIC.is_dir() and any(_FABRIC.iterdir()) else [])


def _limit_text(locked_bytes: int) -> str:
    return "unlimited" if locked_bytes == resource.RLIM_INFINITY else f"{locked_bytes / 1024:,.0f} KiB"


def _disk_warnings(root: Path) -> list[str]:
    usage, files = shutil.disk_usage(root), os.statvfs(root)
    warnings = []
    if usage.free < _SMALL_DISK_BYTES:
        warnings.append(f"{root}: {gib(usage.free)} of its file system are free; logs and records may be lost")
    if files.f_files and files.f_favail < _SMALL_DISK_FILES:
        warnings.append(f"{root}: its file system has room for {files.f_favail} more files")
    return warnings
