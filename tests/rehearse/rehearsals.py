"""Plans to rehearse, and real rehearsals of them in processes of their own, forked from one that has imported torch."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

from hpctrain.config.build import build_config
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.rehearse import conduct as conducting
from hpctrain.rehearse.request import Request
from hpctrain.rehearse.result import Rehearsal, Way
from tests.fork_server import TORCH, ForkedProcess, fork_server

WORLD_SIZE = 16
GPT: dict[str, Any] = {
    "name": "rehearsed-gpt",
    "architecture": "gpt",
    "num_layers": 2,
    "hidden_size": 128,
    "num_heads": 4,
    "vocab_size": 512,
    "max_seq_len": 64,
}
"""Every parameter's size is a multiple of 16 ranks: no padding."""
NO_WINDOWS: dict[str, Any] = {
    "param_persistence_threshold": 0,
    "prefetch_bucket_size": 0,
    "max_live_parameters": 1,
    "max_reuse_distance": 1,
}
"""ZeRO-3 gathers a block when it is needed, keeps nothing, and fetches nothing ahead: what it sends can be counted by hand."""
_GPU: dict[str, Any] = {
    "gpu_memory_gib": 80,
    "peak_tflops": {"bf16": 300, "fp16": 300},
    "gpu_memory_gb_per_s": 2000,
    "intra_node_gb_per_s": 300,
    "inter_node_gb_per_s": 200,
    "host_link_gb_per_s": 25,
    "host_memory_gb_per_s": 400,
}
"""None of its rates changes what a rehearsal does."""


def make_plan(
    zero_stage: int = 3,
    device: str = "cuda",
    nodes: int = 2,
    gpus_per_node: int = 8,
    model: Mapping[str, Any] = GPT,
    parallelism: Mapping[str, Any] | None = None,
    **training: Any,
) -> RunPlan:
    """A plan of 16 ranks, two sequences of 64 tokens each a micro-step, in bf16."""
    config = build_config(
        {
            "nodes": nodes,
            "model": dict(model),
            "parallelism": {"name": f"zero{zero_stage}", "zero_stage": zero_stage, **(parallelism or {})},
            "hardware": {
                "name": device,
                "device": device,
                "gpu": "any",
                "gpus_per_node": gpus_per_node,
                "cpu": "any",
                "cpu_cores_per_node": 8,
                "host_memory_gib": None,
                "default_precision": "bf16",
                **(_GPU if device == "cuda" else {}),
            },
            "cluster": {"name": "slurm", "kind": "slurm"} if device == "cuda" else {"name": "local", "kind": "local"},
            "training": {
                "name": "test",
                "num_steps": 2,
                "micro_batch_size": 2,
                "activation_checkpointing": "none",
                **training,
            },
            "data": {"name": "synthetic", "kind": "synthetic"},
            "run": {},
        }
    )
    plan = build_run_plan(config)
    assert not plan.problems, plan.problems
    return plan


def with_ds_config(plan: RunPlan, **zero: Any) -> RunPlan:
    """The plan with other keys in the ZeRO section, past our own rules."""
    section = plan.ds_config["zero_optimization"] | zero
    return dataclasses.replace(plan, ds_config=plan.ds_config | {"zero_optimization": section})


def make_request(plan: RunPlan, steps: int = 2, rank: int = 0) -> Request:
    return Request(
        plan=plan,
        num_layers=plan.model.num_layers,
        weight_decay=0.1,
        seed=1,
        rank=rank,
        steps=steps,
        device_way="cpu" if plan.device == "cpu" else "simulated_gpu",
        num_largest=0,
        answer="",
    )


def rehearse(plan: RunPlan, way: Way = "whole", steps: int = 2, rank: int = 0) -> Rehearsal:
    """The real thing; takes seconds."""
    return conduct([make_request(plan, steps, rank)], way)


def conduct(requests: Sequence[Request], way: Way = "whole") -> Rehearsal:
    """``hpctrain.rehearse.conduct`` with forked processes in the place of those that it starts."""
    with forked_children():
        return conducting.conduct(requests, way, lambda line: None)


@contextmanager
def forked_children() -> Iterator[None]:
    """Meanwhile the processes that ``conduct`` starts are forked."""
    stand_in = SimpleNamespace(Popen=_fork, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    with patch.object(conducting, "subprocess", stand_in):
        yield


def _fork(command: Sequence[str], stdin: int, stdout: int, stderr: IO[bytes], text: bool) -> ForkedProcess:
    module, request, _ = command[command.index("-m") + 1 :]
    assert (stdin, text) == (subprocess.DEVNULL, True)
    at_start = {name: os.environ[name] for name in ("MALLOC_PERTURB_",) if name in os.environ}
    server = fork_server(TORCH, **at_start)
    # The process ends with its parent, which is the server, as that does with this one.
    arguments = [request, str(server.pid)]
    return server.start(f"from {module} import main; main()", arguments, os.environ, stdout, stderr)


@cache
def rehearsal_of(case: str) -> Rehearsal:
    """One rehearsal a case, however many tests look at it."""
    return rehearse(CASES[case])


CASES: dict[str, RunPlan] = {
    "zero1": make_plan(1),
    "zero2, accumulation 2": make_plan(2, gradient_accumulation_steps=2),
    "zero3": make_plan(3, parallelism=NO_WINDOWS, activation_checkpointing="full"),
    "zero3, offload": make_plan(
        3, parallelism={"offload_optimizer": "cpu", "offload_param": "cpu", "reduce_bucket_size": 100_000}
    ),
    "cpu, zero3": make_plan(3, device="cpu", nodes=1, gpus_per_node=4, parallelism=NO_WINDOWS),
}
