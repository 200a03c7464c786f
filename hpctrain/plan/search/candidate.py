"""One configuration, as far as it is searched, and the lists whose combinations all of them are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hpctrain.config.schema import ActivationCheckpointing, Config
from hpctrain.plan.rank_work import RankWork

Place = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True)
class OpenKeys:
    """Dotted names of keys that nobody stated, such as ``parallelism.zero_stage``; the rest of the configuration stands."""

    names: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.names


class Degrees(NamedTuple):
    """Of the ranks that work on the same sequences."""

    tensor: int
    pipeline: int
    sequence: int


class States(NamedTuple):
    """Where parameters, gradients and the optimizer's states are."""

    zero_stage: Literal[0, 1, 2, 3]
    offload_optimizer: Place
    offload_param: Place
    hpz_partition_size: int


class Passes(NamedTuple):
    """What a forward pass keeps for the backward pass."""

    checkpointing: ActivationCheckpointing
    offload_activations: bool


class Spread(NamedTuple):
    """How a data-parallel rank's share of the global batch is worked on."""

    micro_batch_size: int
    accumulation: int


class Candidate(NamedTuple):
    """One configuration, as far as it is searched."""

    degrees: Degrees
    states: States
    offload_ratio: float
    passes: Passes
    spread: Spread

    @classmethod
    def of(cls, work: RankWork) -> Candidate:
        """What one rank's work is a case of."""
        layout, parallelism, batch = work.layout, work.parallelism, work.batch
        return cls(
            Degrees(layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.sequence_parallel_size),
            States(
                parallelism.zero_stage,
                parallelism.offload_optimizer,
                parallelism.offload_param,
                parallelism.hpz_partition_size,
            ),
            parallelism.offload_ratio,
            Passes(work.checkpointing, work.offload_activations),
            Spread(batch.micro_batch_size, batch.gradient_accumulation_steps),
        )

    def applied(self, config: Config) -> Config:
        """The configuration with nothing open."""
        degrees, states = self.degrees, self.states
        parallelism = dataclasses.replace(
            config.parallelism,
            zero_stage=states.zero_stage,
            offload_optimizer=states.offload_optimizer,
            offload_param=states.offload_param,
            offload_ratio=self.offload_ratio,
            fit_offload_ratio=False,
            tensor_parallel_size=degrees.tensor,
            pipeline_parallel_size=degrees.pipeline,
            sequence_parallel_size=degrees.sequence,
            hpz_partition_size=states.hpz_partition_size,
        )
        training = dataclasses.replace(
            config.training,
            micro_batch_size=self.spread.micro_batch_size,
            gradient_accumulation_steps=self.spread.accumulation,
            activation_checkpointing=self.passes.checkpointing,
            offload_activations=self.passes.offload_activations,
        )
        return dataclasses.replace(config, parallelism=parallelism, training=training)


class Row(NamedTuple):
    """How ranks and batch are cut: what is scored at once, as arrays."""

    layout: int
    """Number of the degrees in the space."""
    degrees: Degrees
    spread: Spread


class Kept(NamedTuple):
    """States with what goes with them."""

    states: States
    layouts: frozenset[int]
    offload_ratios: tuple[float, ...]


class Space(NamedTuple):
    """Candidates of one global batch: rows, kept states with their ratios, and passes in every combination that is allowed."""

    layouts: tuple[Degrees, ...]
    rows: tuple[Row, ...]
    kept: tuple[Kept, ...]
    passes: tuple[Passes, ...]
