"""What a run may do about memory where it does not say: sharding, recomputation, offload; the least change that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.plan.speed.step_parts import Setup, step_parts
from hpctrain.plan.stated.memory_habits import CONTEXT_GIB, FAMILY_CONTEXT_GIB
from hpctrain.plan.stated.remarks import virtual_stages_stated
from hpctrain.plan.stated.run import StatedRow, StatedRun, count_of, text_of
from hpctrain.plan.stated.tier_memory import TierMemory, rank_memory, tier_memory

LONG_SEQUENCE = 16384
"""Tokens from which a sequence degree that is not stated may be more than 1."""


@dataclass(frozen=True)
class MemoryChoice:
    """The setup that is planned, and its memory."""

    setup: Setup
    memory: TierMemory
    fits: bool | None
    """None: the row names no GPU."""
    peak_bytes: float
    """As the row's source would read it."""
    chosen: tuple[str, ...]
    """What was chosen so that it fits."""
    micro_batch_chosen: bool
    """The row states none: the fastest that fits was taken, or 1 where the global batch is not stated either."""
    too_near: bool = False
    """What it needs, or the best that the row leaves open, is too near to the GPU's limit to be told."""


def choose_memory(run: StatedRun, row: StatedRow) -> MemoryChoice:
    """The first of the allowed setups that fits; where none does, the row as it stands. So it is where the row states its load
    and is too near to the limit to be told: a change of ours would be the less likely guess.

    Only what the row leaves open is changed, in the order of its price: the ZeRO stage, recomputation, the share of blocks that
    FSDP's trainers recompute selectively, offload by DeepSpeed, and the sequence degree.

    Args:
        run: the row, resolved.
        row: the same row; what it does not state is open.
    """
    is_open = count_of(row, "micro_batch_per_gpu") is None
    refused: list[MemoryChoice] = []
    for setup, chosen in _allowed(run, row):
        choice = _choice(run, setup, chosen, is_open)
        if choice.fits is not False or (choice.too_near and not chosen and not is_open):
            return _fastest(run, choice) if is_open and row.get("global_batch") is not None else choice
        refused.append(choice)
    return replace(refused[0], too_near=any(choice.too_near for choice in refused))


def _choice(run: StatedRun, setup: Setup, chosen: tuple[str, ...], micro_batch_chosen: bool) -> MemoryChoice:
    capacity, reading = run.capacity_bytes, run.trainer.reading
    memory = _rank(run, setup, None)
    # Who looks with nvidia-smi looks at the first node: BigScience prints 15 GB at a micro batch of 8 (two pipeline ranks, V100)
    # where 16 runs out of 32 GB, which only the last rank with its logits can.
    seen = _rank(run, setup, 0) if reading == "device" else memory
    fits = None if capacity is None else memory.needed_bytes <= capacity
    too_near = capacity is not None and memory.surely_fits(capacity) is None
    return MemoryChoice(setup, memory, fits, seen.read_bytes(reading, capacity), chosen, micro_batch_chosen, too_near)


def _fastest(run: StatedRun, smallest: MemoryChoice) -> MemoryChoice:
    """Of micro batches that divide the share of a replica, powers of two, that one that fits and takes least time."""
    best = smallest
    if run.machine is None:
        return best
    micro_steps = best.setup.num_micro_steps
    least_s = sum(step_parts(best.setup, run.machine, run.trainer.software).values())
    size = 2
    while micro_steps % size == 0:
        setup = replace(smallest.setup, micro_batch_size=size, num_micro_steps=micro_steps // size)
        choice = _choice(run, setup, smallest.chosen, True)
        if not choice.fits or choice.too_near:
            break
        time_s = sum(step_parts(setup, run.machine, run.trainer.software).values())
        if time_s < least_s:
            best, least_s = choice, time_s
        size *= 2
    return best


def _rank(run: StatedRun, setup: Setup, rank: int | None) -> TierMemory:
    """Memory of one pipeline rank; None: of the fullest."""
    trainer = run.trainer
    gpus_per_node = 8 if run.machine is None else run.machine.gpus_per_node
    family = "" if run.device is None else run.device.name.split("-")[0]
    context_gib = FAMILY_CONTEXT_GIB.get(family, CONTEXT_GIB)
    if rank is None or setup.pipeline_degree == 1:
        return tier_memory(setup, trainer.software, trainer.habits, trainer.states, gpus_per_node, context_gib)
    return rank_memory(setup, trainer.software, trainer.habits, rank, trainer.states, gpus_per_node, context_gib)


def _allowed(run: StatedRun, row: StatedRow) -> Iterator[tuple[Setup, tuple[str, ...]]]:
    """Setups, each with one more change, and the words of all changes so far."""
    setup, texts = run.setup, dict[str, str]()
    yield setup, ()
    for words, changes in _changes(run, row):
        setup = replace(setup, **changes)
        field = next(iter(changes))
        texts[field] = words  # of two stages, or two kinds of recomputation, the later one counts
        yield setup, tuple(texts.values())


def _changes(run: StatedRun, row: StatedRow) -> Iterator[tuple[str, dict[str, Any]]]:
    setup, trainer = run.setup, run.trainer
    alone = setup.tensor_degree == setup.pipeline_degree == 1
    is_open = {name: not text_of(row, name) for name in ("activation_ckpt", "offload_optimizer", "offload_param")}
    stage_open = count_of(row, "zero_stage") is None and setup.data_degree > 1
    if stage_open:
        yield "states sharded in stage 1", {"zero_stage": 1}
    if is_open["activation_ckpt"]:
        yield "selective recomputation", {"recomputation": "selective"}
        yield "full recomputation", {"recomputation": "full"}
    elif setup.recomputation == "selective" and trainer.software.selective_share > 0:
        yield "full recomputation", {"recomputation": "full"}
    if stage_open and alone:
        yield "states sharded in stage 3", {"zero_stage": 3}
    stage = 3 if stage_open and alone else setup.zero_stage
    if setup.virtual_stages > 1 and not virtual_stages_stated(text_of(row, "notes")):
        # The more pieces, the fewer micro batches are in flight, down to one a pipeline rank.
        yield "more virtual stages", {"virtual_stages": 1}
    full = is_open["activation_ckpt"] or setup.recomputation == "full"
    on_host = not is_open["offload_optimizer"] and setup.offload_optimizer
    # Only split inputs can leave the GPU by themselves (DeepSpeed, activation_checkpointing/checkpointing.py, checkpoint_in_cpu).
    is_split = trainer.offloads and stage == 3 and full and setup.tensor_degree > 1
    if is_split:
        yield "block inputs split over tensor ranks", {"split_block_inputs": True}
    if trainer.offloads and stage >= 1:
        if is_open["offload_optimizer"]:
            yield "optimizer on the host", {"offload_optimizer": True}
            on_host = True
        if (on_host or is_split) and full and not setup.offload_activations:
            yield "block inputs on the host", {"offload_activations": True}
        if on_host and is_open["offload_param"] and stage == 3:
            yield "parameters on the host", {"offload_param": True}
    if trainer.habits.sharded_master_only and stage == 3 and is_open["offload_optimizer"] and is_open["offload_param"]:
        # Source: PyTorch, torch/distributed/fsdp (CPUOffload): shards, their gradients and the optimizer together.
        yield "parameters and optimizer on the host", {"offload_param": True, "offload_optimizer": True}
        if full and not setup.offload_activations:
            # Source: FairScale, nn/checkpoint/checkpoint_activations.py (offload_to_cpu), and its heir in PyTorch.
            yield "block inputs on the host", {"offload_activations": True}
    if setup.seq_len >= LONG_SEQUENCE and count_of(row, "cp_sp") is None and count_of(row, "dp") is None:
        degree = 2
        while setup.data_degree % degree == 0:
            yield f"sequence split over {degree} GPUs", {"sequence_degree": degree}
            degree *= 2
