"""Which sequences every rank sees in which step: the same global batch however it is split."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpctrain.plan.layout import Batch
from hpctrain.worker.data.sequences import Sequences

_LOOK_UP = 1024
"""Sequences whose places are worked out at once: of many steps, where a rank's share of one is small."""

Located = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Part and window of each sequence."""


@dataclass
class TokenBatches:
    """A data-parallel rank's share of each step.

    Sample number ``batch.samples_before(step) + position`` decides the sequence, so the sequences of a step do not depend on
    world size, micro batch or accumulation, and a resumed run needs no position but its step.
    """

    sequences: Sequences
    batch: Batch
    rank: int
    world_size: int
    _located: dict[int, Located] = field(default_factory=dict, repr=False)
    """This rank's sequences of steps from the last one that was asked for on."""

    def micro_batch(self, step: int, micro_step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids and labels of this rank, each (micro_batch, seq).

        Args:
            step: optimizer step, from 1.
            micro_step: from 0.

        Raises:
            DataError: a token that the model does not have.
        """
        size = (self.batch.micro_batch_size, self.batch.seq_len)
        ids, labels = np.empty(size, np.int64), np.empty(size, np.int64)
        self.read(step, micro_step, ids, labels)
        return ids, labels

    def read(self, step: int, micro_step: int, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        """``micro_batch`` into arrays that are there."""
        if step not in self._located:
            self._located = self._locate_from(step)
        parts, windows = self._located[step]
        own = slice(micro_step * self.batch.micro_batch_size, (micro_step + 1) * self.batch.micro_batch_size)
        self.sequences.read_located(parts[own], windows[own], ids, labels)

    def samples(self, step: int) -> NDArray[np.int64]:
        """Numbers of this rank's samples, in the order of its micro steps: each takes the ranks' micro batches in turn."""
        size = self.batch.micro_batch_size
        micro_steps = np.arange(self.batch.accumulation_of(step))[:, None]
        positions = (micro_steps * self.world_size + self.rank) * size + np.arange(size)
        found: NDArray[np.int64] = self.batch.samples_before(step) + positions.reshape(-1)
        return found

    def _locate_from(self, step: int) -> dict[int, Located]:
        """Of as many steps at once as makes it cheap."""
        samples = [self.samples(step)]
        while sum(map(len, samples)) < _LOOK_UP:
            samples.append(self.samples(step + len(samples)))
        parts, windows = self.sequences.locate(np.concatenate(samples))
        ends = np.cumsum([len(numbers) for numbers in samples])[:-1]
        pairs = zip(np.split(parts, ends), np.split(windows, ends), strict=True)
        return dict(enumerate(pairs, start=step))
