"""Running blocks one after the other, and what of each is kept for the backward pass."""

from __future__ import annotations

import contextlib

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpctrain.config.schema import ActivationCheckpointing
from hpctrain.worker.model.host_inputs import HostInputs

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, each (seq, head_dim / 2)."""


def run_blocks(
    blocks: nn.ModuleList,
    x: Tensor,
    rotary: Rotary | None,
    activation_checkpointing: ActivationCheckpointing,
    offload_activations: bool,
) -> Tensor:
    """The last block's output, (batch, seq, hidden).

    Args:
        blocks: at least one.
        x: (batch, seq, hidden), input of the first.
        rotary: positions; None: learned ones are in ``x`` already.
        activation_checkpointing: ``full`` keeps each block's input only; what ``selective`` keeps is the block's own matter.
        offload_activations: these inputs wait in host memory. The last block's does not: the backward pass begins with it.
    """
    if activation_checkpointing != "full":
        for block in blocks:
            x = block(x, rotary)
        return x
    inputs = HostInputs()
    for block in blocks:
        is_last = block is blocks[-1]
        with inputs.hooks() if offload_activations and not is_last else contextlib.nullcontext():
            x = _recomputed(block, x, rotary)
    return x


def _recomputed(block: nn.Module, x: Tensor, rotary: Rotary | None) -> Tensor:
    """The block's output; only its input is kept, and the backward pass runs the block's forward once more.

    torch ends that second run as soon as it has what the backward pass needs: before the block's last matrix product, or in
    ZeRO-3, whose own linear layer saves its inputs late, behind it. ZeRO-3 with leaf modules rests on it (tried with
    DeepSpeed 0.19.8, early_stop=False): if the block's forward came to its end, DeepSpeed's hook behind it would release
    the parameters that the backward pass is about to use. Nothing random is in a block, so no generator state is kept.
    """
    out: Tensor = checkpoint(block, x, rotary, use_reentrant=False, preserve_rng_state=False)
    return out
