"""The words of the planner's memory: terms, their sources, and the phases of a run in which memory peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from hpctrain.units import next_power_of_two

MemoryPhase = Literal["model", "engine", "forward", "backward", "optimizer"]
"""``model``: construction; ``engine``: deepspeed.initialize; then the three parts of a step, from the second step on."""
MEMORY_PHASES: tuple[MemoryPhase, ...] = ("model", "engine", "forward", "backward", "optimizer")

_DECODER = "hpctrain/worker/model/decoder.py"
CONTEXT_TERM = "context and NCCL"
PROCESS_TERM = "Python and torch"
ROUNDING_TERM = "rounding of pinned memory"
OUTSIDE_OF_TORCH = (CONTEXT_TERM, PROCESS_TERM, ROUNDING_TERM)
"""Terms of what no storage of torch holds; a rehearsal has no bytes for them."""

SOURCES: dict[str, str] = {
    "parameters": "runtime/zero/stage3.py, stage_1_and_2.py: one flat buffer",
    "persistent parameters": "runtime/zero/stage3.py _post_step",
    "gathered parameters": "runtime/zero/partitioned_param_coordinator.py, partition_parameters.py",
    "secondary partition": "runtime/zero/partition_parameters.py _partition_param_sec",
    "gradients": "runtime/zero/stage3.py _setup_for_real_optimizer; stage_1_and_2.py copy_grads_in_partition",
    "whole gradients": "autograd; handed over at the end of a block, of a tied table, of an accumulation",
    "fp32 gradients": "runtime/zero/stage3.py, stage_1_and_2.py initialize_optimizer_states",
    "fp32 master": "runtime/zero/stage3.py _create_fp32_partitions; stage_1_and_2.py; hpctrain/worker/plain_optimizer.py",
    "Adam moments": "torch/optim/adamw.py, ops/adam/cpu_adam.py: made in the first step",
    "reduce buckets": "runtime/zero/stage3.py _setup_for_real_optimizer; stage_1_and_2.py setup_buckets",
    "flattened for reduction": "runtime/comm/coalesced_collectives.py; runtime/engine.py allreduce_bucket",
    "transfer buffers": "runtime/zero/stage_1_and_2.py: of optimizer offload",
    "swap buffers": "runtime/swap_tensor/utils.py SwapBufferManager; partitioned_param_swapper.py: of NVMe offload",
    "block inputs": _DECODER,
    "activations": _DECODER,
    "activations of one block": _DECODER,
    "logits and loss": "hpctrain/worker/model/loss.py",
    "pipeline buffers": "runtime/pipe/engine.py pipe_buffers, _allocate_or_extend_buffers",
    "optimizer step": "runtime/zero/stage3.py step, _prepare_fp32_grad_for_sub_group; stage_1_and_2.py step",
    "initialisation": "runtime/zero/partition_parameters.py Init; runtime/engine.py; stage_1_and_2.py",
    CONTEXT_TERM: "assumed",
    ROUNDING_TERM: "aten/src/ATen/core/CachingHostAllocator.h: each piece up to a power of two",
    PROCESS_TERM: "read on a CPU build of torch",
}
"""Every term that there is, and the file of DeepSpeed 0.19.8, of torch or of this package that allocates it."""

Amounts = dict[str, int]
"""Term to bytes."""
PhaseAmounts = dict[MemoryPhase, Amounts]


@dataclass(frozen=True)
class MemoryTerm:
    """One allocation of one rank."""

    name: str
    num_bytes: int
    tier: str
    """``gpu`` or ``host``."""
    source: str
    pinned_bytes: int = field(default=0, kw_only=True)
    """Of ``num_bytes`` what is pinned host memory."""
    pinned_rounded_bytes: int = field(default=0, kw_only=True)
    """What torch's cache of pinned memory takes for it: each piece rounded up to a power of two."""


@dataclass(frozen=True)
class PhasePeak:
    """The most that one rank holds at once in one phase."""

    phase: MemoryPhase
    gpu_bytes: int
    """What torch's allocator counts; on CPU ranks 0."""
    host_bytes: int
    """Of one rank, without Python and torch."""


@dataclass(frozen=True)
class Pinned:
    """Pieces of pinned host memory, bytes each."""

    pieces: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(self.pieces)

    @property
    def rounded_bytes(self) -> int:
        """As torch's cache of pinned memory takes them. Source: aten/src/ATen/core/CachingHostAllocator.h.

        >>> Pinned((5, 8)).rounded_bytes
        16
        """
        return sum(count * next_power_of_two(piece) for piece, count in Counter(self.pieces).items() if piece)


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at the height of each phase, by term."""

    gpu: dict[MemoryPhase, Amounts]
    host: dict[MemoryPhase, Amounts]
    pinned: dict[str, Pinned]
    """Of the host's terms that are there through all steps, the pinned pieces."""


class Height:
    """The highest of many moments, as amounts of the terms given by name."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.num_bytes = -1
        self._amounts: tuple[int, ...] = (0,) * len(names)

    def offer(self, *amounts: int) -> None:
        """One more moment; amounts in the order of the names."""
        total = sum(amounts)
        if total > self.num_bytes:
            self.num_bytes, self._amounts = total, amounts

    def over(self, resting: Amounts) -> Amounts:
        """Its terms added to what is there all the time."""
        return added(resting, dict(zip(self._names, self._amounts, strict=True)))


def added(*parts: Amounts) -> Amounts:
    """Term by term."""
    found: Amounts = {}
    for part in parts:
        for name, num_bytes in part.items():
            found[name] = found.get(name, 0) + num_bytes
    return found


def total(amounts: Amounts) -> int:
    return sum(amounts.values())


def highest(phases: dict[MemoryPhase, Amounts]) -> Amounts:
    """The amounts of the phase that needs most; empty: none is given."""
    return max(phases.values(), key=total, default={})


def in_pieces(sizes: Iterable[int], bytes_each: int) -> Pinned:
    """Pieces of so many elements, each of so many bytes."""
    return Pinned(tuple(size * bytes_each for size in sizes if size))
