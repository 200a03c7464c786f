"""Bytes that a step of Adam holds for each element beside states and gradient."""

from __future__ import annotations

from hpctrain.plan.rank_work import RankWork

ADAM_SCRATCH = 8
"""Of torch's plain AdamW: the square root of the second moment, and that divided, both in fp32.

Source: torch/optim/adam.py _single_tensor_adam; its form for many tensors holds one of the two.
"""


def adam_scratch(work: RankWork) -> int:
    """Bytes an element where the optimizer is: a fused step on a GPU, and DeepSpeed's kernel for offload, work in place.

    Source: hpctrain/plan/ds_config.py _optimizer_kernel.
    """
    return ADAM_SCRATCH if work.hardware.device == "cpu" else 0
