"""What the allocator holds beyond what a run needs, where the cause is known: copies of collectives, and a model made whole."""

from __future__ import annotations

import math

from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.stated.memory_habits import MemoryHabits


def copied_bytes(setup: Setup, habits: MemoryHabits, parameters: float) -> tuple[int, int] | None:
    """All copies of a step for reductions, and for gathers; None: each takes the place of the one before, or there are none.

    Source: torch 1.8 to 2.0, distributed/c10d/ProcessGroupNCCL.cpp (recordStream) and c10/cuda/CUDACachingAllocator.cpp
    (process_events): a block that another stream used is free when that stream's event has passed. DeepSpeed 0.5,
    runtime/engine.py (buffered_allreduce_fallback): all gradients are flattened, bucket by bucket.

    Args:
        setup: the run.
        habits: of its software.
        parameters: of one rank, before they are sharded.

    >>> from hpctrain.plan.stated.memory_habits import HABITS
    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> setup = Setup(plain_shape(24, 2048, 50304), 2048, 1, 64, 8, zero_stage=1)
    >>> copied_bytes(setup, HABITS["megatron_deepspeed_2022"], 1e9)
    (2000000000, 2000000000)
    """
    if habits.awaits_collectives or setup.zero_ranks == 1 or setup.zero_stage > 2:
        return None
    whole = math.ceil(parameters * setup.bytes_per_element)
    reduced = whole if habits.reduces_at_boundary and setup.zero_stage < 2 else 0
    return reduced, whole if habits.gather_bucket is not None and setup.zero_stage >= 1 else 0


def first_bytes(setup: Setup, habits: MemoryHabits, parameters: float, shard_ranks: int) -> int:
    """The whole model in the training type, and this rank's share of it; 0: it is made in shares, or stays whole.

    Source: DeepSpeed, runtime/engine.py (_configure_distributed_model): a model that zero.Init did not make is moved to the GPU.

    Args:
        setup: the run.
        habits: of its software.
        parameters: of one rank, before they are sharded.
        shard_ranks: ranks that they are sharded over.
    """
    if not habits.whole_model_first or setup.zero_stage < 3:
        return 0
    return math.ceil(parameters * setup.bytes_per_element * (1 + 1 / shard_ranks))
