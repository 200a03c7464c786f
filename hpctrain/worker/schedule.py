"""The learning rate of a step."""

from __future__ import annotations

import math


def learning_rate(step: int, num_steps: int, warmup_steps: int, peak: float, minimum: float) -> float:
    """Linear from 0 to ``peak`` over the warm-up, then a cosine that reaches ``minimum`` at the last step.

    Args:
        step: optimizer step, 1 to ``num_steps``.
        num_steps: steps of the run.
        warmup_steps: steps until the peak; 0 for none.
        peak: highest learning rate.
        minimum: last learning rate.

    >>> [learning_rate(step, 6, 2, 1.0, 0.0) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / (num_steps - warmup_steps)
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * progress))
