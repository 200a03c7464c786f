"""The rows of analysis/PARALLELISM.md: the groups of conf/parallelism and their forms, each a configuration of a tiny model.

``auto`` has none: it is one of the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from tests.native_ops import COMPILED

_MODEL = "model=tiny training.seq_len=64"
_TRAINING = (
    "training=benchmark training.num_steps=20 training.log_interval=20 training.learning_rate=5e-4"
    " training.min_learning_rate=5e-5 training.warmup_steps=3 training.start_timeout_min=2"
    " training.telemetry_interval_s=null data=synthetic"
)
_BUCKETS = (
    "parallelism.param_persistence_threshold=200 parallelism.prefetch_bucket_size=50000"
    " parallelism.reduce_bucket_size=200000 parallelism.allgather_bucket_size=50000"
    " parallelism.max_live_parameters=300000 parallelism.max_reuse_distance=300000"
)
"""With the defaults all of such a model would lie whole on every rank; a block has 198,272 parameters."""
_GPUS = "hardware=ndm_a100_v4 cluster=slurm nodes=2 training.micro_batch_size=1"
NUM_SEQUENCES = 8
"""Of a step, over all ranks: the same in each row, so that one reference serves them all."""


@dataclass(frozen=True)
class GroupCase:
    """One row."""

    group: str
    """A file of conf/parallelism."""
    form: str = ""
    """What else is set, in a word or two; empty: the group as it is."""
    more: str = ""
    """Overrides of it, and of what the group takes from the hardware."""
    ranks: int = 2
    micro: int = 4
    """Sequences of a micro batch."""
    steps: int = 1
    """Micro batches of a step."""
    is_gpu_only: bool = False
    """DeepSpeed has it for CUDA alone: planned and rehearsed on two nodes of eight simulated GPUs."""

    @property
    def name(self) -> str:
        return f"{self.group}, {self.form}" if self.form else self.group

    def words(self, on_gpus: bool = False) -> list[str]:
        """Overrides of the whole configuration, on CPU ranks of this machine or on simulated GPUs."""
        here = (
            f"cluster=local hardware=cpu hardware.gpus_per_node={self.ranks} training.micro_batch_size={self.micro}"
            f" training.gradient_accumulation_steps={self.steps}"
        )
        groups = f"{_MODEL} {_TRAINING} parallelism={self.group} {_BUCKETS}"
        return f"{groups} {_GPUS if on_gpus else here} {self.more}".split()

    def config(self, folder: Path | None = None, on_gpus: bool = False) -> Config:
        """The configuration; ``folder`` stands for a node's NVMe, where states go there."""
        (point,) = compose_points(self.words(on_gpus), multirun=False)
        config = dataclasses.replace(point.config, env={"TORCH_EXTENSIONS_DIR": COMPILED})
        stated = config.parallelism
        if "nvme" not in (stated.offload_optimizer, stated.offload_param):
            return config
        assert folder is not None
        return dataclasses.replace(config, parallelism=dataclasses.replace(stated, nvme_path=str(folder)))


def _cases() -> Iterator[GroupCase]:
    """One line a row."""
    tensor, stages, parts = (f"parallelism.{degree}_parallel_size=2" for degree in ("tensor", "pipeline", "sequence"))
    full = "training.activation_checkpointing=full"
    yield GroupCase("ddp")
    yield GroupCase("zero1")
    yield GroupCase("zero2")
    yield GroupCase("zero3")
    yield GroupCase("zero3_offload")
    yield GroupCase("zero3_nvme", more="parallelism.sub_group_size=200000")
    yield GroupCase("zero_cache")
    yield GroupCase("zeropp", more="parallelism.hpz_partition_size=2", ranks=4, micro=2)
    yield GroupCase("ulysses", more=parts, micro=8)
    yield GroupCase("tensor", more=tensor, micro=8)
    yield GroupCase("megatron_3d", more=f"{tensor} {stages}", ranks=4, micro=2, steps=4)
    yield GroupCase("zero1", "pipeline", stages, micro=2, steps=4)
    yield GroupCase("zero1", "optimizer on the host", "parallelism.offload_optimizer=cpu")
    yield GroupCase("zero2", "selective recomputation", "training.activation_checkpointing=selective")
    yield GroupCase("zero3", "full recomputation", full)
    yield GroupCase("zero3", "activations on the host", f"{full} training.offload_activations=true")
    yield GroupCase(
        "zero3", "half of the optimizer on the host", "parallelism.offload_optimizer=cpu parallelism.offload_ratio=0.5"
    )
    yield GroupCase("ddp", "bf16", "training.precision=bf16")
    yield GroupCase("zero1", "bf16", "training.precision=bf16")
    yield GroupCase("zero3", "bf16", "training.precision=bf16")
    yield GroupCase("zero2", "fp16", "training.precision=fp16")
    yield GroupCase("zero3", "fp16", "training.precision=fp16")
    yield GroupCase("zeropp", "quantized weights", "parallelism.quantized_weights=true", is_gpu_only=True)
    yield GroupCase(
        "zeropp",
        "quantized gradients",
        "parallelism.quantized_gradients=true training.precision=fp16",
        is_gpu_only=True,
    )


CASES = {case.name: case for case in _cases()}
REFERENCE = GroupCase("ddp")
"""Its model and batches, in one process without DeepSpeed and ranks."""
