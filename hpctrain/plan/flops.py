"""FLOPs of one optimizer step in the three named conventions, term by term.

A multiply-add is two FLOPs; attention is counted dense (all s x s scores), as torch's counter does. Norms, activations and
element-wise work are left out, as in every published convention.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import ActivationCheckpointing
from hpctrain.plan.model_shape import ModelShape
from hpctrain.units import TERA


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one optimizer step on all GPUs together."""

    model_flops: float
    """Forward and backward once, dense attention."""
    hardware_flops: float
    """What is executed: with full activation checkpointing each block's forward runs twice (see ``step_flops``). Selective
    checkpointing and a loss in chunks run no product twice."""
    megatron_flops: float
    """The count behind the published 175B to 2T results; contains full recomputation whether or not it is done."""

    def per_gpu_tflops(self, step_time_s: float, world_size: int) -> dict[str, float]:
        """Rates in TFLOP/s a GPU by convention."""
        return {
            "model": tflops_per_gpu(self.model_flops, step_time_s, world_size),
            "hardware": tflops_per_gpu(self.hardware_flops, step_time_s, world_size),
            "megatron": tflops_per_gpu(self.megatron_flops, step_time_s, world_size),
        }


def tflops_per_gpu(flops: float, time_s: float, num_gpus: int) -> float:
    """1e12 FLOP/s of one GPU, where ``num_gpus`` together did ``flops`` in ``time_s``.

    >>> tflops_per_gpu(8e12, 2.0, 4)
    1.0
    """
    return flops / (time_s * num_gpus * TERA)


def block_forward_flops(shape: ModelShape, seq_len: int) -> dict[str, int]:
    """Forward FLOPs of one block for one sequence, in the order of the forward pass.

    >>> from hpctrain.plan.model_shape import ModelShape
    >>> shape = ModelShape("x", "gpt", 1, 4, 2, 2, 2, 16, 10, 8, True, 1e-5, 1e4, 0.02)
    >>> block_forward_flops(shape, 8)
    {'qkv': 768, 'scores': 512, 'values': 512, 'projection': 256, 'ffn': 2048}
    """
    h, q, kv = shape.hidden_size, shape.attention_width, shape.kv_width
    num_ffn_matrices = 3 if shape.architecture == "llama" else 2
    return {
        "qkv": 2 * seq_len * h * (q + 2 * kv),
        "scores": 2 * seq_len * seq_len * q,
        "values": 2 * seq_len * seq_len * q,
        "projection": 2 * seq_len * q * h,
        "ffn": 2 * seq_len * num_ffn_matrices * h * shape.ffn_hidden_size,
    }


def megatron_flops(num_sequences: int, seq_len: int, num_layers: int, hidden_size: int, vocab_size: int) -> float:
    """96·B·s·l·h²·(1 + s/6h + V/16lh).

    Source: Narayanan et al. 2021 (arXiv 2104.04473), equation 3; used by the DeepSpeed on Azure post (2022). Leaves out
    grouped queries, gated feed-forward layers and head widths other than h / heads: for such shapes it is a label, not a count.

    530B on 1,024 GPUs, batch 8,192 of 1,024 tokens in 204.08 s was published as 171.37 TFLOP/s a GPU:

    >>> round(megatron_flops(8192, 1024, 105, 20480, 50304) / 204.08 / 1024 / 1e12, 1)
    171.4
    """
    h, s = hidden_size, seq_len
    return 96.0 * num_sequences * s * num_layers * h * h * (1 + s / (6 * h) + vocab_size / (16 * num_layers * h))


def step_flops(
    shape: ModelShape, seq_len: int, num_sequences: int, checkpointing: ActivationCheckpointing, zero_stage: int
) -> StepFlops:
    """FLOPs of one optimizer step over ``num_sequences`` sequences of ``seq_len`` tokens.

    The backward pass is twice the forward pass: one product for the input's gradient, one for the weight's. Under full
    checkpointing each block's forward runs again; below ZeRO stage 3 torch stops it before the block's last product, whose
    result nothing needs, and in stage 3 DeepSpeed's linear layer saves its input after that product, so all of it runs.
    Source: torch/utils/checkpoint.py (early stop), deepspeed/runtime/zero/linear.py; counted on real ranks in tests/worker.
    """
    blocks = shape.num_layers * sum(block_forward_flops(shape, seq_len).values())
    last_products = shape.num_layers * 2 * seq_len * shape.ffn_hidden_size * shape.hidden_size
    logits = 2 * seq_len * shape.hidden_size * shape.vocab_size
    recomputed = 0
    if checkpointing == "full":
        recomputed = blocks if zero_stage == 3 else blocks - last_products
    model = 3.0 * (blocks + logits) * num_sequences
    return StepFlops(
        model_flops=model,
        hardware_flops=model + float(recomputed) * num_sequences,
        megatron_flops=megatron_flops(num_sequences, seq_len, shape.num_layers, shape.hidden_size, shape.vocab_size),
    )
