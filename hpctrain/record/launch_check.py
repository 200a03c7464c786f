"""What a launch check measured: ``launch_check.json``, written by rank 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeCheck:
    """One node as its own ranks saw it; moments are on rank 0's clock."""

    name: str
    node_rank: int
    ranks: tuple[int, ...]
    cpus: int
    """CPUs that the rank that spoke for the node may run on."""
    node_cpus: int
    host_memory_bytes: int
    """Of the node, whatever limit the job has."""
    gpus_visible: int | None
    """GPUs that the variables show to the node's ranks together; None: nothing is said of GPUs."""
    gpus: tuple[str, ...]
    """Each GPU with its memory, by the driver; empty where there is no driver."""
    interfaces: tuple[str, ...]
    """Network interfaces that are up, without the loopback."""
    fabric: tuple[str, ...]
    """Ports of InfiniBand or RoCE adapters with state and rate."""
    python: str
    """Interpreter and version."""
    package: str
    """Folder of the code that runs, and its version."""
    clock_ahead_s: float
    """How far the node's clock is ahead of rank 0's; negative: behind."""
    clock_error_s: float
    """Half of the round trip that measured it."""
    first_rank_s: float
    """From the start of the job to the first line of the node's first rank."""
    last_rank_s: float
    barrier_s: float
    """One barrier of the node's ranks among themselves, the median."""


@dataclass(frozen=True)
class LaunchCheck:
    """One launch check, whole."""

    schema_version: int
    attempt: int
    job_id: str
    world_size: int
    """Ranks that met."""
    started_at_s: float
    """Unix time at which the job's batch script, or what takes its place, began."""
    met_s: float
    """From then to the moment when all ranks had met."""
    barrier_s: float
    """One barrier of all ranks, the median."""
    barriers: int
    """How many were measured."""
    master_addr: str
    master_port: int
    nodes: tuple[NodeCheck, ...]
    findings: tuple[str, ...]
    """What is not as it should be, one sentence each, with the node's name."""


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def summary_text(result: LaunchCheck) -> str:
    """The check for people: a few lines, then the findings."""
    nodes = result.nodes
    first, last = min(node.first_rank_s for node in nodes), max(node.last_rank_s for node in nodes)
    slowest = max(nodes, key=lambda node: node.last_rank_s)
    skewed = max(nodes, key=lambda node: abs(node.clock_ahead_s))
    visible = [node.gpus_visible for node in nodes if node.gpus_visible is not None]
    gpus = f"{sum(visible)} GPUs shown" if visible else "no GPUs shown"
    local = max(nodes, key=lambda node: node.barrier_s)
    who = f"{_counted(result.world_size, 'rank')} on {_counted(len(nodes), 'node')}"
    lines = [
        f"launch check: {who} met at {result.master_addr}:{result.master_port}"
        f" {result.met_s:.1f} s after the job began; {gpus}",
        f"  ranks started {first:.1f} s to {last:.1f} s after the job began, the last on {slowest.name}",
        f"  barrier of all ranks {result.barrier_s * 1e3:.1f} ms (median of {result.barriers}); of one node's ranks at most"
        f" {local.barrier_s * 1e3:.1f} ms, on {local.name}",
        f"  clocks within {abs(skewed.clock_ahead_s) * 1e3:.1f} ms of rank 0's, the farthest on {skewed.name}"
        f" (measured to {skewed.clock_error_s * 1e3:.1f} ms)",
    ]
    return "\n".join(lines + [f"  finding: {text}" for text in result.findings])
