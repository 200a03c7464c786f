"""Bytes of activations of one rank: a block's, with each kind of recomputation, and the loss's.

Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4, generalised to any widths, grouped queries and gated feed-forwards.
"""

from __future__ import annotations

from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.speed.software import Software
from hpctrain.plan.speed.step_parts import Recomputation, Setup
from hpctrain.plan.stated.memory_habits import MemoryHabits


def block_bytes(setup: Setup, software: Software, habits: MemoryHabits, recomputation: Recomputation) -> float:
    """What one block keeps of one micro batch for its backward pass.

    Without recomputation, per token: inputs and outputs of two norms (4h), which tensor ranks share only with sequence
    parallelism; queries, keys, values and attention's result, and the feed-forward's inner tensors, which they share. Where
    attention is not fused: for each score the softmax and what dropout leaves of it in 16 bit and its mask in 8, and two masks
    of dropout on the residuals. Selective recomputation leaves out the scores, or, where it works on products, keeps half of
    their results.
    Full recomputation keeps the block's input.
    """
    shape, tp, width = setup.shape, setup.tensor_degree, setup.bytes_per_element
    tokens, outer = setup.tokens_per_micro_step, 1 / tp if software.sequence_parallel else 1.0
    if recomputation == "full":
        return tokens * shape.hidden_size * width * outer
    residual = (2 if habits.fuses_elementwise else 4) * shape.hidden_size * width * outer
    if habits.gathered_inputs and software.sequence_parallel and not habits.fuses_elementwise:
        residual = 2 * shape.hidden_size * width * (1 + outer)
    if shape.architecture == "llama" and not habits.fuses_elementwise:
        residual += habits.gated_norm_copies * shape.hidden_size * width * outer
    norms_queries = habits.normed_queries and not (habits.fuses_elementwise or habits.drops_unread)
    attention = (3 if norms_queries else 2) * (shape.attention_width + shape.kv_width) * width / tp
    inner = inner_width(setup, habits) * width / tp
    if recomputation == "selective" and software.selective_share > 0:
        return tokens * width * _selective_elements(setup, software, habits, outer)
    total = tokens * (residual + attention + inner)
    if software.fused_attention:
        return total + tokens * shape.num_heads * 4 / tp
    total += tokens * 2 * shape.hidden_size * outer
    return total if recomputation == "selective" else total + score_elements(setup) * (2 * width + 1)


def _selective_elements(setup: Setup, software: Software, habits: MemoryHabits, outer: float) -> float:
    """Elements a token where products are chosen: the block's input, attention's result and a share of the products' results.

    Every second product from the first on is: queries, values, gate, and the last of the feed-forward, which the backward pass
    does not read.
    Source: torchtitan, distributed/activation_checkpoint.py: the output of attention and of every other matrix product is saved.
    """
    shape, tp = setup.shape, setup.tensor_degree
    kept = shape.hidden_size * outer + shape.attention_width / tp
    if habits.every_second_product and shape.architecture == "llama":
        last = 0 if habits.drops_unread else shape.hidden_size * outer
        return kept + (shape.attention_width + shape.kv_width + shape.ffn_hidden_size) / tp + last
    split = shape.attention_width + 2 * shape.kv_width + _activation_inputs(shape)
    results = split / tp + 2 * shape.hidden_size * outer
    return kept + (1 - software.selective_share) * results


def inner_width(setup: Setup, habits: MemoryHabits) -> int:
    """Elements a token of the feed-forward's inner tensors: before and after the activation, or with the gate; its inputs alone
    where the activation is formed again."""
    shape = setup.shape
    if habits.fuses_elementwise:
        return _activation_inputs(shape)
    return (habits.gated_tensors if shape.architecture == "llama" else 2) * shape.ffn_hidden_size


def _activation_inputs(shape: ModelShape) -> int:
    """Elements a token that the feed-forward's first matrices give: one, or the gate and what it multiplies."""
    return (2 if shape.architecture == "llama" else 1) * shape.ffn_hidden_size


def score_elements(setup: Setup) -> float:
    """Scores of one block and micro batch on one rank."""
    shape, split = setup.shape, setup.tensor_degree * setup.sequence_degree
    return setup.micro_batch_size * shape.num_heads * setup.seq_len**2 / split


def backward_bytes(setup: Setup, software: Software, habits: MemoryHabits) -> float:
    """Gradients beside a block's activations: of the feed-forward's inner tensors, or of scores and softmax."""
    shape, tp, width = setup.shape, setup.tensor_degree, setup.bytes_per_element
    tokens = setup.tokens_per_micro_step
    kept = tokens * inner_width(setup, habits) / tp * width
    gradients = shape.ffn_hidden_size if habits.gate_in_place else _activation_inputs(shape)
    inner = tokens * (gradients / tp + shape.hidden_size) * width
    # Two gradients of scores lie there at a time, and the scores after dropout are given up before the second.
    return inner if software.fused_attention else max(inner, score_elements(setup) * width - kept)


def loss_bytes(setup: Setup, habits: MemoryHabits) -> float:
    """Logits and their copies at the loss, split over tensor ranks by vocabulary; or what a loss without them sums up.

    A pipeline that keeps its outputs holds the logits in the training type, and then their gradient, beside all copies.
    """
    if habits.output_gradient_bytes:
        matrix = setup.shape.vocab_size * setup.shape.hidden_size / setup.tensor_degree
        return matrix * habits.output_gradient_bytes
    is_split = setup.tensor_degree > 1 and habits.split_loss_bytes is not None
    is_gated = setup.shape.architecture == "llama"
    copies = (habits.split_loss_bytes if is_split else None) or habits.loss_bytes
    if is_gated and habits.gated_loss_bytes is not None:
        copies = habits.gated_loss_bytes
    if habits.kept_outputs and setup.pipeline_degree > 1:
        copies += 2 * setup.bytes_per_element
    logits = setup.tokens_per_micro_step * setup.shape.vocab_size / setup.tensor_degree * copies
    if not habits.gathered_inputs or setup.tensor_degree == 1:
        return logits
    # The input of the output matrix, gathered over tensor ranks, and its gradient before it is reduced.
    return logits + 2 * setup.tokens_per_micro_step * setup.shape.hidden_size * setup.bytes_per_element
