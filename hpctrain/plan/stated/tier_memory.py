"""Memory of one GPU and one node for runs of any training software, term by term: closed rules, no measurement.

The rules for our own worker are in ``plan/memory/estimate.py`` and follow its engine; these know tensor, pipeline and sequence
parallelism, FSDP and Megatron. All sizes are bytes of one rank, of that pipeline rank which needs most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hpctrain.plan.memory.terms import MemoryTerm
from hpctrain.plan.speed.software import Software
from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.stated.held_beyond import copied_bytes, first_bytes
from hpctrain.plan.stated.memory_habits import (
    CACHED_SHARE,
    CACHED_SHARE_OF_ALL,
    COLLECTIVES_GIB,
    CONTEXT_GIB,
    DOUBT_SHARE,
    STUCK_HOLES,
    STUCK_SHARE,
    MemoryHabits,
)
from hpctrain.plan.stated.rank_activations import backward_bytes, block_bytes, loss_bytes
from hpctrain.units import GIB

States = Literal["mixed", "pure", "fp32"]
"""16-bit parameters with an fp32 master and moments; all in 16 bit; all in fp32."""
Reading = Literal["device", "reserved", "allocated"]
"""How a source measures: nvidia-smi on the first GPU, the allocator's reserved bytes, or what is allocated in them."""

FLAT, KEPT, STASHED, WORKING, STEP, OUTSIDE = "flat", "kept", "stashed", "working", "step", "outside"
COPIES = "copies"


@dataclass(frozen=True)
class RankTerm(MemoryTerm):
    """One allocation of one rank, with when it is there."""

    phase: str = KEPT
    """``flat``: made once, before the first step; ``kept`` through the whole step; at the height of a pass ``stashed`` between
    tensors that were given up again, or ``working``; ``step`` in the optimizer's step, and ``copies`` for its collectives;
    ``outside`` the allocator."""


@dataclass(frozen=True)
class TierMemory:
    """Memory of the rank that needs most."""

    pipeline_rank: int
    terms: tuple[RankTerm, ...]
    ranks_per_node: int
    has_flat_states: bool = True
    copied_bytes: tuple[int, int] | None = None
    """Of ``held_beyond``."""
    first_bytes: int = 0
    """The same."""
    step_in_pieces: bool = False
    """Of ``MemoryHabits``."""

    def gpu_bytes(self, *phases: str) -> int:
        """Sum of the GPU's terms of these phases."""
        return sum(term.num_bytes for term in self.terms if term.tier == "gpu" and term.phase in phases)

    @property
    def allocated_bytes(self) -> int:
        """Peak of what the allocator hands out: the height of a pass and the optimizer's step do not coincide."""
        return self.gpu_bytes(FLAT, KEPT) + max(self.gpu_bytes(STASHED, WORKING), self.gpu_bytes(COPIES, STEP))

    @property
    def needed_bytes(self) -> int:
        """What the GPU must have: below it the allocator has given back all that it can."""
        stuck = self.allocated_bytes * STUCK_SHARE
        if self.has_flat_states:
            stuck = max(stuck, self.gpu_bytes(KEPT, STASHED) * CACHED_SHARE * STUCK_HOLES)
        return math.ceil(self.allocated_bytes + stuck) + self.gpu_bytes(OUTSIDE)

    def surely_fits(self, capacity_bytes: float, doubt_share: float = DOUBT_SHARE) -> bool | None:
        """Whether a GPU of this size has enough; None: it is too near to the limit to be told."""
        doubt = doubt_share * self.allocated_bytes
        if self.needed_bytes + doubt <= capacity_bytes:
            return True
        return False if self.needed_bytes - doubt > capacity_bytes else None

    @property
    def host_bytes_per_node(self) -> int:
        return self.ranks_per_node * sum(term.num_bytes for term in self.terms if term.tier == "host")

    def read_bytes(self, reading: Reading, capacity_bytes: float | None) -> float:
        """The peak as a source with that way of measuring would print it.

        What is made once, or in the same order in every pass, has blocks of its size; gradients and block inputs are made
        between tensors that are given up again, and leave holes that fit no request. The flat vectors of an optimizer step are
        larger than these, so the allocator asks for new memory as long as the GPU has some, and gives blocks back only when it
        has none. So it does for a copy whose predecessor a collective still reads; those of the reductions are free again when
        the host has read whether gradients overflowed, and serve the optimizer.
        """
        if reading == "allocated":
            return self.allocated_bytes
        outside = self.gpu_bytes(OUTSIDE)
        step = self.gpu_bytes(COPIES, STEP)
        if self.copied_bytes is not None:
            reduced, gathered = self.copied_bytes
            step = max(reduced, self.gpu_bytes(STEP)) + gathered
        elif self.step_in_pieces:
            step = max(0, step - self.gpu_bytes(STASHED, WORKING))
        if self.has_flat_states:
            reserved = self.gpu_bytes(FLAT, WORKING) + step + self.gpu_bytes(KEPT, STASHED) * (1 + CACHED_SHARE)
        else:
            reserved = (self.gpu_bytes(FLAT, KEPT, STASHED, WORKING) + step) * (1 + CACHED_SHARE_OF_ALL)
        reserved = max(reserved, self.first_bytes)
        if capacity_bytes is not None:
            reserved = max(self.needed_bytes - outside, min(reserved, capacity_bytes - outside))
        return reserved + (outside if reading == "device" else 0)


def tier_memory(
    setup: Setup,
    software: Software,
    habits: MemoryHabits,
    states: States = "mixed",
    gpus_per_node: int = 8,
    context_gib: float = CONTEXT_GIB,
) -> TierMemory:
    """Memory of the fullest pipeline rank: the first holds most micro batches, the last the logits.

    Args:
        setup: shape, degrees, batch, recomputation and offload.
        software: its attention (fused or not), sequence parallelism and cut of pipeline stages.
        habits: what that software keeps.
        states: data types of the model's states.
        gpus_per_node: for the host's share.
        context_gib: what a process of that GPU takes outside the allocator.
    """
    ranks = sorted({0, setup.pipeline_degree - 1})
    answers = [rank_memory(setup, software, habits, rank, states, gpus_per_node, context_gib) for rank in ranks]
    return max(answers, key=lambda answer: answer.needed_bytes)


def rank_memory(
    setup: Setup,
    software: Software,
    habits: MemoryHabits,
    rank: int,
    states: States = "mixed",
    gpus_per_node: int = 8,
    context_gib: float = CONTEXT_GIB,
) -> TierMemory:
    """Memory of one pipeline rank, counted from 0; further arguments as ``tier_memory``."""
    per_node = min(gpus_per_node, setup.num_gpus)
    terms = _rank_terms(setup, software, habits, states, rank, per_node, context_gib)
    parameters = rank_parameters(setup, rank_layers(setup, software, rank), rank)
    first = first_bytes(setup, habits, parameters, _shard_ranks(setup, habits, per_node))
    copied = copied_bytes(setup, habits, parameters)
    return TierMemory(rank, terms, per_node, habits.flat_states, copied, first, habits.step_in_pieces)


def _rank_terms(
    setup: Setup,
    software: Software,
    habits: MemoryHabits,
    states: States,
    rank: int,
    per_node: int,
    context_gib: float,
) -> tuple[RankTerm, ...]:
    ranks = _shard_ranks(setup, habits, per_node)
    layers = rank_layers(setup, software, rank)
    parameters = rank_parameters(setup, layers, rank)
    terms = [
        *_state_terms(setup, habits, states, parameters, ranks),
        *_communication_terms(setup, habits, parameters, per_node),
        *_activation_terms(setup, software, habits, layers, rank),
        *_step_terms(setup, habits, states, parameters, ranks),
        _gpu(
            "CUDA context",
            context_gib * GIB,
            "BigScience, read with nvidia-smi on V100 and A100; else assumed",
            OUTSIDE,
        ),
    ]
    if habits.placeholder_gradients:
        block = setup.bytes_per_element * setup.shape.block_parameters / setup.tensor_degree
        terms.append(_gpu("placeholder gradients", block, habits.source))
    if setup.num_gpus > 1:
        terms.append(_gpu("collective library", COLLECTIVES_GIB * GIB, "assumed", OUTSIDE))
    return tuple(term for term in terms if term.num_bytes)


def _shard_ranks(setup: Setup, habits: MemoryHabits, per_node: int) -> int:
    """Ranks that states are sharded over: data-parallel and sequence ranks together; with HSDP those of one node.

    ZeRO++ keeps its states sharded over all, and a second copy of the parameters in each node.
    """
    within = setup.shard_within_node and habits.sharded_master_only
    return min(setup.zero_ranks, per_node) if within else setup.zero_ranks


def _gpu(name: str, num_bytes: float, source: str, phase: str = KEPT) -> RankTerm:
    return RankTerm(name, math.ceil(num_bytes), "gpu", source, phase)


def _host(name: str, num_bytes: float, source: str, phase: str = KEPT) -> RankTerm:
    return RankTerm(name, math.ceil(num_bytes), "host", source, phase)


def rank_layers(setup: Setup, software: Software, rank: int) -> float:
    """Blocks of a pipeline rank: equal shares, the larger ones first; by cost where the software cuts so.

    Where two blocks are missing for equal shares, the two tables stand for them: the first and the last rank have one block fewer
    (126 blocks of Llama 3 405B, 70 of BLOOM). Cut by cost, the logits weigh as many blocks as they have parameters, and a rank is
    filled until it has its share.

    Source: Megatron-LM, arguments account-for-embedding-in-pipeline-split and account-for-loss-in-pipeline-split;
    Megatron-DeepSpeed, pp-partition-method type:transformer|embedding.
    """
    layers, p = setup.shape.num_layers, setup.pipeline_degree
    if not software.balanced_stages or p == 1:
        if layers % p and (layers + 2) % p == 0:
            return (layers + 2) // p - (1 if rank in (0, p - 1) else 0)
        return layers // p + (1 if rank < layers % p else 0)
    head = setup.shape.vocab_size * setup.shape.hidden_size / setup.shape.block_parameters
    first = min(layers, math.ceil((layers + head) / p))
    return first if rank < p - 1 else max(0, layers - first * (p - 1))


def rank_parameters(setup: Setup, layers: float, rank: int) -> float:
    """Parameters of one tensor rank; a tied table stands on the first and on the last pipeline rank.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3; Megatron-LM, core/models/gpt/gpt_model.py.
    """
    shape, p = setup.shape, setup.pipeline_degree
    if p == 1:
        return shape.num_parameters / setup.tensor_degree
    tables = 0.0
    if rank == 0:
        tables += shape.embedding_parameters - (0 if shape.tie_embeddings else shape.vocab_size * shape.hidden_size)
    if rank == p - 1:
        tables += shape.vocab_size * shape.hidden_size
    return (layers * shape.block_parameters + tables) / setup.tensor_degree


def _widths(habits: MemoryHabits, states: States) -> tuple[int, int, int, int]:
    """Bytes of parameter, gradient, master and both moments."""
    if states == "fp32":
        return 4, 4, 0, 8
    return (2, 2, 2, 4) if states == "pure" else (2, habits.gradient_bytes, 4, 8)


def _state_terms(setup: Setup, habits: MemoryHabits, states: States, parameters: float, ranks: int) -> list[RankTerm]:
    """Parameters, gradients, master copy and moments, each whole or as this rank's share.

    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 5.
    """
    parameter, gradient, master, moments = _widths(habits, states)
    stage, share = setup.zero_stage, parameters / ranks
    held = share if stage == 3 else parameters
    updated = share if stage >= 1 else parameters
    reduced = share if stage >= 2 else parameters
    source = habits.source
    if habits.sharded_master_only:
        # The shard is the fp32 master itself; all in 16 bit it is updated in place.
        parameter = 0 if states == "mixed" and stage >= 2 and setup.zero_ranks > 1 else parameter
        master = 0 if states == "pure" else master
    param_tier = _host if setup.offload_param else _gpu
    if not setup.offload_optimizer:
        return [
            param_tier("parameters", parameter * held, source, FLAT),
            _gpu("gradients", gradient * reduced, source),
            _gpu("master", master * updated, source, FLAT),
            _gpu("Adam moments", moments * updated, source, FLAT),
        ]
    on_gpu = parameters if stage <= 1 else 0
    return [
        param_tier("parameters", parameter * held, source, FLAT),
        _gpu("gradients", gradient * on_gpu, source),
        _host("gradients", (gradient if stage >= 2 else 0) * reduced, source),
        _host("master", master * updated, source),
        _host("Adam moments", moments * updated, source),
        _host("fp32 gradients", 4 * updated, source),
    ]


def _communication_terms(setup: Setup, habits: MemoryHabits, parameters: float, per_node: int) -> list[RankTerm]:
    """Buckets of the reduction and, in stage 3, parameters that are gathered at a time.

    DeepSpeed allocates its buckets, and gathers, even where a rank has no peer.
    """
    shape, tp, width = setup.shape, setup.tensor_degree, setup.bytes_per_element
    if setup.zero_ranks == 1 and not habits.buckets:
        return []
    elements = shape.hidden_size**2 if habits.bucket_elements is None else habits.bucket_elements
    bucket = min(elements, parameters) * width
    if habits.reduces_at_boundary and setup.zero_stage < 2:
        terms = [_gpu("reduction buckets", bucket, habits.source, COPIES)]
    else:
        terms = [_gpu("reduction buckets", habits.buckets * bucket, habits.source)]
    if setup.zero_stage < 3:
        if habits.sharded_master_only:
            terms.append(_gpu("gathered parameters", width * parameters, habits.source))
        return terms
    block = shape.block_parameters / tp
    tables = shape.embedding_parameters / tp
    if habits.keeps_gathered and setup.pipeline_degree > 1:
        summed = _gpu("gradients summed whole", 4 * parameters, habits.source)
        return [*terms, _gpu("gathered parameters", width * parameters, habits.source), summed]
    if habits.live_elements is None:
        # Parameters of the unit in use, the next one, and the whole gradient of one; tables stay gathered with the root unit.
        gathered = 3 * block + 2 * tables
    else:
        largest = _largest_matrix(setup)
        live = setup.live_parameters or habits.live_elements
        gathered = min(parameters, max(live, largest) + largest)
        if setup.shard_within_node or setup.second_partition_ranks > 1:
            terms.append(_gpu("secondary partition", width * parameters / per_node, habits.source))
    terms.append(_gpu("gathered parameters", width * gathered, habits.source, WORKING))
    return terms


def _largest_matrix(setup: Setup) -> float:
    """Elements of one tensor rank's part of it: the token table or one of the feed-forward's."""
    shape = setup.shape
    return max(shape.vocab_size, shape.ffn_hidden_size) * shape.hidden_size / setup.tensor_degree


def _activation_terms(
    setup: Setup, software: Software, habits: MemoryHabits, layers: float, rank: int
) -> list[RankTerm]:
    """What forward passes in flight keep, and the height of a pass over it: the backward of a block, or the loss."""
    source = "Korthikanti et al. 2022 (arXiv 2205.05198), section 4"
    count = micro_batches_in_flight(setup, rank)
    outputs = 0.0
    if habits.kept_outputs and setup.pipeline_degree > 1 and rank < setup.pipeline_degree - 1:
        outputs = count * setup.tokens_per_micro_step * setup.shape.hidden_size * setup.bytes_per_element
    one_block = block_bytes(setup, software, habits, setup.recomputation)
    if setup.split_block_inputs:
        one_block /= setup.tensor_degree
    kept = count * layers * one_block + outputs
    working = backward_bytes(setup, software, habits)
    if setup.recomputation != "none":
        working += block_bytes(setup, software, habits, "none") - (0 if setup.recomputation == "full" else one_block)
    if setup.offload_activations:
        terms = [_host("block inputs", kept - one_block, source), _gpu("block inputs", one_block, source, WORKING)]
    else:
        terms = [_gpu("activations", kept, source, STASHED if setup.recomputation == "full" else WORKING)]
    height = [_gpu("backward of one block", working, source, WORKING)]
    if rank == setup.pipeline_degree - 1:
        loss = [_gpu("logits and loss", loss_bytes(setup, habits), habits.source, WORKING)]
        height = max(height, loss, key=lambda group: group[0].num_bytes)
    return terms + height


def micro_batches_in_flight(setup: Setup, rank: int) -> float:
    """Micro batches whose activations a pipeline rank holds at once in the 1F1B schedule.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; interleaved: Korthikanti et al. 2022, section 4.2.3.

    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> setup = Setup(plain_shape(8, 1024, 50304), 2048, 1, 16, 8, pipeline_degree=8)
    >>> [micro_batches_in_flight(setup, rank) for rank in (0, 7)]
    [8.0, 1.0]
    """
    p, v = setup.pipeline_degree, setup.virtual_stages
    if v == 1:
        return float(min(setup.num_micro_steps, p - rank))
    chunks = 2 * (p - rank - 1) + (v - 1) * p + 1
    return min(setup.num_micro_steps * v, chunks) / v


def _step_terms(setup: Setup, habits: MemoryHabits, states: States, parameters: float, ranks: int) -> list[RankTerm]:
    """Scratch of the optimizer's step, and of sums before it: gradients flattened, and in fp32."""
    if habits.cast_gradients:
        in_fp32 = _gpu("gradient in fp32", 4 * _largest_matrix(setup), habits.source, STEP)
        return [in_fp32, *_list_terms(setup, habits, parameters)]
    if setup.offload_optimizer or states == "fp32":
        return []
    updated = parameters / ranks if setup.zero_stage >= 1 else parameters
    if setup.zero_stage == 3 and habits.step_elements is not None:
        updated = min(updated, habits.step_elements)
    width = habits.step_bytes if states == "mixed" else min(habits.step_bytes, 2)
    return [_gpu("optimizer step", width * updated, habits.source, STEP), *_list_terms(setup, habits, parameters)]


def _list_terms(setup: Setup, habits: MemoryHabits, parameters: float) -> list[RankTerm]:
    """The flat copy that torch gathers into where it is handed a list of shares: the updated parameters, in equal buckets.

    Source: DeepSpeed 0.5 and 0.6, runtime/zero/stage_1_and_2.py (step: num_shards of allgather_bucket_size) and
    runtime/bf16_optimizer.py; torch 1.10, distributed/c10d/ProcessGroupNCCL.cpp (flatten_for_scatter_gather).
    """
    if habits.gather_bucket is None or not 1 <= setup.zero_stage <= 2:
        return []
    pieces = max(1, parameters // habits.gather_bucket)
    return [_gpu("gathered list", setup.bytes_per_element * parameters / pieces, habits.source, COPIES)]
