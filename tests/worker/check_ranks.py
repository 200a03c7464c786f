"""Ranks of a launch check as real processes on this machine, with the variables that Slurm sets in each task."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctrain.record.files import read_record
from hpctrain.record.launch_check import LaunchCheck
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import read_attempts
from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord

TIMEOUT_S = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass
class Check:
    """A run folder with a plan of ``num_nodes`` nodes, and the ranks that were started in it."""

    run: RunPaths
    num_nodes: int
    gpus_per_node: int
    port: int = field(default_factory=free_port)
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def plan(self, **changes: Any) -> None:
        self.run.attempts.mkdir(parents=True)
        self.run.logs.mkdir()
        plan = {
            "payload": "launch_check",
            "cluster_kind": "slurm",
            "device": "cpu",
            "layout": {"num_nodes": self.num_nodes, "gpus_per_node": self.gpus_per_node},
            "slurm": {"environment": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}},
            "start_timeout_min": 1,
        }
        self.run.plan.write_text(json.dumps(plan | changes), encoding="utf-8")

    def variables(self, rank: int, num_nodes: int, tasks: int) -> dict[str, str]:
        return {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(num_nodes * tasks),
            "SLURM_LOCALID": str(rank % tasks),
            "SLURM_NODEID": str(rank // tasks),
            "SLURM_STEP_NUM_NODES": str(num_nodes),
            "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x{num_nodes})",
            "SLURM_STEP_NODELIST": f"n[1-{num_nodes}]" if num_nodes > 1 else "n1",
            "SLURMD_NODENAME": f"n{rank // tasks + 1}",
            "SLURM_JOB_ID": str(self.port),
            "HPCTRAIN_ATTEMPT": "1",
        }

    def start(
        self,
        ranks: Iterable[int] | None = None,
        num_nodes: int | None = None,
        tasks: int | None = None,
        env: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """Starts ranks of a step of ``num_nodes`` nodes (default: the plan's); ``env`` has further variables by rank."""
        num_nodes, tasks = num_nodes or self.num_nodes, tasks or self.gpus_per_node
        for rank in range(num_nodes * tasks) if ranks is None else ranks:
            variables = self.variables(rank, num_nodes, tasks) | dict((env or {}).get(rank, {}))
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-u", "-m", "hpctrain.launch.rank_entry", str(self.run.root)],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def open_attempt(self, started_at_s: float) -> None:
        record = AttemptRecord(SCHEMA_VERSION, 1, "7", "running", started_at_s=started_at_s, host="n1")
        self.run.attempt(1).write_text(json.dumps(record.__dict__), encoding="utf-8")

    def codes(self) -> dict[int, int]:
        return {rank: process.wait(TIMEOUT_S) for rank, process in self.processes.items()}

    def log(self, rank: int) -> str:
        return self.processes[rank].communicate(timeout=TIMEOUT_S)[0]

    def result(self) -> LaunchCheck:
        return read_record(self.run.launch_check, LaunchCheck)

    def attempt(self) -> AttemptRecord:
        (attempt,) = read_attempts(self.run)
        return attempt

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()
