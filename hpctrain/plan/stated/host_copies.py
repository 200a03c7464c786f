"""What states in host memory take beyond their own size under DeepSpeed's offload: for runs of any trainer.

The terms that they are computed from are those of ``tier_memory``. ``plan/memory/stage3`` has our own engine's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hpctrain.plan.memory.estimate import CPU_PROCESS_BYTES
from hpctrain.plan.memory.terms import PROCESS_TERM, ROUNDING_TERM, SOURCES, Pinned
from hpctrain.plan.parameters import decoder_parameters
from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.stated.memory_habits import MemoryHabits
from hpctrain.plan.stated.tier_memory import RankTerm, TierMemory

FIRST_COPIES_TERM = "first copies of parameters"
FORKED_TERM = "pages of forked processes"
_FP32 = 4
_WRITTEN = ("master", "Adam moments")
"""States in ordinary memory that every step of the CPU optimizer writes. Pinned memory is the driver's, and shared by a fork."""


def with_host_copies(memory: TierMemory, setup: Setup, habits: MemoryHabits) -> TierMemory:
    """The same memory with these terms on the host.

    Args:
        memory: of ``tier_memory`` for ``setup``.
        setup: the run.
        habits: of its software.

    A fork of states of 12 bytes a parameter costs 12 more:

    >>> from hpctrain.plan.stated.memory_habits import HABITS
    >>> terms = (RankTerm("master", 40, "host", ""), RankTerm("Adam moments", 80, "host", ""))
    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> setup = Setup(plain_shape(1, 64, 64), 64, 1, 1, 8, zero_stage=1, offload_optimizer=True)
    >>> found = with_host_copies(TierMemory(0, terms, 8), setup, HABITS["megatron_deepspeed_2022"])
    >>> [(term.name, term.num_bytes) for term in found.terms[2:3]]
    [('pages of forked processes', 120)]
    """
    held = {term.name: term.num_bytes for term in memory.terms if term.tier == "host"}
    amounts = {PROCESS_TERM: (CPU_PROCESS_BYTES, SOURCES[PROCESS_TERM])}
    if habits.forks_loaders and setup.offload_optimizer:
        source = (
            "Megatron-LM, megatron/training.py: data iterators are built after model and optimizer, num-workers 2;"
            " torch/utils/data/dataloader.py: workers are forked; seen in modelscope/ms-swift#9687"
        )
        amounts[FORKED_TERM] = (sum(held.get(name, 0) for name in _WRITTEN), source)
    if setup.zero_stage == 3:
        amounts |= _pinned(held, setup, habits)
    new = [RankTerm(name, num_bytes, "host", source) for name, (num_bytes, source) in amounts.items() if num_bytes]
    new.sort(key=lambda term: term.name != FORKED_TERM)
    return replace(memory, terms=(*memory.terms, *new))


def _pinned(held: Mapping[str, int], setup: Setup, habits: MemoryHabits) -> dict[str, tuple[int, str]]:
    """Pinned memory in powers of two, and what its cache never gives back.

    16-bit parameters and gradients are one piece each, fp32 gradients one a sub-group. zero.Init pins each parameter's share by
    itself; these go back to torch's cache when all are copied into one piece, and no later request is as small.
    Source: DeepSpeed 0.8.1, runtime/zero/partition_parameters.py _partition_param; runtime/zero/stage3.py
    _create_param_groups_fp16_flat_cpu_memory, initialize_optimizer_states; aten/src/ATen/cuda/CachingHostAllocator.cpp.
    """
    sub_group = _FP32 * int(habits.step_elements or 1e9)
    pieces = [held.get("parameters", 0), held.get("gradients", 0)]
    whole, rest = divmod(held.get("fp32 gradients", 0), sub_group)
    pinned = Pinned((*pieces, *(sub_group for _ in range(whole)), rest))
    found = {ROUNDING_TERM: (pinned.rounded_bytes - pinned.num_bytes, SOURCES[ROUNDING_TERM])}
    if setup.offload_param:
        shares = [
            math.ceil(parameter.num_elements / setup.tensor_degree / setup.zero_ranks) * setup.bytes_per_element
            for parameter in decoder_parameters(setup.shape)
        ]
        source = "DeepSpeed 0.8.1, runtime/zero/partition_parameters.py: pinned one by one, kept by torch's cache"
        found[FIRST_COPIES_TERM] = (Pinned(tuple(shares)).rounded_bytes, source)
    return found
