"""What runs in every rank, from its first line to its exit code."""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hpctrain
from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, rank_environment
from hpctrain.record.code_version import changed_sources, source_digests
from hpctrain.record.files import create_record, write_record
from hpctrain.record.identity import attempt_number, job_id_of
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_config, read_plan
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord
from hpctrain.record.writer import StepWriter
from hpctrain.worker.end_reasons import EXIT_CODES, end_reason_of, failure_message
from hpctrain.worker.nodelist import first_host
from hpctrain.worker.rank_env import (
    RankEnv,
    cache_dir,
    local_rank_env,
    slurm_rank_env,
    step_nodelist,
    variables_to_set,
    variables_to_unset,
)
from hpctrain.worker.stop_signal import StopSignal

if TYPE_CHECKING:
    import torch


def run(run_dir: str) -> NoReturn:
    """Trains as one rank of the run in ``run_dir`` and ends the process with the exit code of its end reason."""
    started_at_s = time.time()
    faulthandler.enable()
    stop = StopSignal()
    stop.install()
    paths = RunPaths(Path(run_dir))
    exit_code = EXIT_CODES["completed"]
    try:
        _run_rank(paths, stop, started_at_s)
    # Whatever ends a rank, KeyboardInterrupt included, leaves its reason.
    except BaseException as error:
        traceback.print_exc()
        exit_code = _record_failure(paths, error, started_at_s)
    _leave(exit_code)


@dataclass(frozen=True)
class _Rank:
    """What a rank knows before torch is imported."""

    paths: RunPaths
    config: Config
    plan: RunPlan
    env: RankEnv
    versions: dict[str, str]
    started_at_s: float


def _run_rank(paths: RunPaths, stop: StopSignal, started_at_s: float) -> None:
    config, plan = read_config(paths), read_plan(paths)
    versions = _versions()
    _print_versions(paths, versions)
    user_env = rank_environment(config)
    rank_env = _rank_env(plan, user_env, paths.root.name)
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
    try:
        _train(_Rank(paths, config, plan, rank_env, versions, started_at_s), stop)
    finally:
        if rank_env.local_rank == 0:
            shutil.rmtree(caches, ignore_errors=True)


def _rank_env(plan: RunPlan, user_env: Mapping[str, str], run_name: str) -> RankEnv:
    if plan.cluster_kind == "slurm":
        return slurm_rank_env(os.environ, user_env, run_name, first_host(step_nodelist(os.environ)))
    return local_rank_env(os.environ, user_env, run_name, platform.node())


def _train(rank: _Rank, stop: StopSignal) -> None:
    """From the meeting of the ranks to the end marker."""
    # torch and DeepSpeed read the environment when they are imported.
    import torch

    from hpctrain.worker.data.batches import TokenBatches
    from hpctrain.worker.data.corpus import load_corpus
    from hpctrain.worker.engine import build_engine
    from hpctrain.worker.loop import train
    from hpctrain.worker.process_group import check_same_corpus, rank_device
    from hpctrain.worker.step_log import StepLog
    from hpctrain.worker.telemetry import node_telemetry

    config, plan, env = rank.config, rank.plan, rank.env
    training = config.training
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    device = rank_device(plan.device)
    record = _meet(rank, device, stop)
    with node_telemetry(rank.paths, env, device, training.telemetry_interval_s) as telemetry:
        corpus = load_corpus(config.data, plan.model.vocab_size, plan.batch.seq_len, training.seed)
        check_same_corpus(corpus.digest, env.node_name)
        stop.check_before_first_step()
        engine = build_engine(plan, training.weight_decay, training.seed, device)
        batches = TokenBatches(corpus.tokens, plan.batch, training.seed, env.rank, env.world_size)
        torch.distributed.barrier()
        stop.check_before_first_step()
        record = dataclasses.replace(record, setup_time_s=time.time() - rank.started_at_s)
        _write_attempt(rank, record)
        writer = StepWriter(rank.paths.steps) if env.rank == 0 else None
        log = StepLog(writer, env.attempt, plan.batch.tokens_per_step, device)
        if telemetry is not None:
            telemetry.follow(log)
        train(engine, plan, training, batches, log, stop)
    # A rank that leaves early would break the last collective of a slower one.
    torch.distributed.barrier()
    exit_code = EXIT_CODES["completed"]
    completed = dataclasses.replace(
        record, state="completed", ended_at_s=time.time(), end_reason="completed", exit_code=exit_code
    )
    _write_attempt(rank, completed)
    print("hpctrain: completed", flush=True)


def _meet(rank: _Rank, device: torch.device, stop: StopSignal) -> AttemptRecord:
    """Joins the other ranks, holds them against the plan, and leaves the start marker."""
    from hpctrain.worker.process_group import check_world, measure_world, start_process_group
    from hpctrain.worker.rendezvous import meet

    env = rank.env
    timeout_s = 60.0 * rank.config.training.start_timeout_min
    store = meet(env, timeout_s, rank.paths.failure(env.attempt), stop)
    start_process_group(store, env, device, 60.0 * rank.config.training.collective_timeout_min)
    world = measure_world(env, device)
    check_world(world, rank.plan.layout)
    record = AttemptRecord(
        schema_version=SCHEMA_VERSION,
        attempt=env.attempt,
        job_id=env.job_id,
        state="running",
        started_at_s=rank.started_at_s,
        world_size=world.size,
        nodes=world.nodes,
        master_addr=env.master_addr,
        master_port=env.master_port,
        versions=rank.versions,
    )
    _write_attempt(rank, record)
    return record


def _write_attempt(rank: _Rank, record: AttemptRecord) -> None:
    """The attempt's record is written by rank 0."""
    if rank.env.rank == 0:
        write_record(rank.paths.attempt(rank.env.attempt), record)


def _versions() -> dict[str, str]:
    """What this rank runs, without importing it."""
    return {
        "python": platform.python_version(),
        "hpctrain": hpctrain.__version__,
        "torch": importlib.metadata.version("torch"),
        "deepspeed": importlib.metadata.version("deepspeed"),
    }


def _print_versions(paths: RunPaths, versions: dict[str, str]) -> None:
    """The first line of the log, and one for each difference from what was recorded at submission."""
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"hpctrain rank: {sys.executable}, {told}", flush=True)
    if not paths.code.exists():
        return
    recorded: dict[str, Any] = json.loads(paths.code.read_text(encoding="utf-8"))
    here = {"interpreter": sys.executable, **versions}
    there = {"interpreter": recorded["interpreter"], **recorded["versions"]}
    for name, value in here.items():
        if there.get(name) != value:
            print(f"hpctrain: warning: {name} is {value} here, {there.get(name)} at submission", flush=True)
    changed = changed_sources(recorded["sources"], source_digests())
    if changed:
        print(f"hpctrain: warning: source changed since submission: {', '.join(changed)}", flush=True)


def _record_failure(paths: RunPaths, error: BaseException, started_at_s: float) -> int:
    """Leaves the failure record unless another rank was first; returns the exit code."""
    reason = end_reason_of(error)
    exit_code = EXIT_CODES[reason]
    # A signal comes from outside and a lost rank is another one: neither is this rank's failure.
    is_ours = reason not in ("signal", "killed")
    # The failure may be that RANK could not be computed.
    rank = os.environ.get("SUBMITIT_LOCAL_GLOBALID") or os.environ.get("SLURM_PROCID")
    record = AttemptRecord(
        schema_version=SCHEMA_VERSION,
        attempt=attempt_number(os.environ),
        job_id=job_id_of(os.environ),
        state="failed",
        started_at_s=started_at_s,
        ended_at_s=time.time(),
        end_reason=reason,
        exit_code=exit_code,
        message=failure_message(error),
        failed_rank=int(rank) if is_ours and rank and rank.isdigit() else None,
        failed_node=os.environ.get("SLURMD_NODENAME", platform.node()) if is_ours else None,
    )
    try:
        is_first = create_record(paths.failure(record.attempt), record)
    except OSError as write_error:
        print(f"hpctrain: {paths.failure(record.attempt)}: {write_error}; no failure record", flush=True)
        return exit_code
    place = "recorded as the first failure" if is_first else "another rank failed first"
    print(f"hpctrain: {reason}, exit code {exit_code} ({place}): {record.message}", flush=True)
    return exit_code


def _leave(exit_code: int) -> NoReturn:
    """Ends the process without finalizing Python.

    A gloo worker thread that drops the last reference of an asynchronous all-gather's tensor while the interpreter is
    finalizing aborts the process (about 1 run in 12), and a left-over thread would keep it for ever.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
