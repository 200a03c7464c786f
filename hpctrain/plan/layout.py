"""How ranks are laid out over nodes, and how the batch is split over them."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import TrainingConfig
from hpctrain.errors import Problem
from hpctrain.plan.batch_ramp import RampStage, ramp_problems, ramp_stages, samples_before, stage_of
from hpctrain.plan.divisors import nearest_spread
from hpctrain.plan.held_sequences import sequences_per_gpu


@dataclass(frozen=True)
class RankPlace:
    """Where one rank stands along each kind of parallelism, from 0."""

    pipeline: int
    data: int
    sequence: int
    tensor: int


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism; their product is the world size.

    Ranks that talk most are neighbours: tensor and sequence ranks change fastest, then data-parallel ones, then pipeline stages.
    """

    num_nodes: int
    gpus_per_node: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    sequence_parallel_size: int = 1

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def ranks_per_replica(self) -> int:
        """Ranks that work on the same sequences together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.sequence_parallel_size

    @property
    def data_parallel_degree(self) -> int:
        """Groups of ranks that hold sequences of their own."""
        return self.world_size // self.ranks_per_replica

    @property
    def zero_degree(self) -> int:
        """Ranks over which ZeRO spreads its states: sequence-parallel ranks hold the same parameters and share them too."""
        return self.data_parallel_degree * self.sequence_parallel_size

    @property
    def model_parallel_degrees(self) -> dict[str, int]:
        """Every degree above 1 but the data-parallel one, by its name."""
        degrees = {
            "tensor": self.tensor_parallel_size,
            "sequence": self.sequence_parallel_size,
            "pipeline": self.pipeline_parallel_size,
        }
        return {name: size for name, size in degrees.items() if size > 1}

    @property
    def model_parallel_texts(self) -> list[str]:
        """The same in words."""
        return [f"{name} parallel {size:,}" for name, size in self.model_parallel_degrees.items()]

    @property
    def degrees_text(self) -> str:
        """Every degree that is above 1, and the data-parallel one."""
        return ", ".join((f"data parallel {self.data_parallel_degree:,}", *self.model_parallel_texts))

    def place(self, rank: int) -> RankPlace:
        """Where a rank stands.

        >>> Layout(2, 4, tensor_parallel_size=2, pipeline_parallel_size=2).place(5)
        RankPlace(pipeline=1, data=0, sequence=0, tensor=1)
        """
        rest, tensor = divmod(rank, self.tensor_parallel_size)
        rest, sequence = divmod(rest, self.sequence_parallel_size)
        pipeline, data = divmod(rest, self.data_parallel_degree)
        return RankPlace(pipeline, data, sequence, tensor)

    def rank_at(self, place: RankPlace) -> int:
        """The rank that stands there.

        >>> layout = Layout(2, 4, tensor_parallel_size=2, pipeline_parallel_size=2)
        >>> [layout.rank_at(layout.place(rank)) for rank in range(8)]
        [0, 1, 2, 3, 4, 5, 6, 7]
        """
        replica = place.pipeline * self.data_parallel_degree + place.data
        return (replica * self.sequence_parallel_size + place.sequence) * self.tensor_parallel_size + place.tensor

    def holds_same_parameters(self, rank: int, other: int) -> bool:
        """Whether two ranks stand in the same stage and tensor-parallel part.

        >>> layout = Layout(2, 4, tensor_parallel_size=2, pipeline_parallel_size=2)
        >>> [layout.holds_same_parameters(0, other) for other in (1, 2, 4)]
        [False, True, False]
        """
        place, other_place = self.place(rank), self.place(other)
        return (place.pipeline, place.tensor) == (other_place.pipeline, other_place.tensor)


@dataclass(frozen=True)
class Batch:
    """The batch triangle, solved: global = micro x data-parallel degree x accumulation."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    """Of a step with the full batch; of each step ``accumulation_of``."""
    global_batch_size: int
    """The full one, to which a ramp leads."""
    seq_len: int
    ramp: tuple[RampStage, ...] = ()
    """Stages of ``training.batch_ramp``, the last with the full batch; empty: every step has the full batch."""

    @property
    def tokens_per_step(self) -> int:
        """Of the full batch."""
        return self.global_batch_size * self.seq_len

    def global_batch_of(self, step: int) -> int:
        """Sequences of optimizer step ``step``, from 1."""
        return stage_of(self.ramp, step).global_batch_size if self.ramp else self.global_batch_size

    def accumulation_of(self, step: int) -> int:
        """Micro steps of optimizer step ``step``, from 1."""
        return self.global_batch_of(step) * self.gradient_accumulation_steps // self.global_batch_size

    def samples_before(self, step: int) -> int:
        """Sequences that the steps before ``step`` consumed, all ranks together: where the step stands in the data."""
        return samples_before(self.ramp, step) if self.ramp else (step - 1) * self.global_batch_size

    def tokens_of(self, step: int) -> int:
        """Tokens of optimizer step ``step``, from 1, all ranks together."""
        return self.global_batch_of(step) * self.seq_len

    def tokens_before(self, step: int) -> int:
        """Tokens of the steps before ``step``; of a whole run: ``tokens_before(num_steps + 1)``."""
        return self.samples_before(step) * self.seq_len


def resolve_batch(
    training: TrainingConfig, micro_batch_size: int, layout: Layout, seq_len: int
) -> tuple[Batch, tuple[Problem, ...]]:
    """Fills in the missing corner of the batch triangle, or says which rule is broken; a ramp leads to the batch that it gives.

    With neither global batch nor accumulation given, accumulation is that of ``held_accumulation``.
    """
    data_parallel_degree = layout.data_parallel_degree
    per_micro_step = micro_batch_size * data_parallel_degree
    global_batch, accumulation = training.global_batch_size, training.gradient_accumulation_steps
    problems: tuple[Problem, ...] = ()
    if global_batch is None:
        accumulation = accumulation or held_accumulation(layout, micro_batch_size, seq_len)
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
                f"nearest: {', '.join(fixes)}, or {nearest_spread(global_batch, micro_batch_size, data_parallel_degree)}",
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
    ramp: tuple[RampStage, ...] = ()
    if (stated := training.batch_ramp) is not None and not problems:
        problems = tuple(ramp_problems(stated, global_batch, micro_batch_size, data_parallel_degree))
        ramp = () if problems else ramp_stages(stated.start, stated.increment, stated.samples, global_batch)
    return Batch(micro_batch_size, accumulation, global_batch, seq_len, ramp), problems


def held_accumulation(layout: Layout, micro_batch_size: int, seq_len: int) -> int:
    """Micro steps where neither they nor the global batch are stated.

    A pipeline works on several micro batches at a time: with one, every stage waits for all others. It takes the whole micro
    batches in the step that ``parallelism=auto`` holds, at least 1; without a pipeline nothing is gained but a larger batch.

    Args:
        layout: of the ranks.
        micro_batch_size: sequences.
        seq_len: tokens of a sequence.

    >>> held_accumulation(Layout(8, 8, 8, 4), 3, 2048), held_accumulation(Layout(8, 8, 8), 3, 2048)
    (85, 1)
    """
    if layout.pipeline_parallel_size == 1:
        return 1
    return max(1, held_share(layout, seq_len) // micro_batch_size)


def held_share(layout: Layout, seq_len: int) -> int:
    """Sequences of one replica in the step that ``parallelism=auto`` holds.

    >>> held_share(Layout(8, 8, 8, 4), 2048), held_share(Layout(8, 8, 8, 4), 8192)
    (256, 64)
    """
    return sequences_per_gpu(seq_len) * layout.ranks_per_replica
