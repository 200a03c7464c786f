"""The sequences of one or several corpora in the order of a run: by sample number alone, on any number of ranks."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpctrain.worker.data.blend import Blend
from hpctrain.worker.data.permutation import permuted
from hpctrain.worker.end_reasons import DataError

Tokens = NDArray[np.integer]
"""One dimension, of any type of whole numbers; in memory, or a file that is mapped into it."""


@dataclass(frozen=True)
class Part:
    """The tokens of one corpus, documents one after the other, or a stretch of them."""

    tokens: Tokens
    description: str
    """Of the corpus, for messages."""
    weight: float = 1.0
    """Share of it in a blend, over the sum of all."""
    first_token: int = 0
    """Where the stretch begins in the corpus."""
    mapping: mmap.mmap | None = None
    """Of the whole file; None: the tokens are in memory."""

    def check_file(self) -> None:
        """Raises DataError where the mapped file has been cut since: the kernel ends a process that reads behind its end."""
        if self.mapping is not None and (num_bytes := self.mapping.size()) < len(self.mapping):
            raise DataError(
                f"{self.description}: its .bin has {num_bytes:,} bytes now, and had {len(self.mapping):,} when the run began;"
                " put the whole file back, and resume the run"
            )


@dataclass(frozen=True)
class Sequences:
    """Windows of ``seq_len + 1`` tokens, without overlap, across the ends of documents, shuffled anew in every epoch.

    A corpus begins its next epoch when all its windows were seen once; in a blend each one by itself. The last tokens that
    fill no window are left out.
    """

    parts: Sequence[Part]
    seq_len: int
    vocab_size: int
    seed: int
    _blend: Blend = field(init=False, repr=False)
    _num_windows: NDArray[np.int64] = field(init=False, repr=False)
    """Of each part."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blend", Blend([part.weight for part in self.parts]))
        counts = [len(part.tokens) // (self.seq_len + 1) for part in self.parts]
        assert all(counts), "the corpus is checked before"
        object.__setattr__(self, "_num_windows", np.array(counts))

    @property
    def num_windows(self) -> int:
        """Of all parts together."""
        return int(self._num_windows.sum())

    def locate(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Part and window of each sample.

        Args:
            samples: numbers from 0 on, one dimension.
        """
        parts, places = self._blend.split(samples)
        epochs, places = np.divmod(places, self._num_windows[parts])
        windows = np.empty_like(samples)
        for part, epoch in set(zip(parts.tolist(), epochs.tolist(), strict=True)):
            chosen = (parts == part) & (epochs == epoch)
            key = (self.seed, part, epoch)
            windows[chosen] = permuted(places[chosen], int(self._num_windows[part]), key)
        return parts, windows

    def read(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids and labels of samples, each (len(samples), seq).

        Raises:
            DataError: a token that the model does not have; names the corpus and the place.
        """
        ids, labels = (np.empty((len(samples), self.seq_len), np.int64) for _ in range(2))
        self.read_located(*self.locate(samples), ids, labels)
        return ids, labels

    def read_located(
        self, parts: NDArray[np.int64], windows: NDArray[np.int64], ids: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> None:
        """``read`` of what ``locate`` has found, into ``ids`` and ``labels``.

        Raises:
            DataError: as ``read``; or a file that has become shorter.
        """
        for number in set(parts.tolist()):
            self.parts[number].check_file()
        width = self.seq_len + 1
        for row, (part, window) in enumerate(zip(parts.tolist(), windows.tolist(), strict=True)):
            tokens, start = self.parts[part].tokens, window * width
            ids[row] = tokens[start : start + self.seq_len]
            labels[row] = tokens[start + 1 : start + width]
        # As unsigned numbers negative ones are large: one comparison finds both.
        highest = max(int(ids[:, 0].view(np.uint64).max()), int(labels.view(np.uint64).max()))
        if highest >= self.vocab_size:
            self._raise_unknown_token(parts, windows)

    def _raise_unknown_token(self, parts: NDArray[np.int64], windows: NDArray[np.int64]) -> None:
        width = self.seq_len + 1
        for number, window in zip(parts.tolist(), windows.tolist(), strict=True):
            part = self.parts[number]
            tokens = part.tokens[window * width : (window + 1) * width]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))
            if len(wrong):
                place = window * width + int(wrong[0])
                raise unknown_token(self.vocab_size, part, place)


def unknown_token(vocab_size: int, part: Part, place: int) -> DataError:
    """What is said of the token at ``place`` of a part that is none of the model's."""
    token = int(part.tokens[place])
    fix = "its file is damaged" if token < 0 else f"set model.vocab_size={token + 1} or more"
    return DataError(
        f"model.vocab_size={vocab_size}: {part.description} has token {token} at place {part.first_token + place:,}; {fix}"
    )
