"""What a training software keeps in memory: few constants for each family, counted from its source.

Nothing is fitted to single rows; one constant is read from measurements, ``CACHED_SHARE``. ``tests/bench/plan_validation.py``
prints how far the rules are off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

CACHED_SHARE = 0.12
"""What the allocator holds over what it hands out, in blocks that fit no request. Read from BigScience's table of the 48-node
contenders (A100, vocabulary stated); no other row was used."""
STUCK_SHARE = 0.03
"""The part of it that cannot be given back when memory runs short, since a block is partly in use; an assumption."""
CONTEXT_GIB = 1.1
"""CUDA context and loaded kernels, outside the allocator. Source: BigScience, experiments/gpt2.md, read with nvidia-smi."""
COLLECTIVES_GIB = 0.9
"""Buffers of the collective library where there is more than one GPU; an assumption (deepspeed.md's range is 0.5 to 2)."""


@dataclass(frozen=True)
class MemoryHabits:
    """One family of training software."""

    name: str
    source: str
    gradient_bytes: int
    """Of one gradient between micro steps, with 16-bit parameters."""
    sharded_master_only: bool = False
    """The 16-bit copy lives only while a unit is gathered (FSDP); else it is kept beside the fp32 master."""
    step_bytes: float = 0.0
    """Scratch of the optimizer step for each parameter that a rank updates."""
    step_elements: float | None = None
    """Parameters updated at a time (DeepSpeed's sub-group in stage 3); None: all of a rank."""
    bucket_elements: float = 0.0
    """Elements of a reduction bucket."""
    buckets: int = 0
    """Buckets that live at once: the one being filled, the one being reduced, the flat copy."""
    live_elements: float | None = None
    """Gathered parameters kept at most in stage 3; None: the unit in use and the next."""
    kept_outputs: bool = False
    """A pipeline rank keeps the output that it sent until that micro batch's backward pass."""
    gathered_inputs: bool = False
    """With sequence parallelism, inputs of products stay gathered over tensor ranks until the backward pass."""
    loss_bytes: int = 14
    """Of one logit at the loss: 16-bit (2), fp32 copy, log-softmax, gradient (4 each). Less where the logits are given up before
    the backward pass (12), split over tensor ranks with the softmax in place (10), or compiled (8: logits and gradient in 16 bit,
    softmax in fp32); a fused loss holds logits and gradient in 16 bit (4)."""
    gated_tensors: int = 4
    """Inner tensors of a gated feed-forward kept for the backward pass: gate, its SiLU, up, their product."""


_DEEPSPEED = MemoryHabits(
    "deepspeed",
    "DeepSpeed, runtime/zero/stage3.py, runtime/zero/stage_1_and_2.py, runtime/zero/config.py",
    gradient_bytes=2,
    step_bytes=6,
    step_elements=1e9,
    bucket_elements=5e8,
    buckets=2,
    live_elements=1e9,
    kept_outputs=True,
)
_MEGATRON_DEEPSPEED = replace(_DEEPSPEED, name="megatron_deepspeed", loss_bytes=10, gated_tensors=3)
_FSDP = MemoryHabits(
    "fsdp",
    "PyTorch, torch/distributed/fsdp: fp32 shards, a unit gathered in 16 bit and the next prefetched",
    gradient_bytes=4,
    sharded_master_only=True,
    loss_bytes=12,
)
_FSDP_COMPILED = replace(_FSDP, name="fsdp_compiled", loss_bytes=8, gated_tensors=3)
_MEGATRON = MemoryHabits(
    "megatron",
    "Megatron-LM, core/distributed (gradients in fp32), core/optimizer, core/tensor_parallel/cross_entropy.py",
    gradient_bytes=4,
    loss_bytes=10,
    gated_tensors=3,
)
_MEGATRON_2021 = replace(_MEGATRON, name="megatron_2021", gradient_bytes=2, step_bytes=4, kept_outputs=True)
_NANOTRON = MemoryHabits(
    "nanotron",
    "nanotron, optim/gradient_accumulator.py (fp32 accumulation), nn/activations.py",
    gradient_bytes=4,
    gathered_inputs=True,
    loss_bytes=10,
)
FUSED_LOSS_BYTES = 4
HABITS: dict[str, MemoryHabits] = {
    "fsdp": _FSDP,
    "fsdp_compiled": _FSDP_COMPILED,
    "megatron_2021": _MEGATRON_2021,
    "megatron_deepspeed_2022": _MEGATRON_DEEPSPEED,
    "megatron": _MEGATRON,
    "nanotron": _NANOTRON,
    "deepspeed_2021": _MEGATRON_DEEPSPEED,
    "deepspeed_2022": _MEGATRON_DEEPSPEED,
    "deepspeed": _DEEPSPEED,
    "deepspeed_leaf_blocks": _DEEPSPEED,
}
"""By the name of the software generation that predicts the speed (``plan/software.py``)."""
