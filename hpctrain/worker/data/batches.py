"""Which sequences every rank sees in which step: the same global batch however it is split."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpctrain.plan.layout import Batch
from hpctrain.worker.data.corpus import Tokens


@dataclass
class TokenBatches:
    """Sequences of a corpus: its windows of ``seq_len + 1`` tokens, without overlap, shuffled anew in every epoch.

    Sample number ``(step - 1) * global_batch_size + position`` decides the sequence, so the sequences of a step do not
    depend on world size, micro batch or accumulation.
    """

    tokens: Tokens
    batch: Batch
    seed: int
    rank: int
    world_size: int
    _orders: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    """Permutations of the epochs in use."""

    @property
    def num_windows(self) -> int:
        return len(self.tokens) // (self.batch.seq_len + 1)

    def micro_batch(self, step: int, micro_step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids and labels of this rank, each (micro_batch, seq).

        Args:
            step: optimizer step, from 1.
            micro_step: from 0.
        """
        size = self.batch.micro_batch_size
        first_position = (micro_step * self.world_size + self.rank) * size
        first_sample = (step - 1) * self.batch.global_batch_size + first_position
        width = self.batch.seq_len + 1
        starts = [self.window(sample) * width for sample in range(first_sample, first_sample + size)]
        sequences = np.stack([self.tokens[start : start + width] for start in starts]).astype(np.int64)
        return sequences[:, :-1], sequences[:, 1:]

    def window(self, sample: int) -> int:
        """The window that a sample number stands for."""
        epoch, place = divmod(sample, self.num_windows)
        if epoch not in self._orders:
            # A batch may span two epochs, so the one before stays.
            self._orders = {number: order for number, order in self._orders.items() if number == epoch - 1}
            self._orders[epoch] = np.random.default_rng((self.seed, epoch)).permutation(self.num_windows)
        return int(self._orders[epoch][place])
