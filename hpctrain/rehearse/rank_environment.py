"""The environment of the rehearsed rank. Imports no torch, which reads it."""

from __future__ import annotations

import os

from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.result import CPU_WAYS, DeviceWay


def rank_environment(plan: RunPlan, rank: int, device_way: DeviceWay) -> dict[str, str]:
    """What torch and DeepSpeed read when they are imported, as ``worker.rank_env`` sets it for a rank of the job."""
    node_rank, local_rank = divmod(rank, plan.layout.gpus_per_node)
    return {
        "RANK": str(rank),
        # On a real GPU it is the number of the device, and one of those here is enough.
        "LOCAL_RANK": "0" if device_way == "real_gpu" else str(local_rank),
        "WORLD_SIZE": str(plan.layout.world_size),
        "LOCAL_WORLD_SIZE": str(plan.layout.gpus_per_node),
        "LOCAL_SIZE": str(plan.layout.gpus_per_node),
        "NODE_RANK": str(node_rank),
        "CROSS_RANK": str(node_rank),
        "CROSS_SIZE": str(plan.layout.num_nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # nobody listens or connects
        "DS_ACCELERATOR": "cpu" if device_way in CPU_WAYS else "cuda",
        "OMP_NUM_THREADS": str(_num_threads(plan)) if device_way == "real_gpu" else "1",
    }


def _num_threads(plan: RunPlan) -> int:
    """Those of a rank of the job, with which an optimizer on the host works, if this machine has as many."""
    here = len(os.sched_getaffinity(0))
    return min(here, plan.slurm.cpus_per_task or max(1, here // plan.layout.gpus_per_node))
