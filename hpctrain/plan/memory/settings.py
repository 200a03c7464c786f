"""One rank's work with nothing left to derive: where its states are kept, its batch, the chunks of its loss."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hpctrain.config.schema import ActivationCheckpointing, Config, ParallelismConfig, Precision
from hpctrain.errors import Problem
from hpctrain.plan.layout import Batch, Layout, resolve_batch
from hpctrain.plan.memory.estimate import estimate_memory
from hpctrain.plan.memory.fitted_ratio import with_fitted_ratio
from hpctrain.plan.memory.loss_chunks import loss_chunk_size
from hpctrain.plan.memory.sub_groups import sub_group_notes, with_sub_group_size
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.nvme.config import with_nvme_path
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.rules.capacity import counted_hardware


class Settled(NamedTuple):
    """A configuration whose micro batch and recomputation are stated, with all that follows from them."""

    config: Config
    """With NVMe path, offload ratio and sub-group size filled in."""
    batch_problems: tuple[Problem, ...]
    work: RankWork
    notes: tuple[str, ...]
    """What was chosen of where states are kept, a sentence each."""


def with_passes(config: Config, micro_batch_size: int, checkpointing: ActivationCheckpointing) -> Config:
    """The configuration with these two stated."""
    training = dataclasses.replace(
        config.training, micro_batch_size=micro_batch_size, activation_checkpointing=checkpointing
    )
    return dataclasses.replace(config, training=training)


def settled(config: Config, shape: ModelShape, layout: Layout) -> Settled:
    """All that follows from a stated micro batch and recomputation.

    Args:
        config: whose micro batch and recomputation are stated.
        shape: of its model.
        layout: of its ranks.
    """
    tiered, notes = with_tiers(config, shape, layout)
    work, problems = _stated_work(tiered, shape, layout)
    return Settled(tiered, problems, work, tuple(notes))


def _stated_work(config: Config, shape: ModelShape, layout: Layout) -> tuple[RankWork, tuple[Problem, ...]]:
    """Of a configuration whose states have their place, and what is wrong with its batch."""
    training = config.training
    micro, checkpointing = training.micro_batch_size, training.activation_checkpointing
    assert micro is not None, "the micro batch is stated or chosen before"
    assert checkpointing is not None, "recomputation is stated or chosen before"
    seq_len = training.seq_len or shape.max_seq_len
    batch, problems = resolve_batch(training, micro, layout, seq_len)
    return resolved_work(config, shape, layout, batch, config.precision, checkpointing), problems


def with_tiers(config: Config, shape: ModelShape, layout: Layout) -> tuple[Config, list[str]]:
    """Where states are kept, filled in (NVMe path, offload ratio, sub-group size), and what was chosen for that.

    Args:
        config: whose micro batch and recomputation are stated where a ratio is fitted, the smallest that goes with them.
        shape: of its model.
        layout: of its ranks.
    """
    stated = config.parallelism
    all_moved = with_nvme_path(stated, config.hardware)
    fitted, of_ratio = _fitted_to_gpu(config, all_moved, shape, layout)
    found = with_sub_group_size(fitted, shape, layout)
    of_sub_groups = sub_group_notes(stated, found, shape, layout)
    return dataclasses.replace(config, parallelism=found), [*of_ratio, *of_sub_groups]


def _fitted_to_gpu(
    config: Config, all_moved: ParallelismConfig, shape: ModelShape, layout: Layout
) -> tuple[ParallelismConfig, list[str]]:
    """The ratio that a GPU needs, whatever its host holds: a larger one takes more of that, so that with both none may fit."""
    hardware = dataclasses.replace(counted_hardware(config), host_memory_gib=None)
    cluster = dataclasses.replace(config.cluster, memory_per_node=None)

    def fits(parallelism: ParallelismConfig) -> bool:
        cut = with_sub_group_size(parallelism, shape, layout)
        work, _ = _stated_work(
            dataclasses.replace(config, parallelism=cut, hardware=hardware, cluster=cluster), shape, layout
        )
        return estimate_memory(work).fits_with_headroom

    return with_fitted_ratio(all_moved, hardware.gpu_memory_gib, fits)


def resolved_work(
    config: Config,
    shape: ModelShape,
    layout: Layout,
    batch: Batch,
    precision: Precision,
    checkpointing: ActivationCheckpointing,
) -> RankWork:
    """What one rank works on; of the configuration, whose sub-group size is filled in, what is not derived."""
    offload = config.training.offload_activations and checkpointing == "full"
    hardware = counted_hardware(config)
    work = RankWork(shape, layout, batch, config.parallelism, hardware, precision, checkpointing, offload)
    chunk = loss_chunk_size(config.training.loss_chunk_size, shape, work.tokens)
    return dataclasses.replace(work, loss_chunk_size=chunk)
