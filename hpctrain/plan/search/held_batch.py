"""What all candidates have in common: the sequences of a step.

Only then does the fastest one do the same training as the others. Where the global batch is not stated it is held at so many
sequences a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from hpctrain.config.schema import Config
from hpctrain.plan.held_sequences import sequences_per_gpu
from hpctrain.plan.search.candidate import OpenKeys
from hpctrain.units import counted

LARGEST_MICRO_BATCH = 128
"""Sequences of those that a rank takes at a time, however large its share of the batch is."""

_T = TypeVar("_T")


class Held(NamedTuple):
    """What is equal for all candidates."""

    num_sequences: int
    text: str


def held_batches(config: Config, open_keys: OpenKeys, seq_len: int) -> Iterator[Held]:
    """Sequences of a step, the same for all candidates; each next one where with the one before nothing fits.

    Stated, it is that. A stated micro batch (with its accumulation) is that of plain data parallelism over all GPUs. Else it is
    the largest power of two of sequences a GPU up to 8 and 16,384 tokens; smaller ones only where a stated accumulation keeps a
    candidate from taking fewer of them at a time.
    """
    training, num_gpus = config.training, config.nodes * config.hardware.gpus_per_node
    if training.global_batch_size is not None:
        yield Held(training.global_batch_size, f"{counted(training.global_batch_size, 'sequence')} a step, as stated")
        return
    micro = stated(training.micro_batch_size, "training.micro_batch_size", open_keys)
    accumulation = stated(training.gradient_accumulation_steps, "training.gradient_accumulation_steps", open_keys)
    per_gpu = micro or sequences_per_gpu(seq_len)
    while per_gpu:
        size = per_gpu * num_gpus * (accumulation or 1)
        each = f"{per_gpu} a GPU" if accumulation in (None, 1) else f"{per_gpu} a GPU and micro step"
        yield Held(size, f"{counted(size, 'sequence')} a step ({each}; training.global_batch_size not stated)")
        if micro or not accumulation:
            return
        per_gpu //= 2


def stated(value: _T | None, key: str, open_keys: OpenKeys) -> _T | None:
    """The value of a key that is not open."""
    return None if key in open_keys else value
