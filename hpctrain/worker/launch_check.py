"""``training=launch_check``: the ranks start, compute who they are, meet, count and measure themselves, and leave.

A new cluster, or the full size of a job, is tried in seconds: the way from sbatch to the last rank is the one of training, but
for torch. Light to import, since a thousand of it may start on one file system: readers that check every field are rank 0's.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from hpctrain.plan.job.nodelist import node_names
from hpctrain.record.identity import attempt_number
from hpctrain.worker.check_plan import CheckPlan, read_check_plan
from hpctrain.worker.end_reasons import EXIT_CODES, end_reason_of
from hpctrain.worker.meeting import Meeting
from hpctrain.worker.node_facts import gpus_shown, node_facts
from hpctrain.worker.node_seat import take_part
from hpctrain.worker.rank_env import (
    RankEnv,
    azureml_rank_env,
    device_index,
    local_rank_env,
    slurm_rank_env,
    step_nodelist,
)
from hpctrain.worker.stop_signal import StopSignal

_GRACE_S = 10.0
"""Rank 0 gives up first: it knows who is missing."""


def run(run_dir: str) -> NoReturn:
    """Runs one rank and ends the process with the exit code of its end reason."""
    started_at_s = time.time()
    stop = StopSignal()
    stop.install()
    exit_code = EXIT_CODES["completed"]
    try:
        _check(run_dir, stop, started_at_s)
    except SystemExit as leave:
        exit_code = int(leave.code or 0)
    # Whatever ends a rank leaves its reason.
    except BaseException as error:
        exit_code = _record(run_dir, error, started_at_s)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _check(run_dir: str, stop: StopSignal, started_at_s: float) -> None:
    run_dir = os.path.abspath(run_dir)
    plan = read_check_plan(run_dir)
    env = _rank_env(plan, os.path.basename(run_dir))
    if plan.device == "cuda":
        device_index(env, os.environ)
    if os.environ.get("NCCL_SOCKET_IFNAME") or os.environ.get("GLOO_SOCKET_IFNAME"):
        from hpctrain.worker.node_checks import check_interfaces

        check_interfaces(env)
    print(
        f"launch check: rank {env.rank} of {env.world_size}, local rank {env.local_rank} of {env.local_world_size} on node"
        f" {env.node_name}; MASTER_ADDR={env.master_addr} (from {env.master_addr_source}), MASTER_PORT={env.master_port}"
        f" (from {env.master_port_source})",
        flush=True,
    )
    own = {
        "rank": env.rank,
        "started_at_s": started_at_s,
        "gpus_shown": gpus_shown(os.environ),
    }
    meeting = Meeting(
        env,
        token=f"{os.path.basename(run_dir)}/{env.job_id}/{env.attempt}",
        stop=stop,
        failure=f"{run_dir}/attempts/{env.attempt}.failure.json",
        deadline=time.monotonic() + 60.0 * plan.start_timeout_min + (0.0 if env.rank == 0 else _GRACE_S),
    )
    if env.rank != 0:
        take_part(meeting, own, node_facts)
        return
    from hpctrain.worker.roll_call import RollCall

    roll_call = RollCall(meeting)
    roll_call.gather(own, node_facts())
    met_at_s = time.time()
    # Only now: the others need the processors to come here.
    from hpctrain.record.paths import RunPaths
    from hpctrain.worker.launch_check_result import conclude

    conclude(RunPaths(Path(run_dir)), plan, env, roll_call, met_at_s)
    print("hpctrain: completed", flush=True)


def _rank_env(plan: CheckPlan, run_name: str) -> RankEnv:
    if plan.cluster_kind == "slurm":
        nodelist = step_nodelist(os.environ)
        return slurm_rank_env(os.environ, plan.environment, run_name, _first_host(nodelist))
    if plan.cluster_kind == "azureml":
        layout = (plan.num_nodes, plan.gpus_per_node)
        return azureml_rank_env(os.environ, plan.environment, layout, os.uname().nodename)
    return local_rank_env(os.environ, plan.environment, run_name, os.uname().nodename)


def _first_host(nodelist: str) -> str:
    """By our own parser, and only where that cannot read it by scontrol: a thousand of it at once would be heavy."""
    try:
        return node_names(nodelist)[0]
    except ValueError:
        from hpctrain.worker.nodelist import first_host

        return first_host(nodelist)


def _record(run_dir: str, error: BaseException, started_at_s: float) -> int:
    """Leaves the failure record unless another rank was first; returns the exit code."""
    import traceback

    from hpctrain.record.paths import RunPaths

    traceback.print_exception(error)
    paths = RunPaths(Path(run_dir))
    if paths.failure(attempt_number(os.environ)).exists():
        reason = end_reason_of(error)
        print(f"hpctrain: {reason} (another rank failed first): {error}", flush=True)
        return EXIT_CODES[reason]
    from hpctrain.worker.rank_failure import record_failure

    return record_failure(paths, error, started_at_s)
