"""Configurations that real ranks can run on this machine, in which the rehearsal is held against them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hpctrain.config.schema import Config
from tests.worker.run_folder import make_config

STEPS = 2
"""The first makes the optimizer's states and records the order of the parameters; the second is like all later ones."""

Rows = dict[str, list[int]]
"""Phase (``<step>/<phase>``) to two numbers of one rank, such as peak and resting bytes."""
Measured = dict[str, Rows]
"""``memory``: peak and resting bytes by phase; ``collectives``: count and bytes by phase and kind."""

GPT: dict[str, Any] = {
    "name": "truth-gpt",
    "architecture": "gpt",
    "num_layers": 4,
    "hidden_size": 80,
    "num_heads": 4,
    "vocab_size": 1001,
    "max_seq_len": 64,
    "init_std": 0.05,
}
"""Neither 2 nor 3 ranks share every parameter evenly; a block is several times what the buckets below hold."""
LLAMA: dict[str, Any] = GPT | {
    "name": "truth-llama",
    "architecture": "llama",
    "num_kv_heads": 2,
    "ffn_hidden_size": 220,
    "tie_embeddings": False,
}
WIDE: dict[str, Any] = GPT | {"num_layers": 2, "hidden_size": 384}
"""Shares of the larger matrices are above 1 MiB in fp32, below which nothing is moved to NVMe."""
EVEN: dict[str, Any] = GPT | {"vocab_size": 1000}
"""Tensor-parallel ranks share the vocabulary evenly."""
_BUCKETS: dict[str, Any] = {
    "param_persistence_threshold": 200,
    "prefetch_bucket_size": 50_000,
    "reduce_bucket_size": 50_000,
    "allgather_bucket_size": 50_000,
    "max_live_parameters": 300_000,
    "max_reuse_distance": 300_000,
}
"""Elements; with the defaults such a model would lie whole on every rank."""


@dataclass(frozen=True)
class Case:
    """One configuration; what is left out is ZeRO-3 in bf16 of the GPT on 2 ranks."""

    stage: int = 3
    ranks: int = 2
    rank: int = 0
    """The one that is compared."""
    model: dict[str, Any] = field(default_factory=lambda: GPT)
    precision: str = "bf16"
    device_apart: bool = False
    """The engine, which tells device and host apart by the accelerator's name, is given another name for the same CPU."""
    parallelism: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Config:
        """The whole configuration, on one node of CPU ranks."""
        training = {"num_steps": STEPS, "micro_batch_size": 2, "global_batch_size": None, "warmup_steps": 1}
        config = make_config(
            num_ranks=self.ranks,
            model=self.model,
            zero_stage=self.stage,
            precision=self.precision,
            **(training | self.training),
        )
        parallelism = dataclasses.replace(config.parallelism, **(_BUCKETS | self.parallelism))
        return dataclasses.replace(config, parallelism=parallelism)


_ON_NVME = {"offload_optimizer": "nvme", "nvme_path": "/each-rank-has-its-own", "sub_group_size": 400_000}
_OPTIMIZER = {"offload_optimizer": "cpu"}
_FULL = {"activation_checkpointing": "full"}
_SELECTIVE = {"activation_checkpointing": "selective"}
_CHUNKS = {"loss_chunk_size": 50}
"""Tokens, of 128 of a micro batch: the last chunk is shorter."""
_PIPELINE = {"pipeline_parallel_size": 2}
_TWICE = {"gradient_accumulation_steps": 2}
CASES: dict[str, Case] = {
    "ddp, accumulation 2": Case(stage=0, training=_TWICE),
    "ddp, fp32, tensor parallel": Case(stage=0, precision="fp32", model=EVEN, parallelism={"tensor_parallel_size": 2}),
    "zero3, fp16": Case(precision="fp16"),
    "zero1": Case(stage=1),
    "zero2, accumulation 2, recomputed": Case(stage=2, training=_TWICE | _FULL),
    "zero3, accumulation 2": Case(training=_TWICE),
    "zero3, 3 ranks, the last one": Case(ranks=3, rank=2),
    "zero3, recomputed, llama": Case(model=LLAMA, training=_FULL),
    "zero3, fp32, loss in chunks": Case(precision="fp32", training=_CHUNKS),
    "zero1, selective, loss in chunks, llama": Case(stage=1, model=LLAMA, training=_SELECTIVE | _CHUNKS),
    "zero1, optimizer on the host": Case(stage=1, parallelism=_OPTIMIZER),
    "zero2, optimizer on the host, accumulation 2": Case(stage=2, parallelism=_OPTIMIZER, training=_TWICE),
    "zero3, optimizer on the host": Case(parallelism=_OPTIMIZER),
    "zero3, optimizer and parameters on the host": Case(parallelism=_OPTIMIZER | {"offload_param": "cpu"}),
    "zero3, half of the optimizer on the host": Case(
        parallelism=_OPTIMIZER | {"offload_ratio": 0.5}, device_apart=True
    ),
    "zero3, secondary partition of 2, 4 ranks": Case(ranks=4, parallelism={"hpz_partition_size": 2}),
    "zero3, recomputed, activations on the host": Case(training=_FULL | {"offload_activations": True}),
    "zero2, optimizer on the host, 8 micro batches": Case(
        stage=2, parallelism=_OPTIMIZER, training={"gradient_accumulation_steps": 8, "micro_batch_size": 1}
    ),
    "zero3, 8 micro batches": Case(training={"gradient_accumulation_steps": 8, "micro_batch_size": 1}),
    "zero1, first stage of 2, 8 micro batches": Case(
        stage=1,
        model=EVEN,
        parallelism=_PIPELINE,
        training={"gradient_accumulation_steps": 8, "micro_batch_size": 1},
    ),
    "zero3, all on NVMe": Case(model=WIDE, precision="fp32", parallelism=_ON_NVME | {"offload_param": "nvme"}),
    "zero3, on device, host and NVMe": Case(
        model=WIDE,
        device_apart=True,
        parallelism=_ON_NVME | {"offload_ratio": 0.6, "nvme_ratio": 0.5, "sub_group_size": 250_000},
    ),
    "zero3, optimizer on NVMe, one after another": Case(
        model=WIDE, parallelism=_ON_NVME | {"pipeline_swaps": False}, training=_TWICE | {"micro_batch_size": 1}
    ),
    "zero2, tensor parallel": Case(stage=2, model=EVEN, parallelism={"tensor_parallel_size": 2}),
    "zero3, sequence parallel, recomputed": Case(parallelism={"sequence_parallel_size": 2}, training=_FULL),
    "zero1, first stage of 2": Case(stage=1, model=EVEN, parallelism=_PIPELINE, training=_TWICE),
    "zero1, last stage of 2, tensor parallel, llama": Case(
        stage=1,
        ranks=4,
        rank=3,
        model=LLAMA | {"vocab_size": 1000},
        parallelism=_PIPELINE | {"tensor_parallel_size": 2},
        training=_TWICE | _FULL | _CHUNKS,
    ),
}
