"""What rank 0 makes of a launch check: the attempt's record, ``launch_check.json``, the findings, and the verdict."""

from __future__ import annotations

import collections
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import hpctrain
from hpctrain.plan.layout import Layout
from hpctrain.record.files import write_record
from hpctrain.record.launch_check import LaunchCheck, NodeCheck, summary_text
from hpctrain.record.open_attempt import with_opening
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord, NodeRecord
from hpctrain.units import gib
from hpctrain.worker.check_plan import CheckPlan
from hpctrain.worker.end_reasons import EXIT_CODES, RankEnvironmentError
from hpctrain.worker.node_facts import gpus_of_node
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.roll_call import NUM_BARRIERS, RollCall, Seat
from hpctrain.worker.world import World, check_world

_CLOCK_LIMIT_S = 1.0
_SAME_MEMORY = 0.02
"""Share by which the memory of equal nodes may differ: firmware keeps some."""
_NUM_NAMED = 8


def conclude(paths: RunPaths, plan: CheckPlan, env: RankEnv, roll_call: RollCall, met_at_s: float) -> None:
    """Rank 0 from the meeting to the end marker.

    Raises:
        LostRankError, StoppedBySignalError: see ``RollCall``.
        RankEnvironmentError: a node shows fewer GPUs than the plan trains on.
        WorldSizeError: the ranks that met are not those of the plan.
    """
    own = roll_call.seats[env.node_rank].ranks[env.rank]
    started = _start_marker(paths, env, own["started_at_s"], roll_call.seats)
    met_s = met_at_s - started.started_at_s
    barriers_s = roll_call.measure()
    result = _result(env, roll_call.seats, started, met_s, barriers_s)
    write_record(paths.launch_check, result)
    print(summary_text(result), flush=True)
    check_world(World(result.world_size, started.nodes), Layout(plan.num_nodes, plan.gpus_per_node))
    _check_gpus(result, plan)
    num_findings = len(result.findings)
    completed = dataclasses.replace(
        started,
        state="completed",
        ended_at_s=time.time(),
        end_reason="completed",
        exit_code=EXIT_CODES["completed"],
        setup_time_s=met_s,
        message=f"{num_findings} findings, the first: {result.findings[0]}" if num_findings else "",
    )
    write_record(paths.attempt(env.attempt), completed)
    roll_call.dismiss()


def _start_marker(paths: RunPaths, env: RankEnv, rank_started_at_s: float, seats: dict[int, Seat]) -> AttemptRecord:
    """All ranks have met: the attempt's record with those who are there."""
    record = AttemptRecord(
        schema_version=SCHEMA_VERSION,
        attempt=env.attempt,
        job_id=env.job_id,
        state="running",
        started_at_s=rank_started_at_s,
        world_size=sum(len(seat.ranks) for seat in seats.values()),
        nodes=tuple(NodeRecord(seat.name, tuple(sorted(seat.ranks)), seat.facts["cpus"]) for seat in _in_order(seats)),
        master_addr=env.master_addr,
        master_port=env.master_port,
        versions={"python": platform.python_version(), "hpctrain": hpctrain.__version__},
    )
    path = paths.attempt(env.attempt)
    record = with_opening(record, path)
    write_record(path, record)
    return record


def _in_order(seats: dict[int, Seat]) -> list[Seat]:
    return [seats[node_rank] for node_rank in sorted(seats)]


def _result(
    env: RankEnv, seats: dict[int, Seat], started: AttemptRecord, met_s: float, barriers_s: Sequence[float]
) -> LaunchCheck:
    nodes = tuple(_node_check(seat, started.started_at_s) for seat in _in_order(seats))
    return LaunchCheck(
        schema_version=SCHEMA_VERSION,
        attempt=env.attempt,
        job_id=env.job_id,
        world_size=sum(len(node.ranks) for node in nodes),
        started_at_s=started.started_at_s,
        met_s=met_s,
        barrier_s=statistics.median(barriers_s),
        barriers=NUM_BARRIERS,
        master_addr=env.master_addr,
        master_port=env.master_port,
        nodes=nodes,
        findings=findings(nodes),
    )


def _node_check(seat: Seat, job_started_at_s: float) -> NodeCheck:
    starts = [rank["started_at_s"] - seat.clock_ahead_s - job_started_at_s for rank in seat.ranks.values()]
    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in seat.facts.items()
    }
    return NodeCheck(
        name=seat.name,
        node_rank=seat.node_rank,
        ranks=tuple(sorted(seat.ranks)),
        gpus_visible=gpus_of_node(rank["gpus_shown"] for rank in seat.ranks.values()),
        clock_ahead_s=seat.clock_ahead_s,
        clock_error_s=seat.clock_error_s,
        first_rank_s=min(starts),
        last_rank_s=max(starts),
        barrier_s=statistics.median(seat.barriers_s) if seat.barriers_s else 0.0,
        **facts,
    )


def _check_gpus(result: LaunchCheck, plan: CheckPlan) -> None:
    """Raises RankEnvironmentError, naming nodes, if one shows fewer GPUs than the plan trains on."""
    needed = plan.gpus_per_node
    if plan.device != "cuda":
        return
    short = [node for node in result.nodes if _num_gpus(node) < needed]
    if short:
        raise RankEnvironmentError(
            f"hardware.gpus_per_node={needed}: {_nodes_text([node.name for node in short])} shows"
            f" {', '.join(sorted({str(_num_gpus(node)) for node in short}))} GPUs; see launch_check.json"
        )


def _num_gpus(node: NodeCheck) -> int:
    return len(node.gpus) if node.gpus_visible is None else node.gpus_visible


def findings(nodes: Sequence[NodeCheck]) -> tuple[str, ...]:
    """What is not as on most nodes, and clocks that are wrong; the node is named."""
    views: tuple[tuple[str, Callable[[NodeCheck], str]], ...] = (
        ("GPUs shown to its ranks", lambda node: "none said" if node.gpus_visible is None else str(node.gpus_visible)),
        ("GPUs by the driver", lambda node: ", ".join(_counted(node.gpus)) or "none"),
        ("CPUs of a rank", lambda node: str(node.cpus)),
        ("CPUs", lambda node: str(node.node_cpus)),
        ("network interfaces", lambda node: ", ".join(node.interfaces) or "none"),
        ("fabric ports", lambda node: ", ".join(node.fabric) or "none"),
        ("interpreter", lambda node: node.python),
        ("code", lambda node: node.package),
    )
    found = [text for what, view in views for text in _odd_ones(nodes, what, view)]
    found += _odd_memory(nodes)
    found += [
        f"{count} nodes say that they are {name}: training tells nodes by their names"
        for name, count in collections.Counter(node.name for node in nodes).items()
        if count > 1
    ]
    found += [
        f"node {node.name}: clock is {abs(node.clock_ahead_s):.1f} s {'ahead of' if node.clock_ahead_s > 0 else 'behind'}"
        " rank 0's; moments of different nodes cannot be compared"
        for node in nodes
        if abs(node.clock_ahead_s) - node.clock_error_s > _CLOCK_LIMIT_S
    ]
    return tuple(found)


def _odd_ones(nodes: Sequence[NodeCheck], what: str, view: Callable[[NodeCheck], str]) -> list[str]:
    """A sentence for each value that not most nodes have."""
    by_value: dict[str, list[str]] = collections.defaultdict(list)
    for node in nodes:
        by_value[view(node)].append(node.name)
    usual = max(by_value, key=lambda value: len(by_value[value]))
    return [
        f"{_nodes_text(names)}: {what}: {value}; the {'other' if len(by_value) == 2 else 'most usual'}"
        f" {len(by_value[usual])} {'have' if len(by_value[usual]) > 1 else 'has'}: {usual}"
        for value, names in by_value.items()
        if value != usual
    ]


def _odd_memory(nodes: Sequence[NodeCheck]) -> list[str]:
    usual = statistics.median_high([node.host_memory_bytes for node in nodes])
    return [
        f"node {node.name}: host memory: {gib(node.host_memory_bytes)}; usual here: {gib(usual)}"
        for node in nodes
        if abs(node.host_memory_bytes - usual) > _SAME_MEMORY * usual
    ]


def _counted(names: Sequence[str]) -> list[str]:
    return [f"{count} x {name}" for name, count in collections.Counter(names).items()]


def _nodes_text(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NUM_NAMED]) + (f", ... {len(names)} in all" if len(names) > _NUM_NAMED else "")
    return f"{'node' if len(names) == 1 else 'nodes'} {shown}"
