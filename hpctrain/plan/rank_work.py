"""What one rank works on: all that its memory and the time of its step depend on."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import ActivationCheckpointing, HardwareConfig, ParallelismConfig, Precision
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.model_shape import ModelShape

BYTES_PER_ELEMENT: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class RankWork:
    """One rank's share of a run of our own worker, before anything is counted."""

    shape: ModelShape
    layout: Layout
    batch: Batch
    parallelism: ParallelismConfig
    hardware: HardwareConfig
    precision: Precision
    checkpointing: ActivationCheckpointing
    offload_activations: bool = False
    """Inputs of recomputed blocks wait in pinned host memory."""
    loss_chunk_size: int = 0
    """Tokens of which the loss has scores at a time; 0: all."""

    @property
    def bytes_per_element(self) -> int:
        """Of parameters and activations in the training type."""
        return BYTES_PER_ELEMENT[self.precision]

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch on one rank; sequence-parallel ranks share each sequence."""
        return self.batch.micro_batch_size * self.batch.seq_len // self.layout.sequence_parallel_size
