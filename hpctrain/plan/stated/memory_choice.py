"""What a run may do about memory where it does not say: sharding, recomputation, offload; the least change that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.plan.speed.step_parts import Setup, step_parts
from hpctrain.plan.stated.memory_habits import (
    CONTEXT_GIB,
    DOUBT_SHARE,
    FAMILY_CONTEXT_GIB,
    FUSED_LOSS_BYTES,
    UNCOUNTED_DOUBT_SHARE,
)
from hpctrain.plan.stated.remarks import checkpoints_on_device, virtual_stages_stated
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
    near: MemoryChoice | None = None
    """That best, where it is not this one."""
    doubt_share: float = DOUBT_SHARE
    """Of what is handed out: nearer to the limit nothing is told."""


def choose_memory(run: StatedRun, row: StatedRow) -> MemoryChoice:
    """The first of the allowed setups that fits; where none does, the row as it stands. So it is where the row states its load
    and is too near to the limit to be told: a change of ours would be the less likely guess.

    Only what the row leaves open is changed, in the order of its price: the ZeRO stage, recomputation, the share of blocks that
    FSDP's trainers recompute selectively, offload by DeepSpeed, and the sequence degree. Last, where nobody counted what the
    software keeps, its kernels and its units of FSDP: fused and small ones keep less, and what may fit with them, or nearly, is
    no refusal.

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
    if not run.trainer.is_counted:
        lean = _choice(_keeping_least(run), setup, (*chosen, "kernels and units that keep less"), is_open)
        if lean.fits is not False or lean.too_near:
            return replace(lean, fits=True, too_near=False)
    near = next((choice for choice in refused if choice.too_near), None)
    return replace(refused[0], too_near=near is not None, near=near)


def _keeping_least(run: StatedRun) -> StatedRun:
    """The same run by a trainer that keeps as little of a block and of the loss as one can without computing a product again, and
    gathers a matrix at a time."""
    known = run.trainer.habits
    habits = replace(
        known,
        fuses_elementwise=True,
        loss_bytes=min(FUSED_LOSS_BYTES, known.loss_bytes),
        split_loss_bytes=None,
        live_elements=0.0 if known.sharded_master_only else known.live_elements,
    )
    return replace(run, trainer=replace(run.trainer, habits=habits))


def _choice(run: StatedRun, setup: Setup, chosen: tuple[str, ...], micro_batch_chosen: bool) -> MemoryChoice:
    capacity, reading = run.capacity_bytes, run.trainer.reading
    memory = _rank(run, setup, None)
    # Who looks with nvidia-smi looks at the first node: BigScience prints 15 GB at a micro batch of 8 (two pipeline ranks, V100)
    # where 16 runs out of 32 GB, which only the last rank with its logits can.
    seen = _rank(run, setup, 0) if reading == "device" else memory
    fits = None if capacity is None else memory.needed_bytes <= capacity
    doubt_share = DOUBT_SHARE if run.trainer.is_counted else UNCOUNTED_DOUBT_SHARE
    too_near = capacity is not None and memory.surely_fits(capacity, doubt_share) is None
    peak_bytes = seen.read_bytes(reading, capacity)
    return MemoryChoice(setup, memory, fits, peak_bytes, chosen, micro_batch_chosen, too_near, doubt_share=doubt_share)


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
    family = "" if run.device is None else run.device.family
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
    setup, trainer, notes = run.setup, run.trainer, text_of(row, "notes")
    # Stage 3 goes with tensor ranks, and with a pipeline in PyTorch alone.
    may_shard = setup.pipeline_degree == 1 or trainer.habits.sharded_master_only
    is_open = {name: not text_of(row, name) for name in ("activation_ckpt", "offload_optimizer", "offload_param")}
    stage_open = count_of(row, "zero_stage") is None and setup.zero_stage == 0 and setup.zero_ranks > 1
    if stage_open:
        yield "states sharded in stage 1", {"zero_stage": 1}
    if is_open["activation_ckpt"]:
        yield "selective recomputation", {"recomputation": "selective"}
        yield "full recomputation", {"recomputation": "full"}
    elif setup.recomputation == "selective" and trainer.chooses_blocks:
        yield "full recomputation", {"recomputation": "full"}
    if stage_open and may_shard:
        yield "states sharded in stage 3", {"zero_stage": 3}
    stage = 3 if stage_open and may_shard else setup.zero_stage
    if setup.virtual_stages > 1 and not virtual_stages_stated(notes):
        # The more pieces, the fewer micro batches are in flight, down to one a pipeline rank.
        yield "more virtual stages", {"virtual_stages": 1}
    full = is_open["activation_ckpt"] or setup.recomputation == "full"
    on_host = not is_open["offload_optimizer"] and setup.offload_optimizer
    # Only split inputs can leave the GPU by themselves (DeepSpeed, activation_checkpointing/checkpointing.py, checkpoint_in_cpu).
    is_split = trainer.offloads and stage >= 2 and full and setup.tensor_degree > 1
    if is_split and not setup.split_block_inputs:
        yield "block inputs split over tensor ranks", {"split_block_inputs": True}
    if trainer.offloads and stage >= 1:
        if is_open["offload_optimizer"]:
            yield "optimizer on the host", {"offload_optimizer": True}
            on_host = True
        may_move = not setup.offload_activations and not checkpoints_on_device(notes)
        if full and may_move and (on_host or (is_split and stage == 3)):
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
