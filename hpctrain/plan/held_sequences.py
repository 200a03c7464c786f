"""Sequences of a step whose batch nobody states, by which configurations are compared and pipelines are filled."""

from __future__ import annotations

MOST_SEQUENCES_PER_GPU = 8
"""Of a step whose batch nobody states. More are faster where sequences are short, and how many a step has is a decision of the
training: as many as the published runs of 530B to 2T took. Source: DeepSpeed on Azure (2022-07-26), figures 6 and 7."""
MOST_TOKENS_PER_GPU = 16384
"""The same in tokens, for long sequences; a choice: 2,048 tokens eight times, a long enough product for any matrix."""


def sequences_per_gpu(seq_len: int) -> int:
    """The largest power of two of sequences up to 8 and 16,384 tokens, at least 1.

    Args:
        seq_len: tokens of a sequence.

    >>> [sequences_per_gpu(seq_len) for seq_len in (1024, 2048, 5000, 8192, 32768)]
    [8, 8, 2, 2, 1]
    """
    by_tokens = MOST_TOKENS_PER_GPU // seq_len
    return min(MOST_SEQUENCES_PER_GPU, 1 << max(0, by_tokens.bit_length() - 1))
