"""Run folders made from code, and real ranks on them, started as submitit's local executor starts them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hpctrain.config.build import build_config
from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.files import parse_record, read_record, write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile
from hpctrain.record.schema import AttemptRecord, NodeSample, StepRecord
from tests.fork_server import ENGINE, Process, fork_server

SOURCE = Path(__file__).parents[2]
RANK_COMMAND = "import sys; from hpctrain.worker.job import run; run(sys.argv[1])"
DEADLINE_S = 240

GPT: dict[str, Any] = {
    "name": "test-gpt",
    "architecture": "gpt",
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "vocab_size": 260,
    "max_seq_len": 32,
    "init_std": 0.05,
}
LLAMA: dict[str, Any] = GPT | {
    "name": "test-llama",
    "architecture": "llama",
    "num_kv_heads": 2,
    "ffn_hidden_size": 88,
    "tie_embeddings": False,
}
# Small thresholds: with the defaults every parameter of a test's model would stay whole on every rank.
ZERO: dict[str, Any] = {
    "param_persistence_threshold": 100,
    "prefetch_bucket_size": 5000,
    "reduce_bucket_size": 5000,
    "allgather_bucket_size": 5000,
}


def make_config(
    num_ranks: int = 2,
    model: Mapping[str, Any] = GPT,
    env: Mapping[str, Any] | None = None,
    zero_stage: int = 3,
    offload: bool = False,
    precision: str = "fp32",
    data: Mapping[str, Any] | None = None,
    degrees: Mapping[str, int] | None = None,
    **training: Any,
) -> Config:
    """A configuration of one node whose global batch of 8 short sequences is the same for 1, 2 and 4 ranks.

    ``degrees``: such as tensor_parallel_size; the rest of the ranks are data parallel.
    """
    tier = "cpu" if offload else "none"
    defaults = {
        "name": "test",
        "num_steps": 20,
        "global_batch_size": 8,
        "micro_batch_size": 8 * math.prod((degrees or {}).values()) // num_ranks,
        "learning_rate": 5e-3,
        "min_learning_rate": 5e-4,
        "warmup_steps": 3,
        "log_interval": 4,
        "activation_checkpointing": "none",
        "start_timeout_min": 1,
    }
    return build_config(
        {
            "nodes": 1,
            "model": dict(model),
            "parallelism": {
                "name": f"zero{zero_stage}",
                "zero_stage": zero_stage,
                "offload_optimizer": tier,
                "offload_param": tier if zero_stage == 3 else "none",
                **ZERO,
                **(degrees or {}),
            },
            "hardware": {
                "name": "cpu",
                "device": "cpu",
                "gpu": "none",
                "gpus_per_node": num_ranks,
                "cpu": "any",
                "cpu_cores_per_node": None,
                "host_memory_gib": None,
                "default_precision": precision,
            },
            "cluster": {"name": "local", "kind": "local"},
            "training": defaults | training,
            "data": dict(data or {"name": "synthetic", "kind": "synthetic"}),
            "run": {},
            "env": dict(env or {}),
        }
    )


def make_run(folder: Path, config: Config) -> RunPaths:
    """A run folder with configuration and plan, whose name has a blank and a dollar sign."""
    plan = build_run_plan(config)
    assert not plan.problems, plan.problems
    return write_run(folder, config, plan)


def write_run(folder: Path, config: Config, plan: RunPlan) -> RunPaths:
    run = RunPaths(folder / "a run $x")
    run.attempts.mkdir(parents=True)
    run.logs.mkdir()
    write_text(run.config, config_text(config))
    write_text(run.plan, plan.to_json())
    write_text(run.token, "test\n")
    return run


def rank_environment(rank: int, num_ranks: int, job_id: str) -> dict[str, str]:
    """What submitit's local controller adds to a rank's environment."""
    return {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_NTASKS": str(num_ranks),
        "SUBMITIT_LOCAL_NODEID": "0",
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "SUBMITIT_LOCAL_LOCALID": str(rank),
        "SUBMITIT_LOCAL_GLOBALID": str(rank),
        "SUBMITIT_LOCAL_JOB_ID": job_id,
        "CUDA_VISIBLE_DEVICES": "",
    }


@dataclass
class Ranks:
    """Running ranks of one job; leaving the ``with`` block ends those that are left."""

    run: RunPaths
    processes: list[Process]
    scratch: str
    """Their TMPDIR."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        # The guard of a killed rank may be removing its folder at this moment.
        shutil.rmtree(self.scratch, ignore_errors=True)

    def wait(self) -> list[int]:
        """The exit codes by rank."""
        deadline = time.monotonic() + DEADLINE_S
        return [process.wait(timeout=max(1.0, deadline - time.monotonic())) for process in self.processes]

    def log(self, rank: int = 0) -> str:
        return (self.run.logs / f"rank-{rank}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self.log(rank)}" for rank in range(len(self.processes)))

    def wait_for_steps(self, number: int) -> None:
        """Returns when ``steps.jsonl`` has that many lines."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.run.steps.exists() or self.run.steps.read_bytes().count(b"\n") < number:
            assert time.monotonic() < deadline, self.logs()
            assert all(process.poll() is None for process in self.processes), self.logs()
            time.sleep(0.02)


def start_ranks(
    run: RunPaths,
    num_ranks: int = 2,
    changes: Mapping[int, Mapping[str, str | None]] | None = None,
    command: str = RANK_COMMAND,
    forked: bool = True,
) -> Ranks:
    """Starts the ranks of a job.

    Args:
        run: the run folder.
        num_ranks: how many.
        changes: by rank, variables that differ from what submitit sets; None removes one.
        command: Python text of a rank.
        forked: from a process that has imported torch, DeepSpeed and the worker; else each imports them itself, as it is
            where jobs run, for tests about the start, the process and its end.
    """
    scratch = tempfile.mkdtemp(prefix="hpctrain-test-")
    processes: list[Process] = []
    for rank in range(num_ranks):
        variables: dict[str, str | None] = {
            **os.environ,
            **rank_environment(rank, num_ranks, job_id=f"test{os.getpid()}"),
            "PYTHONPATH": str(SOURCE),
            "TMPDIR": scratch,
            **((changes or {}).get(rank, {})),
        }
        environment = {name: value for name, value in variables.items() if value is not None}
        # A file, not a pipe: a full pipe of one rank would block them all.
        with (run.logs / f"rank-{rank}.log").open("wb") as log:
            if forked:
                server = fork_server(ENGINE)
                processes.append(server.start(command, [str(run.root)], environment, log))
            else:
                words = [sys.executable, "-c", command, str(run.root)]
                processes.append(subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT))
    return Ranks(run, processes, scratch)


def train(folder: Path, config: Config) -> list[StepRecord]:
    """The step records of a run that must end well."""
    run = make_run(folder, config)
    num_ranks = config.hardware.gpus_per_node
    with start_ranks(run, num_ranks) as ranks:
        codes = ranks.wait()
        assert codes == [0] * num_ranks, ranks.logs()
    assert read_record(run.attempt(1), AttemptRecord).state == "completed"
    return step_records(run)


def step_records(run: RunPaths) -> list[StepRecord]:
    return read_steps(run.steps)


def read_steps(path: Path) -> list[StepRecord]:
    steps = StepsFile(path)
    records = list(steps.new_records())
    assert steps.damaged_lines == 0
    return records


def read_samples(path: Path) -> list[NodeSample]:
    """All lines of ``nodes/<name>.jsonl``, which must all be samples."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [parse_record(json.loads(line), NodeSample, str(path)) for line in lines]


def losses(records: list[StepRecord]) -> list[float]:
    """The losses of records that must all be finite and in order from step 1."""
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    values = [record.loss for record in records if record.loss is not None]
    assert len(values) == len(records)
    return values


def failure_of(run: RunPaths) -> AttemptRecord:
    return read_record(run.failure(1), AttemptRecord)
