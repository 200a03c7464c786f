"""The start of a rank, before torch is imported: who it is, what it runs, and the variables it needs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import hpctrain
from hpctrain.config.schema import Config
from hpctrain.plan.job.own_variables import DATA_PATH_VARIABLE
from hpctrain.plan.job.variables import rank_environment
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.files import write_record
from hpctrain.record.open_attempt import with_opening
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config, read_plan
from hpctrain.record.schema import AttemptRecord
from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.master_address import check_address
from hpctrain.worker.node_checks import check_node
from hpctrain.worker.nodelist import first_host
from hpctrain.worker.nvme_folder import make_folder
from hpctrain.worker.rank_env import (
    RankEnv,
    azureml_rank_env,
    cache_dir,
    local_rank_env,
    slurm_rank_env,
    step_nodelist,
    variables_to_set,
    variables_to_unset,
)
from hpctrain.worker.run_view import check_code, wait_for_run_folder

_END_WAIT_S, _END_PAUSE_S = 60.0, 2.0


@dataclass(frozen=True)
class Rank:
    """What a rank knows before torch is imported."""

    paths: RunPaths
    config: Config
    plan: RunPlan
    env: RankEnv
    versions: dict[str, str]
    started_at_s: float
    """Unix time of the process's first line."""
    nvme: Path | None
    """This rank's own folder on its node's NVMe; None: nothing is moved there."""

    def write_attempt(self, record: AttemptRecord) -> None:
        """Replaces the attempt's record; rank 0 does it for all."""
        if self.env.rank == 0:
            path = self.paths.attempt(self.env.attempt)
            write_record(path, with_opening(record, path))

    def write_end(self, record: AttemptRecord) -> None:
        """``write_attempt`` for the end marker: a full device is waited for, and what was trained is not lost for it."""
        started = time.monotonic()
        while True:
            try:
                self.write_attempt(record)
                return
            except OSError as error:
                if time.monotonic() - started > _END_WAIT_S:
                    print(f"hpctrain: {error.filename}: {error.strerror}; no end marker is left", flush=True)
                    return
            time.sleep(_END_PAUSE_S)


def start_rank(paths: RunPaths, started_at_s: float, remove_at_end: Callable[[str], object]) -> Rank:
    """Reads the run folder, computes the rank and sets its variables in this process.

    Args:
        paths: the run folder.
        started_at_s: Unix time of the process's first line.
        remove_at_end: called with each folder that is made on the node, before anything is refused that comes after it. That for
            compiled code is named by all ranks of a node: which of them makes it first, or is refused, is open.

    Raises:
        RecordError: the run folder cannot be read.
        RankEnvironmentError: the task's variables make no rank, or its node is not fit for it.
    """
    wait_for_run_folder(paths)
    config, plan = with_mounted_data(read_config(paths), os.environ), read_plan(paths)
    user_env = rank_environment(config)
    rank_env = _rank_env(plan, user_env, paths.root.name)
    versions = _versions()
    check_code(paths, versions, rank_env.local_rank == 0)
    affinity_cpus = len(os.sched_getaffinity(0))
    variables = variables_to_set(
        rank_env, os.environ, user_env, plan.device, affinity_cpus, config.training.collective_timeout_min
    )
    caches = cache_dir(rank_env, os.environ)
    for name in variables_to_unset(os.environ):
        del os.environ[name]
    os.environ.update(variables)
    print(
        f"rank {rank_env.rank} of {rank_env.world_size}, local rank {rank_env.local_rank} of {rank_env.local_world_size} on"
        f" node {rank_env.node_name}; {affinity_cpus} CPUs, OMP_NUM_THREADS={variables['OMP_NUM_THREADS']};"
        f" MASTER_ADDR={rank_env.master_addr} (from {rank_env.master_addr_source}),"
        f" MASTER_PORT={rank_env.master_port} (from {rank_env.master_port_source})",
        flush=True,
    )
    _make_cache_dir(caches)
    remove_at_end(caches)
    if rank_env.local_rank == 0:
        print(f"hpctrain: node {rank_env.node_name}: compiled code is kept in {caches} till the end", flush=True)
    check_address(rank_env)
    check_node(paths, config, plan, rank_env)
    nvme = make_folder(plan.nvme, rank_env) if plan.nvme is not None and plan.payload == "train" else None
    if nvme is not None:
        remove_at_end(str(nvme))
    return Rank(paths, config, plan, rank_env, versions, started_at_s, nvme)


def _rank_env(plan: RunPlan, user_env: Mapping[str, str], run_name: str) -> RankEnv:
    if plan.cluster_kind == "slurm":
        return slurm_rank_env(os.environ, user_env, run_name, first_host(step_nodelist(os.environ)))
    if plan.cluster_kind == "azureml":
        layout = (plan.layout.num_nodes, plan.layout.gpus_per_node)
        return azureml_rank_env(os.environ, user_env, layout, platform.node())
    return local_rank_env(os.environ, user_env, run_name, platform.node())


def with_mounted_data(config: Config, environment: Mapping[str, str]) -> Config:
    """The configuration with ``data.path`` where this node sees it; AzureML mounts it somewhere else than was submitted."""
    path = environment.get(DATA_PATH_VARIABLE)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, path=path)) if path else config


def _versions() -> dict[str, str]:
    """What this rank runs, without importing it."""
    return {
        "python": platform.python_version(),
        "hpctrain": hpctrain.__version__,
        "torch": importlib.metadata.version("torch"),
        "deepspeed": importlib.metadata.version("deepspeed"),
    }


def _make_cache_dir(folder: str) -> None:
    """Makes the folder for compiled code; libraries are loaded from it, so one that another user has put there is refused."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    owner = os.lstat(folder).st_uid
    if owner != os.getuid() or os.path.islink(folder):
        raise RankEnvironmentError(
            f"{folder}: belongs to user {owner}, or is a link; remove it, or set TMPDIR in cluster.setup"
        )
