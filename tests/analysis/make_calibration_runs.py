"""Run folders on made-up GPU nodes, whose step times are the planner's own times known factors: never measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpctrain.config.calibration import PartKind
from hpctrain.config.schema import Config, HardwareConfig, ModelConfig, ParallelismConfig
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.plan.speed.calibration import seconds_by_kind
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import Attempt, make_run, toy_config

COMPOSED_NODE = HardwareConfig(
    "composed_gpu", "cuda", gpu="A100-SXM4-80GB", gpus_per_node=8, cpu="any", cpu_cores_per_node=64, host_memory_gib=1000,
    default_precision="bf16", gpu_memory_gib=79, peak_tflops={"bf16": 312}, achievable_tflops={"bf16": 270},
    intra_node_gb_per_s=300, inter_node_gb_per_s=50, gpu_memory_gb_per_s=2000, host_link_gb_per_s=25,
    host_memory_gb_per_s=400, sources={"peak_tflops": "made up, as all of it"},
)  # fmt: skip


def composed_model(layers: int = 24, width: int = 2048) -> ModelConfig:
    return ModelConfig(f"gpt-{layers}x{width}", "gpt", layers, width, width // 128, vocab_size=50304, max_seq_len=2048)


def composed_config(
    *,
    nodes: int = 1,
    layers: int = 24,
    width: int = 2048,
    parallelism: ParallelismConfig = ParallelismConfig("zero3", zero_stage=3),  # noqa: B008 (frozen)
    micro_batch_size: int = 4,
    num_steps: int = 12,
    hardware: HardwareConfig = COMPOSED_NODE,
) -> Config:
    """A configuration with everything stated."""
    return toy_config(
        nodes=nodes,
        model=composed_model(layers, width),
        hardware=hardware,
        parallelism=parallelism,
        micro_batch_size=micro_batch_size,
        num_steps=num_steps,
        activation_checkpointing="full",
    )


ZERO1 = ParallelismConfig("zero1", zero_stage=1)
OFFLOAD = ParallelismConfig("zero3_offload", zero_stage=3, offload_optimizer="cpu")
SPREAD = (
    composed_config(parallelism=ZERO1, micro_batch_size=8),
    composed_config(width=4096, micro_batch_size=8),
    composed_config(nodes=2, micro_batch_size=2),
    composed_config(nodes=4, width=4096, micro_batch_size=2),
    composed_config(nodes=8, micro_batch_size=1),
    composed_config(nodes=8, width=4096, micro_batch_size=1),
    composed_config(nodes=16, width=4096, micro_batch_size=4),
    composed_config(nodes=16, layers=48, width=4096, micro_batch_size=1),
)
"""Configurations whose communication is a small to a large share of the step."""


def make_calibration_run(
    folder: Path, config: Config, factors: Mapping[PartKind, float], noise: Sequence[float] = (1.0,) * 10
) -> RunPaths:
    """A completed run with two slow steps of warm-up, and its configuration beside its plan.

    Args:
        folder: made here.
        config: its plan keeps the calibration that is in it, its ``config.yaml`` does not, as of a real run.
        factors: measured over predicted seconds by kind of parts.
        noise: a factor for each step after the warm-up.
    """
    plain = build_run_plan(replace(config, calibration=None)).prediction
    assert plain is not None
    step_s = sum(seconds * factors.get(kind, 1.0) for kind, seconds in seconds_by_kind(plain.parts_s).items())
    times_s = [3 * step_s, 2 * step_s, *(step_s * share for share in noise)]
    run = make_run(folder, config, [Attempt(times_s)], data_time_s=0.0)
    write_text(run.config, config_text(config))
    return run


def make_calibration_runs(
    root: Path, factors: Mapping[PartKind, float], sigma: float = 0.0, seed: int = 0, configs: Sequence[Config] = SPREAD
) -> None:
    """A run a configuration, ``run-0`` and so on, each off by its own noise of ``sigma`` and each step by a third of it."""
    random = np.random.default_rng(seed)
    for number, config in enumerate(configs):
        of_run = random.lognormal(0.0, sigma)
        noise = of_run * random.lognormal(0.0, sigma / 3, 10)
        make_calibration_run(root / f"run-{number}", config, factors, noise.tolist())
