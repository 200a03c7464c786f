"""How ranks are laid out over nodes, and how the batch is split over them."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import TrainingConfig
from hpctrain.errors import Problem


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism; their product is the world size."""

    num_nodes: int
    gpus_per_node: int

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def data_parallel_degree(self) -> int:
        """Every rank holds its own sequences."""
        return self.world_size


@dataclass(frozen=True)
class Batch:
    """The batch triangle, solved: global = micro x data-parallel degree x accumulation."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    seq_len: int

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_len


def resolve_batch(
    training: TrainingConfig, micro_batch_size: int, data_parallel_degree: int, seq_len: int
) -> tuple[Batch, tuple[Problem, ...]]:
    """Fills in the missing corner of the batch triangle, or says which rule is broken.

    With neither global batch nor accumulation given, accumulation is 1.
    """
    per_micro_step = micro_batch_size * data_parallel_degree
    global_batch, accumulation = training.global_batch_size, training.gradient_accumulation_steps
    problems: tuple[Problem, ...] = ()
    if global_batch is None:
        accumulation = accumulation or 1
        global_batch = per_micro_step * accumulation
    elif global_batch % per_micro_step:
        below = global_batch // per_micro_step * per_micro_step
        fixes = [str(value) for value in (below, below + per_micro_step) if value > 0]
        problems = (
            Problem(
                "training.global_batch_size",
                str(global_batch),
                f"must be a multiple of micro batch x data-parallel degree = {micro_batch_size} x"
                f" {data_parallel_degree} = {per_micro_step}",
                f"nearest: {', '.join(fixes)}",
            ),
        )
        accumulation = max(1, global_batch // per_micro_step)
    elif accumulation is None:
        accumulation = global_batch // per_micro_step
    elif accumulation * per_micro_step != global_batch:
        problems = (
            Problem(
                "training.global_batch_size",
                str(global_batch),
                f"micro batch x data-parallel degree x accumulation = {micro_batch_size} x {data_parallel_degree}"
                f" x {accumulation} = {accumulation * per_micro_step}",
                f"set training.gradient_accumulation_steps={global_batch // per_micro_step} or leave it out",
            ),
        )
    return Batch(micro_batch_size, accumulation, global_batch, seq_len), problems
