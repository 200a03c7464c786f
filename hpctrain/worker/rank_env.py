"""Who a rank is, and the environment it needs: pure functions of the variables that Slurm or submitit set in its task.

Ranks are computed here, inside the task, from the step's variables: text that the batch script expands is the same on all
nodes. Nothing has a default that would let a rank train alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hpctrain.record.identity import attempt_number, job_id_of
from hpctrain.units import counted
from hpctrain.worker.end_reasons import RankEnvironmentError, WorldSizeError

if TYPE_CHECKING:
    from hpctrain.config.schema import DeviceKind

LOCAL_MASTER_ADDR = "127.0.0.1"
FIRST_PORT, LAST_PORT = 15000, 30000
"""Below the ports that Linux hands out by itself (32768 and up)."""

STEP_NODELIST = "SLURM_STEP_NODELIST"
_SLURM_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_TASKS_PER_NODE",
    STEP_NODELIST,
    "SLURMD_NODENAME",
    "SLURM_JOB_ID",
)
_LOCAL_VARIABLES = (
    "SUBMITIT_LOCAL_GLOBALID",
    "SUBMITIT_LOCAL_NTASKS",
    "SUBMITIT_LOCAL_LOCALID",
    "SUBMITIT_LOCAL_NODEID",
    "SUBMITIT_LOCAL_JOB_NUM_NODES",
    "SUBMITIT_LOCAL_JOB_ID",
)
_AZUREML_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "AZUREML_RUN_ID",
)
"""Of each process of ``distribution: pytorch``. Source: Azure Machine Learning, Distributed GPU training guide (SDK v2)."""
# Left-overs of other launchers. DeepSpeed asserts that OMPI_COMM_WORLD_LOCAL_RANK equals LOCAL_RANK (runtime/engine.py), and
# takes addresses from AzureML's and SageMaker's variables (comm/comm.py); a foreign TORCHELASTIC agent has its own store.
_FOREIGN_PREFIXES = ("OMPI_", "PMI", "TORCHELASTIC_")
_FOREIGN_NAMES = ("AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV", "DLTS_JOB_ID")


@dataclass(frozen=True)
class RankEnv:
    """One rank's place in the job, and where rank 0 listens."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    node_name: str
    master_addr: str
    master_addr_source: str
    master_port: int
    master_port_source: str
    attempt: int
    job_id: str


def step_nodelist(environment: Mapping[str, str]) -> str:
    """The compressed node list of this job step.

    The step's list, not the job's, and never SLURM_LAUNCH_NODE_IPADDR: that is where srun was typed.
    """
    _require(environment, (STEP_NODELIST,), "srun")
    return environment[STEP_NODELIST]


def slurm_rank_env(
    environment: Mapping[str, str], user_env: Mapping[str, str], run_name: str, first_host: str
) -> RankEnv:
    """The rank of a Slurm task.

    Args:
        environment: the task's variables.
        user_env: ``env`` of the configuration; its MASTER_ADDR and MASTER_PORT win.
        run_name: name of the run folder.
        first_host: first node of the step's list, the one of task 0.

    Raises:
        RankEnvironmentError: a variable is missing, no number, or does not fit the others.
    """
    _require(environment, _SLURM_VARIABLES, "srun")
    node_rank = _number(environment, "SLURM_NODEID")
    job_id = job_id_of(environment)
    attempt = attempt_number(environment)
    addr, addr_source = _master_addr(user_env, first_host, f"first node of {STEP_NODELIST}")
    port, port_source = _master_port(user_env, run_name, job_id, attempt)
    rank_env = RankEnv(
        rank=_number(environment, "SLURM_PROCID"),
        world_size=_number(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environment, "SLURM_LOCALID"),
        local_world_size=_tasks_of_node(environment["SLURM_STEP_TASKS_PER_NODE"], node_rank),
        node_rank=node_rank,
        num_nodes=_number(environment, "SLURM_STEP_NUM_NODES"),
        node_name=environment["SLURMD_NODENAME"],
        master_addr=addr,
        master_addr_source=addr_source,
        master_port=port,
        master_port_source=port_source,
        attempt=attempt,
        job_id=job_id,
    )
    _check_ranges(rank_env)
    if rank_env.rank == 0 and rank_env.node_name != first_host and "MASTER_ADDR" not in user_env:
        raise RankEnvironmentError(
            f"task 0 runs on {rank_env.node_name}, but the first node of {STEP_NODELIST}={environment[STEP_NODELIST]} is"
            f" {first_host}; leave --distribution=arbitrary out of cluster.srun_args or set"
            f" env.MASTER_ADDR={rank_env.node_name}"
        )
    return rank_env


def local_rank_env(
    environment: Mapping[str, str], user_env: Mapping[str, str], run_name: str, host_name: str
) -> RankEnv:
    """The rank of a task of submitit's local executor, which has one node.

    Raises:
        RankEnvironmentError: a variable is missing, no number, or does not fit the others.
    """
    _require(environment, _LOCAL_VARIABLES, "submitit's local executor")
    job_id = job_id_of(environment)
    addr, addr_source = _master_addr(user_env, LOCAL_MASTER_ADDR, "cluster.kind=local")
    attempt = attempt_number(environment)
    port, port_source = _master_port(user_env, run_name, job_id, attempt)
    rank_env = RankEnv(
        rank=_number(environment, "SUBMITIT_LOCAL_GLOBALID"),
        world_size=_number(environment, "SUBMITIT_LOCAL_NTASKS"),
        local_rank=_number(environment, "SUBMITIT_LOCAL_LOCALID"),
        local_world_size=_number(environment, "SUBMITIT_LOCAL_NTASKS"),
        node_rank=_number(environment, "SUBMITIT_LOCAL_NODEID"),
        num_nodes=_number(environment, "SUBMITIT_LOCAL_JOB_NUM_NODES"),
        node_name=host_name,
        master_addr=addr,
        master_addr_source=addr_source,
        master_port=port,
        master_port_source=port_source,
        attempt=attempt,
        job_id=job_id,
    )
    _check_ranges(rank_env)
    return rank_env


def azureml_rank_env(
    environment: Mapping[str, str], user_env: Mapping[str, str], layout: tuple[int, int], host_name: str
) -> RankEnv:
    """The rank of a process of an AzureML command job.

    Args:
        environment: the process's variables.
        user_env: ``env`` of the configuration; its MASTER_ADDR and MASTER_PORT win.
        layout: nodes of the plan, and ranks of each: the launcher tells neither.
        host_name: name of this machine.

    Raises:
        RankEnvironmentError: a variable is missing, no number, or does not fit the others.
        WorldSizeError: the job has not the plan's nodes and ranks.
    """
    _require(environment, _AZUREML_VARIABLES, "AzureML with distribution.type=pytorch")
    num_nodes, local_world_size = layout
    world_size = _number(environment, "WORLD_SIZE")
    if world_size != num_nodes * local_world_size:
        raise WorldSizeError(
            f"world size: AzureML started {world_size} ranks, the plan has {counted(num_nodes)} x {local_world_size} ="
            f" {num_nodes * local_world_size}"
        )
    rank, local_rank, node_rank = (_number(environment, name) for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))
    if rank != node_rank * local_world_size + local_rank:
        raise RankEnvironmentError(
            f"RANK={rank}: NODE_RANK={node_rank} x {local_world_size} + LOCAL_RANK={local_rank} is"
            f" {node_rank * local_world_size + local_rank}; resources.instance_count and"
            " distribution.process_count_per_instance must be those of the plan"
        )
    addr, addr_source = _master_addr(user_env, environment["MASTER_ADDR"], "AzureML")
    user_port = "MASTER_PORT" in user_env
    port = _port(user_env if user_port else environment)
    rank_env = RankEnv(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        num_nodes=num_nodes,
        node_name=host_name,
        master_addr=addr,
        master_addr_source=addr_source,
        master_port=port,
        master_port_source="env.MASTER_PORT" if user_port else "AzureML",
        attempt=attempt_number(environment),
        job_id=job_id_of(environment),
    )
    _check_ranges(rank_env)
    return rank_env


def variables_to_set(
    rank_env: RankEnv,
    environment: Mapping[str, str],
    user_env: Mapping[str, str],
    device: DeviceKind,
    affinity_cpus: int,
    collective_timeout_min: int,
) -> dict[str, str]:
    """The variables of this rank, to be set before torch is imported.

    Args:
        rank_env: who the rank is.
        environment: the task's variables.
        user_env: ``env`` of the configuration; it wins, except over the rank's identity.
        device: what the plan trains on.
        affinity_cpus: CPUs that the process may run on.
        collective_timeout_min: minutes that a collective waits for the last rank.

    Raises:
        RankEnvironmentError: ``env`` sets a rank variable, or the task sees no GPU of its own.
    """
    identity = _identity_variables(rank_env, environment, device)
    taken = sorted(set(user_env) & set(identity))
    if taken:
        raise RankEnvironmentError(
            f"env.{taken[0]}={user_env[taken[0]]}: every rank has its own value, computed in its task; leave it out"
        )
    caches = PurePosixPath(cache_dir(rank_env, environment))
    return {
        "MASTER_ADDR": rank_env.master_addr,
        "MASTER_PORT": str(rank_env.master_port),
        "OMP_NUM_THREADS": str(_num_threads(rank_env, environment, affinity_cpus)),
        "DS_ACCELERATOR": device,
        "DEEPSPEED_TIMEOUT": str(collective_timeout_min),
        "TORCH_EXTENSIONS_DIR": str(caches / "torch_extensions"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        **user_env,
        **identity,
    }


def _identity_variables(rank_env: RankEnv, environment: Mapping[str, str], device: DeviceKind) -> dict[str, str]:
    """All that torch and DeepSpeed want to know about the rank; if one is missing DeepSpeed looks for MPI."""
    return {
        "RANK": str(rank_env.rank),
        "WORLD_SIZE": str(rank_env.world_size),
        "LOCAL_RANK": str(device_index(rank_env, environment) if device == "cuda" else rank_env.local_rank),
        "LOCAL_WORLD_SIZE": str(rank_env.local_world_size),
        "LOCAL_SIZE": str(rank_env.local_world_size),
        "NODE_RANK": str(rank_env.node_rank),
        "CROSS_RANK": str(rank_env.node_rank),
        "CROSS_SIZE": str(rank_env.num_nodes),
    }


def variables_to_unset(environment: Mapping[str, str]) -> list[str]:
    """Left-overs of other launchers in the environment.

    >>> variables_to_unset({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3", "PATH": "/bin"})
    ['OMPI_COMM_WORLD_RANK', 'PMIX_RANK']
    """
    return sorted(name for name in environment if name.startswith(_FOREIGN_PREFIXES) or name in _FOREIGN_NAMES)


def cache_dir(rank_env: RankEnv, environment: Mapping[str, str]) -> str:
    """A node-local folder for compiled code, one per job and never below HOME.

    Under HOME all nodes would compile into one network folder, whose file locks are not shared between nodes, and a killed
    compile leaves a lock there for which torch waits without end (torch/utils/file_baton.py).
    """
    home = PurePosixPath(environment.get("HOME", "/"))
    # At least one of the last two is not below HOME, unless HOME is the root and says nothing.
    candidates = [PurePosixPath(name) for name in (environment.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp")]
    folder = next(
        folder
        for folder in candidates
        if folder.is_absolute() and (home == PurePosixPath("/") or not folder.is_relative_to(home))
    )
    return str(folder / f"hpctrain-{environment.get('USER', 'user')}-{rank_env.job_id}-{rank_env.attempt}")


def device_index(rank_env: RankEnv, environment: Mapping[str, str]) -> int:
    """The CUDA index of this rank's GPU, relative to what the task sees.

    With ``--gpus-per-task=1`` every task sees one GPU, which is number 0 for it («invalid device ordinal» otherwise).

    Raises:
        RankEnvironmentError: the task sees some GPUs, but none for its local rank.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return rank_env.local_rank
    num_visible = len([name for name in visible.split(",") if name])
    if num_visible == 1:
        return 0
    if rank_env.local_rank >= num_visible:
        raise RankEnvironmentError(
            f"CUDA_VISIBLE_DEVICES={visible}: node {rank_env.node_name} shows {num_visible} GPUs to local rank"
            f" {rank_env.local_rank} of {rank_env.local_world_size}; hardware.gpus_per_node and the GPUs asked for must agree"
        )
    return rank_env.local_rank


def _num_threads(rank_env: RankEnv, environment: Mapping[str, str], affinity_cpus: int) -> int:
    """Threads of one rank: Slurm's CPUs per task, else an equal share of the CPUs that the process may use."""
    per_task = environment.get("SLURM_CPUS_PER_TASK")
    if per_task is not None:
        return min(int(per_task), affinity_cpus)
    return max(1, affinity_cpus // rank_env.local_world_size)


def _require(environment: Mapping[str, str], names: tuple[str, ...], starter: str) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise RankEnvironmentError(
            f"{', '.join(missing)}: missing in this task's environment; ranks must be started by {starter}, one task per GPU"
        )


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    if not value.isascii() or not value.isdigit():
        raise RankEnvironmentError(f"{name}={value}: must be a whole number")
    return int(value)


def _tasks_of_node(text: str, node_rank: int) -> int:
    """Tasks of one node from Slurm's ``2(x3),1``."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, repeat = part.partition("(x")
        try:
            counts += [int(count)] * (int(repeat.rstrip(")")) if repeat else 1)
        except ValueError:
            raise RankEnvironmentError(
                f"SLURM_STEP_TASKS_PER_NODE={text}: {part!r} is not in Slurm's form 2(x3)"
            ) from None
    if node_rank >= len(counts):
        raise RankEnvironmentError(
            f"SLURM_NODEID={node_rank}: SLURM_STEP_TASKS_PER_NODE={text} has {len(counts)} nodes"
        )
    return counts[node_rank]


def _check_ranges(rank_env: RankEnv) -> None:
    pairs = (
        ("rank", rank_env.rank, "world size", rank_env.world_size),
        ("local rank", rank_env.local_rank, "tasks of the node", rank_env.local_world_size),
        ("node rank", rank_env.node_rank, "number of nodes", rank_env.num_nodes),
    )
    for name, value, limit_name, limit in pairs:
        if value >= limit:
            raise RankEnvironmentError(f"{name} {value} must be below the {limit_name}, {limit}")


def _master_addr(user_env: Mapping[str, str], computed: str, computed_from: str) -> tuple[str, str]:
    """Address and where it came from."""
    if "MASTER_ADDR" not in user_env:
        return computed, computed_from
    if not user_env["MASTER_ADDR"].strip():
        raise RankEnvironmentError("env.MASTER_ADDR: must not be empty; leave it out for the first node of the step")
    return user_env["MASTER_ADDR"], "env.MASTER_ADDR"


def _master_port(user_env: Mapping[str, str], run_name: str, job_id: str, attempt: int) -> tuple[int, str]:
    """Port and where it came from. All ranks compute the same one, and jobs that share a host differ."""
    if "MASTER_PORT" in user_env:
        return _port(user_env), "env.MASTER_PORT"
    number = zlib.crc32(f"{run_name}\0{job_id}\0{attempt}".encode()) % (LAST_PORT - FIRST_PORT)
    return FIRST_PORT + number, "run folder, job id and attempt"


def _port(variables: Mapping[str, str]) -> int:
    port = _number(variables, "MASTER_PORT")
    if not 1 <= port <= 65535:
        raise RankEnvironmentError(f"env.MASTER_PORT={port}: must be from 1 to 65535")
    return port
