"""Run folders made by code, with step times that can be worked out by hand: inputs for tests, never measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.config.schema import (
    ClusterConfig,
    Config,
    DataConfig,
    HardwareConfig,
    ModelConfig,
    ParallelismConfig,
    RunConfig,
    TrainingConfig,
)
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.files import write_record, write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import (
    SCHEMA_VERSION,
    STEP_SCHEMA_VERSION,
    AttemptRecord,
    GpuSample,
    NodeSample,
    StepRecord,
)
from hpctrain.record.writer import StepWriter

TOY = ModelConfig("toy", "gpt", num_layers=2, hidden_size=64, num_heads=2, vocab_size=100, max_seq_len=32)
"""At 2 nodes of 4, micro batch 4: 32 sequences of 32 tokens = 1,024 tokens a step."""

GPU_NODE = HardwareConfig(
    "test_gpu",
    "cuda",
    gpu="made-up",
    gpus_per_node=4,
    cpu="any",
    cpu_cores_per_node=8,
    host_memory_gib=64,
    default_precision="bf16",
    gpu_memory_gib=16,
    peak_tflops={"bf16": 1e-3},
    sources={"peak_tflops": "made up, so that an MFU can be worked out by hand"},
)
CPU_NODE = HardwareConfig(
    "test_cpu", "cpu", gpu="none", gpus_per_node=2, cpu="any", cpu_cores_per_node=None, host_memory_gib=None,
    default_precision="fp32",
)  # fmt: skip


def toy_config(
    *,
    nodes: int = 2,
    model: ModelConfig = TOY,
    hardware: HardwareConfig = GPU_NODE,
    parallelism: ParallelismConfig = ParallelismConfig("zero3", zero_stage=3),  # noqa: B008 (frozen)
    micro_batch_size: int = 4,
    gradient_accumulation_steps: int = 1,
    num_steps: int = 10,
    seq_len: int | None = None,
    activation_checkpointing: Any = "none",
) -> Config:
    """A configuration of the toy model; everything that could be derived is stated."""
    return Config(
        nodes=nodes,
        model=model,
        parallelism=parallelism,
        hardware=hardware,
        cluster=ClusterConfig("test", "slurm"),
        training=TrainingConfig(
            "test",
            num_steps=num_steps,
            seq_len=seq_len,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            activation_checkpointing=activation_checkpointing,
        ),
        data=DataConfig("synthetic", "synthetic"),
        run=RunConfig(),
    )


@dataclass(frozen=True)
class Attempt:
    """One start: the time of each of its steps, and how it ended."""

    step_times_s: Sequence[float]
    first_step: int = 1
    end: dict[str, Any] | None = None
    """Fields of ``AttemptRecord`` other than those of a completed attempt."""


def _plan(config: Config) -> RunPlan:
    """The plan; the toy node's rates are below those of every GPU, which a plan refuses, so they are put in behind. Bandwidths it
    has none: nothing is predicted."""
    hardware, precision = config.hardware, config.precision
    peaks, achieved = (
        {name: max(1.0, rate) for name, rate in rates.items()}
        for rates in (hardware.peak_tflops, hardware.achievable_tflops)
    )
    believable = replace(hardware, peak_tflops=peaks, achievable_tflops=achieved)
    plan = build_run_plan(replace(config, hardware=believable))
    assert not plan.is_impossible, plan.problems
    return replace(
        plan,
        problems=tuple(problem for problem in plan.problems if problem.kind != "rate"),
        peak_tflops_per_gpu=hardware.peak_tflops.get(precision),
        achievable_tflops_per_gpu=hardware.achievable_tflops.get(precision),
    )


def make_run(
    folder: Path,
    config: Config | None = None,
    attempts: Sequence[Attempt] = (Attempt([2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),),
    **step_fields: Any,
) -> RunPaths:
    """Writes one run folder with the project's own writers.

    Loss falls as 4/step. The clock starts at 1,000 s and ten seconds pass before the first step of each attempt; an
    attempt ends with its last step.

    Args:
        folder: the run folder, made here.
        config: None: ``toy_config()``, planned as long as a completed last attempt makes it.
        attempts: in order; none: submitted and not started.
        step_fields: fields of every ``StepRecord`` that differ from a healthy one.
    """
    run = RunPaths(folder)
    run.attempts.mkdir(parents=True)
    last = attempts[-1] if attempts and (attempts[-1].end or {}).get("state", "completed") == "completed" else None
    num_steps = 10 if last is None else max(1, last.first_step + len(last.step_times_s) - 1)
    config = config or toy_config(num_steps=num_steps)
    write_text(run.config, config_text(config))
    plan = _plan(config)
    write_text(run.plan, plan.to_json())
    writer = StepWriter(run.steps)
    clock_s = 1000.0
    for number, attempt in enumerate(attempts, start=1):
        record = AttemptRecord(
            schema_version=SCHEMA_VERSION,
            attempt=number,
            job_id="1",
            state="completed",
            started_at_s=clock_s,
            end_reason="completed",
            exit_code=0,
            world_size=plan.layout.world_size,
        )
        clock_s += 10
        steps = []
        for step, step_time_s in enumerate(attempt.step_times_s, start=attempt.first_step):
            clock_s += step_time_s
            healthy = StepRecord(
                schema_version=STEP_SCHEMA_VERSION,
                attempt=number,
                step=step,
                time_s=clock_s,
                loss=4.0 / step,
                learning_rate=1e-4,
                grad_norm=1.0,
                skipped=False,
                step_time_s=step_time_s,
                data_time_s=0.1 * step_time_s,
                tokens=plan.batch.tokens_per_step,
                peak_memory_bytes=2**30,
                forward_time_s=0.25 * step_time_s,
                backward_time_s=0.5 * step_time_s,
                optimizer_time_s=0.125 * step_time_s,
            )
            steps.append(replace(healthy, **step_fields))
        writer.append(steps)
        write_record(run.attempt(number), replace(record, **{"ended_at_s": clock_s, **(attempt.end or {})}))
    return run


def sample(**fields: Any) -> NodeSample:
    """A look at a node with two GPUs at 2,000 s."""
    gpus = (GpuSample(0, 3 * 2**30, 16 * 2**30, 0.5, 200.0), GpuSample(1, 5 * 2**30, 16 * 2**30, 1.0, 300.0))
    return replace(NodeSample(SCHEMA_VERSION, 1, 2000.0, 3, 2**34, 2**36, 2**33, gpus), **fields)


def write_samples(run: RunPaths, node: str, *samples: NodeSample) -> Path:
    """Appends telemetry of one node and returns its file."""
    run.nodes.mkdir(exist_ok=True)
    path = run.node_samples(node)
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)
    return path
