"""What of a rank's work nobody stated and its memory decides: micro batch, recomputation, where states are kept."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from hpctrain.config.schema import ActivationCheckpointing, Config, ParallelismConfig, Precision, TrainingConfig
from hpctrain.plan.layout import Batch, Layout, resolve_batch
from hpctrain.plan.memory.estimate import MemoryEstimate, estimate_memory
from hpctrain.plan.memory.fitted_ratio import with_fitted_ratio
from hpctrain.plan.memory.loss_chunks import loss_chunk_size
from hpctrain.plan.memory.sub_groups import sub_group_notes, with_sub_group_size
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.nvme.config import with_nvme_path
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.rules.compile import recomputation_modes


@dataclass(frozen=True)
class MemorySettings:
    """What was stated or chosen, and a sentence for each choice."""

    micro_batch_size: int
    checkpointing: ActivationCheckpointing
    assumptions: tuple[str, ...]


def choose_memory_settings(config: Config, shape: ModelShape, layout: Layout, precision: Precision) -> MemorySettings:
    """Micro batch and checkpointing: what is stated stays; what is left out is the largest batch that fits.

    A micro batch of at most 8 is tried, without recomputation before with it. A stated global batch bounds it.
    """
    training = config.training
    seq_len = training.seq_len or shape.max_seq_len
    sizes, modes = _micro_batch_sizes(training, layout), recomputation_modes(training)

    def memory(size: int, mode: ActivationCheckpointing) -> MemoryEstimate:
        batch, _ = resolve_batch(training, size, layout.data_parallel_degree, seq_len)
        return estimate_memory(resolved_work(config, shape, layout, batch, precision, mode))

    candidates = [(size, mode) for size in sizes for mode in modes]
    chosen = next((candidate for candidate in candidates if memory(*candidate).fits_with_headroom), None)
    size, mode = chosen or candidates[-1]
    has_capacity = config.hardware.gpu_memory_gib is not None or config.hardware.host_memory_gib is not None
    why = "memory not stated by the hardware" if not has_capacity else "with a tenth of the memory free"
    assumptions = []
    if training.micro_batch_size is None:
        choice = f"{size}, the largest of {', '.join(map(str, sizes))} ({why})"
        if not chosen:
            even = (
                "and even that does not fit"
                if memory(size, mode).problems()
                else "which leaves less than a tenth of the memory free"
            )
            choice = f"{size}, {even}"
        assumptions.append(f"training.micro_batch_size not stated: {choice}")
    if training.activation_checkpointing is None:
        reasons = {
            "none": "it fits without recomputation",
            "selective": "without recomputation it does not fit",
            "full": "neither without recomputation nor with selective one does it fit"
            if "selective" in modes
            else "without recomputation it does not fit",
        }
        assumptions.append(
            f"training.activation_checkpointing not stated: {mode}"
            + (f", {reasons[mode]} at a micro batch of {size}" if has_capacity else "")
        )
    return MemorySettings(size, mode, tuple(assumptions))


def _micro_batch_sizes(training: TrainingConfig, layout: Layout) -> tuple[int, ...]:
    """What is tried, largest first."""
    if training.micro_batch_size is not None:
        return (training.micro_batch_size,)
    sizes: tuple[int, ...] = (8, 4, 2, 1)
    if training.global_batch_size is not None:
        per_micro_step = layout.data_parallel_degree * (training.gradient_accumulation_steps or 1)
        per_rank, rest = divmod(training.global_batch_size, per_micro_step)
        sizes = tuple(size for size in sizes if not rest and per_rank and per_rank % size == 0) or (1,)
    if (ramp := training.batch_ramp) is not None:
        smallest = math.gcd(ramp.start, ramp.increment)
        sizes = tuple(size for size in sizes if smallest % (layout.data_parallel_degree * size) == 0) or (1,)
    return sizes


def with_tiers(config: Config, shape: ModelShape, layout: Layout) -> tuple[Config, list[str]]:
    """Where states are kept, filled in (NVMe path, offload ratio, sub-group size), and what was chosen for that."""
    stated = config.parallelism
    all_moved = with_nvme_path(stated, config.hardware)
    fitted, of_ratio = _fitted_to_tiers(config, all_moved, shape, layout)
    found = with_sub_group_size(fitted, shape, layout)
    of_sub_groups = sub_group_notes(stated, found, shape, layout)
    return dataclasses.replace(config, parallelism=found), [*of_ratio, *of_sub_groups]


def _fitted_to_tiers(
    config: Config, all_moved: ParallelismConfig, shape: ModelShape, layout: Layout
) -> tuple[ParallelismConfig, list[str]]:
    """The ratio of the first micro batch and recomputation with which both tiers have room; where none has, of the leanest."""
    training, seq_len = config.training, config.training.seq_len or shape.max_seq_len

    def fits(batch: Batch, mode: ActivationCheckpointing, parallelism: ParallelismConfig, with_host: bool) -> bool:
        """A larger ratio takes more of the host: with both tiers, what fits is no longer from some ratio on."""
        hardware = config.hardware if with_host else dataclasses.replace(config.hardware, host_memory_gib=None)
        cut = with_sub_group_size(parallelism, shape, layout)
        with_ratio = dataclasses.replace(config, parallelism=cut, hardware=hardware)
        work = resolved_work(with_ratio, shape, layout, batch, config.precision, mode)
        return estimate_memory(work).fits_with_headroom

    found: tuple[ParallelismConfig, list[str]] = (all_moved, [])
    for size in _micro_batch_sizes(training, layout):
        batch, _ = resolve_batch(training, size, layout.data_parallel_degree, seq_len)
        for mode in recomputation_modes(training):
            on_gpu = functools.partial(fits, batch, mode, with_host=False)
            found = with_fitted_ratio(all_moved, config.hardware.gpu_memory_gib, on_gpu)
            if found[0] is all_moved or fits(batch, mode, found[0], with_host=True):
                return found
    return found


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
    work = RankWork(shape, layout, batch, config.parallelism, config.hardware, precision, checkpointing, offload)
    chunk = loss_chunk_size(config.training.loss_chunk_size, shape, work.tokens)
    return dataclasses.replace(work, loss_chunk_size=chunk)
