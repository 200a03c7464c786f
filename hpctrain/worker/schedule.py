"""The learning rate of a step."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    step: int,
    num_steps: int,
    warmup_steps: int,
    peak: float,
    minimum: float,
    decay: Literal["cosine", "linear", "constant"] = "cosine",
) -> float:
    """Linear from 0 to ``peak`` over the warm-up, then down to ``minimum`` at the last step.

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5 with one period, for the cosine; the warm-up and the whole
    as in Brown et al. 2020 (arXiv 2005.14165), appendix B, there by tokens.

    Args:
        step: optimizer step, 1 to ``num_steps``.
        num_steps: steps of the run.
        warmup_steps: steps until the peak; 0 for none.
        peak: highest learning rate.
        minimum: last learning rate; of a constant schedule none.
        decay: the way down; constant: there is none.

    >>> [learning_rate(step, 6, 2, 1.0, 0.0) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    >>> [learning_rate(step, 6, 2, 1.0, 0.0, "linear") for step in (2, 3, 6)], learning_rate(6, 6, 2, 1.0, 0.0, "constant")
    ([1.0, 0.75, 0.0], 1.0)
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if decay == "constant":
        return peak
    progress = (step - warmup_steps) / (num_steps - warmup_steps)
    if decay == "linear":
        return peak + (minimum - peak) * progress
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * progress))
