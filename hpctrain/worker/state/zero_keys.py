"""What DeepSpeed calls the parts of an optimizer's state in a checkpoint. Source: DeepSpeed 0.19.8, checkpoint/constants.py."""

from __future__ import annotations

from typing import NamedTuple

SAVED = "optimizer_state_dict"
"""In a rank's file: all that follows."""
LOSS_SCALER = "loss_scaler"


class ZeroKeys(NamedTuple):
    """Of one stage of ZeRO."""

    weights: str
    """The rank's share of the fp32 weights, by group."""
    inner: str
    """The state of the optimizer inside, with Adam's moments."""


def zero_keys(stage: int) -> ZeroKeys:
    """Of stages 1 to 3.

    >>> zero_keys(2).weights, zero_keys(3).weights
    ('single_partition_of_fp32_groups', 'fp32_flat_groups')
    """
    if stage == 3:
        return ZeroKeys("fp32_flat_groups", "optimizer_state_dict")
    return ZeroKeys("single_partition_of_fp32_groups", "base_optimizer_state")
