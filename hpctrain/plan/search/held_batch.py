"""What all candidates have in common: the sequences of a step.

Only then does the fastest one do the same training as the others. Where the global batch is not stated it is held at so many
sequences a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from hpctrain.config.schema import Config
from hpctrain.plan.search.candidate import OpenKeys
from hpctrain.units import counted

MOST_SEQUENCES_PER_GPU = 8
"""Of a step whose batch nobody states. More are faster where sequences are short, and how many a step has is a decision of the
training: as many as the published runs of 530B to 2T took. Source: DeepSpeed on Azure (2022-07-26), figures 6 and 7."""
MOST_TOKENS_PER_GPU = 16384
"""The same in tokens, for long sequences; a choice: 2,048 tokens eight times, a long enough product for any matrix."""
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
    per_gpu = micro or min(MOST_SEQUENCES_PER_GPU, max(1, _power_of_two_below(MOST_TOKENS_PER_GPU // seq_len)))
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


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0
