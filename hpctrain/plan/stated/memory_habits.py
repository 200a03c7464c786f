"""What a training software keeps in memory: few constants for each family, counted from its source.

Nothing is fitted to single rows. Read from measurements are ``CACHED_SHARE`` and ``FAMILY_CONTEXT_GIB``, and ``STUCK_HOLES`` and
``DOUBT_SHARE`` were chosen with published runs in sight. ``tests/bench/plan_validation.py`` prints how far the rules are off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

CACHED_SHARE, CACHED_SHARE_OF_ALL = 0.25, 0.13
"""What the allocator holds over what it hands out, in blocks that fit no request: of gradients and stashed block inputs, where
states are flat vectors that have blocks of their size, and of everything where they lie in pieces. Both are read from
BigScience's table of the 48-node contenders (A100, vocabulary stated); no other row was used."""
STUCK_SHARE, STUCK_HOLES = 0.03, 0.4
"""What cannot be given back when memory runs short, since a block is partly in use: at least so much of what is handed out, and
so much of the holes between gradients and block inputs. Assumptions, the second with BLOOM's runs out of memory in sight."""
DOUBT_SHARE = 0.06
"""Of what is handed out: nearer to a GPU's limit than this nobody can tell. Published runs ended for want of memory where our
count was 8 % below the limit, and others ran where it was 4 % below."""
UNCOUNTED_DOUBT_SHARE = 0.15
"""The same for software whose source nobody counted: its blocks and its loss may be fused otherwise; an assumption."""
CONTEXT_GIB = 1.1
"""CUDA context and loaded kernels, outside the allocator, where nobody has published it for a GPU; an assumption."""
FAMILY_CONTEXT_GIB = {"V100": 1113 / 1024, "A100": 1573 / 1024}
"""The same by family, read with nvidia-smi. Source: BigScience, experiments/tr3m-1B3.md and
train/tr11-176B-ml/chronicles-prequel.md."""
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
    step_in_pieces: bool = False
    """A piece for each parameter, which takes the place of what the pass has given up."""
    step_elements: float | None = None
    """Parameters updated at a time (DeepSpeed's sub-group in stage 3); None: all of a rank."""
    bucket_elements: float | None = 0.0
    """Elements of a reduction bucket; None: the square of the hidden size, which Hugging Face's integration sets ("auto")."""
    buckets: int = 0
    """Buckets that live at once: the one being filled, the one being reduced, the flat copy."""
    reduces_at_boundary: bool = False
    """Below stage 2 gradients are reduced once, behind the last micro step, from a flat copy of a bucket; no bucket is kept."""
    gather_bucket: float | None = None
    """Elements of a bucket in which stages 1 and 2 gather updated parameters into a list of shares; None: in place."""
    awaits_collectives: bool = True
    """The host waits for a collective before it makes the next copy for one; else the allocator cannot hand out the memory of the
    last copy, and what it holds grows by the next."""
    flat_states: bool = True
    """Parameters, master and moments are a vector each, made once; else a piece for each parameter or unit."""
    live_elements: float | None = None
    """Gathered parameters kept at most in stage 3; None: the unit in use and the next."""
    kept_outputs: bool = False
    """A pipeline rank keeps the output that it sent until that micro batch's backward pass."""
    placeholder_gradients: bool = False
    """An empty 16-bit gradient of each shape of a block's matrices, which autograd is handed where the true one is summed inside
    the product."""
    gathered_inputs: bool = False
    """With sequence parallelism, inputs of products stay gathered over tensor ranks until the backward pass."""
    forks_loaders: bool = False
    """Processes that load data are forked when the engine is up. They keep the pages as they were, so what the CPU optimizer then
    writes in ordinary memory is there twice."""
    loss_bytes: int = 14
    """Of one logit at the loss: 16-bit (2), fp32 copy, log-softmax, gradient (4 each). Less where the logits are given up before
    the backward pass (12), split over tensor ranks with the softmax in place (10), or compiled (8: logits and gradient in 16 bit,
    softmax in fp32); a fused loss holds logits and gradient in 16 bit (4), and one over a few tokens at a time none of it (0)."""
    split_loss_bytes: int | None = None
    """The same where the vocabulary is split over tensor ranks; None: ``loss_bytes``."""
    gated_loss_bytes: int | None = None
    """The same of a model with a gated feed-forward; None: ``loss_bytes``."""
    cast_gradients: bool = False
    """A gradient is copied to fp32 when it is added to its sum."""
    keeps_gathered: bool = False
    """In a pipeline parameters stay gathered through all micro batches, and gradients are summed whole, in fp32, before they are
    reduced."""
    every_second_product: bool = False
    """Selective recomputation saves every second product of a block, from the first on; else a share of all."""
    drops_unread: bool = False
    """Compiled, a block saves no result that its backward pass does not read."""
    fuses_elementwise: bool = False
    """Norms, activation functions and products of a gate are formed again in the backward pass, and inputs gathered again."""
    gated_tensors: int = 4
    """Inner tensors of a gated feed-forward kept for the backward pass: gate, its SiLU, up, their product."""
    gate_in_place: bool = False
    """The gradients of gate and up are written over them."""
    gated_norm_copies: int = 0
    """Of the hidden size: what a block with a gate keeps of its two norms beside their inputs and outputs."""
    normed_queries: bool = False
    """A norm of queries and keys keeps them, beside what attention is handed; compiled, one of both is formed again."""
    output_gradient_bytes: int = 0
    """Of an element of the output matrix, whose gradient is summed up in the forward pass where no logits are kept: the sum, a
    product and its fp32 copy."""
    whole_model_first: bool = False
    """In stage 3 each GPU is handed the whole model before it is sharded."""


def of_fp16_megatron(habits: MemoryHabits) -> MemoryHabits:
    """The same of Megatron-LM in fp16: gradients are summed in fp32 without an option for bf16 alone, and copied to fp32 one by
    one for the step.

    Source: Megatron-LM, training/arguments.py (accumulate_allreduce_grads_in_fp32), core/optimizer/optimizer.py.
    """
    return replace(habits, gradient_bytes=2, step_bytes=4, step_in_pieces=True)


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
_MEGATRON_DEEPSPEED = replace(
    _DEEPSPEED,
    name="megatron_deepspeed",
    source="DeepSpeed 0.5 and 0.6, runtime/engine.py (contiguous gradients ignored in stage 1), runtime/zero; Megatron-DeepSpeed",
    reduces_at_boundary=True,
    gather_bucket=5e8,
    loss_bytes=10,
    gated_tensors=3,
    forks_loaders=True,
)
_FSDP = MemoryHabits(
    "fsdp",
    "PyTorch, torch/distributed/fsdp: fp32 shards, a unit gathered in 16 bit and the next prefetched; in a pipeline"
    " torch/distributed/pipelining/stage.py (backward_maybe_with_nosync)",
    gradient_bytes=4,
    sharded_master_only=True,
    flat_states=False,
    gathered_inputs=True,
    loss_bytes=12,
    # torch/distributed/tensor/parallel/loss.py: log-softmax, its exponential, the gradient before and after their sum.
    split_loss_bytes=16,
    keeps_gathered=True,
)
_FSDP_COMPILED = replace(
    _FSDP, name="fsdp_compiled", loss_bytes=8, split_loss_bytes=None, gated_tensors=3, drops_unread=True
)
_MEGATRON = MemoryHabits(
    "megatron",
    "Megatron-LM, core/distributed (gradients in fp32), core/optimizer, core/tensor_parallel/cross_entropy.py;"
    " Transformer Engine, pytorch/module/base.py (get_dummy_wgrad)",
    gradient_bytes=4,
    placeholder_gradients=True,
    loss_bytes=10,
    gated_tensors=3,
)
_MEGATRON_2021 = replace(
    of_fp16_megatron(_MEGATRON), name="megatron_2021", kept_outputs=True, placeholder_gradients=False
)
_NANOTRON = MemoryHabits(
    "nanotron",
    "nanotron, optim/gradient_accumulator.py (fp32 accumulation), nn/activations.py",
    gradient_bytes=4,
    flat_states=False,
    gathered_inputs=True,
    loss_bytes=10,
)
FUSED_LOSS_BYTES = 4


def of_hugging_face(habits: MemoryHabits) -> MemoryHabits:
    """The same under its Trainer and with its models: buckets of the square of the hidden size under DeepSpeed, logits shifted.

    Of a GPT all in 16 bits: logits, their shifted copy, log-softmax and two gradients. Of Llama and its kin they are turned to
    fp32 first (4), and shifted copy, log-softmax and gradient are (4 each), beside the 16-bit ones (2). Their norms keep the
    input in fp32 in the place of the 16-bit one, and what they gave before its weight.
    Source: transformers 4.40, integrations/deepspeed.py (trainer_config_process), models/gpt2/modeling_gpt2.py,
    models/llama/modeling_llama.py (LlamaRMSNorm; forward: logits.float(), shift_logits).
    """
    changed = replace(
        habits, loss_bytes=10, split_loss_bytes=None, gated_loss_bytes=18, gated_tensors=4, gated_norm_copies=4
    )
    return replace(changed, bucket_elements=None) if habits.buckets else changed


def with_liger_kernels(habits: MemoryHabits) -> MemoryHabits:
    """The same with Liger's kernels in a Llama's blocks and for its loss: gate, up and their product are kept, norms keep their
    input, and the loss of a few tokens at a time leaves the gradients of its input and of the output matrix.

    Source: Liger-Kernel 0.8, ops/swiglu.py, ops/rms_norm.py, ops/fused_linear_cross_entropy.py.
    """
    return replace(
        habits,
        loss_bytes=0,
        split_loss_bytes=None,
        gated_loss_bytes=None,
        gated_tensors=3,
        gate_in_place=True,
        gated_norm_copies=0,
        output_gradient_bytes=8,
    )


HABITS: dict[str, MemoryHabits] = {
    "fsdp": _FSDP,
    "fsdp_2022": _FSDP,
    "fsdp_compiled": _FSDP_COMPILED,
    "megatron_2021": _MEGATRON_2021,
    "megatron_deepspeed_2022": replace(_MEGATRON_DEEPSPEED, awaits_collectives=False),
    "megatron": _MEGATRON,
    "megatron_core": _MEGATRON,
    "nanotron": _NANOTRON,
    "deepspeed_2021": _MEGATRON_DEEPSPEED,
    "deepspeed_2022": _MEGATRON_DEEPSPEED,
    "deepspeed": _DEEPSPEED,
    "deepspeed_leaf_blocks": _DEEPSPEED,
}
"""By the name of the software generation that predicts the speed (``plan/speed/software.py``)."""
