"""Seconds of one optimizer step, part by part, from shapes, rates and links: the physical core of the prediction.

Parts that overlap are counted as far as they stay exposed, so the parts add up to the step.
A search passes arrays where a ``Setup`` has batch sizes, degrees and the offload ratio: what is chosen by them goes through
``elementwise``; what has few values (stage, recomputation, flags) is one for all elements. Held by tests/plan/search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.plan.elementwise import chosen, everywhere, larger, smaller, somewhere
from hpctrain.plan.flops import block_forward_flops
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.speed.host_parts import host_parts, optimizer_parts
from hpctrain.plan.speed.network import all_reduce_time_s, all_to_all_time_s, group_of, links_of
from hpctrain.plan.speed.nvme_parts import NvmeTraffic, nvme_parts
from hpctrain.plan.speed.software import (
    HALF_RATE_DEPTH,
    HALF_RATE_OUTPUTS,
    UNALIGNED_SHARE,
    Software,
)
from hpctrain.plan.speed.zero_parts import zero_parts
from hpctrain.units import GIGA, TERA

Recomputation = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Machine:
    """One kind of GPU and node, in the data type of the matrix products."""

    gpus_per_node: int
    achievable_tflops: float
    """Best measured matmul rate of one GPU in 16 bit."""
    memory_gb_per_s: float
    link_gb_per_s: float
    network_gb_per_s: float | None
    """All adapters of a node together; None is allowed where there is one node."""
    host_link_gb_per_s: float | None = None
    """None is allowed where nothing is offloaded."""
    host_memory_gb_per_s: float | None = None
    """None is allowed where the optimizer runs on the GPU."""
    nvme_read_gb_per_s: float | None = None
    """Of a node, as the next; None is allowed where nothing is on NVMe."""
    nvme_write_gb_per_s: float | None = None
    sustained_matrix: float = 1.0
    """Rate under load against the A100's, see ``software.SUSTAINED``."""
    sustained_attention: float = 1.0
    half_rate_outputs: float = HALF_RATE_OUTPUTS
    """Elements of a result at which a product runs at half of its rate."""
    host_adam: float = 1.0
    """Of Adam on the CPU, as a share of the host memory's bandwidth, against the hosts of an A100; see ``software.HOST_ADAM``."""
    block_tflops: float | None = None
    """Rate of a block's products under load where their type is narrower (fp8); None: in 16 bit as all others."""


@dataclass(frozen=True)
class Setup:
    """One run, as its publication describes it: degrees of Megatron's kind and ZeRO stages of DeepSpeed's or FSDP's."""

    shape: ModelShape
    seq_len: int
    micro_batch_size: int
    num_micro_steps: int
    """Forward and backward passes of a data-parallel rank in one step (accumulation, or micro batches of a pipeline)."""
    num_gpus: int
    tensor_degree: int = 1
    pipeline_degree: int = 1
    sequence_degree: int = 1
    """Context or Ulysses degree."""
    zero_stage: int = 0
    shard_within_node: bool = False
    """Parameters (in stage 3; below it, optimizer states) are sharded in a node and replicated over nodes (HSDP, InternEvo)."""
    second_partition_ranks: int = 1
    """Neighbouring ranks that keep a second partition of the parameters between them (ZeRO++ hpZ); 1: none."""
    quantized_weights: bool = False
    """Stage 3 gathers parameters in 8 bit, but from a second partition (ZeRO++ qwZ)."""
    quantized_gradients: bool = False
    """Stage 3 sends gradients in 4 bit (ZeRO++ qgZ)."""
    virtual_stages: int = 1
    """Pieces of a pipeline rank in the interleaved schedule."""
    recomputation: Recomputation = "none"
    offload_optimizer: bool = False
    offload_ratio: float = 1.0
    """Share of the optimizer's state that offload_optimizer moves."""
    offload_param: bool = False
    offload_activations: bool = False
    split_block_inputs: bool = False
    """Tensor ranks keep a part each of the inputs of recomputed blocks (DeepSpeed's partition_activations)."""
    live_parameters: float | None = None
    """Gathered parameters that the engine keeps at most (DeepSpeed's max_live_parameters, max_reuse_distance); None: no bound."""
    reduce_bucket: float | None = None
    """Elements of gradients that go out at a time below stage 3; None: those of a block."""
    gather_bucket: float | None = None
    """Elements of updated parameters that come back at a time below stage 3; None: those of a block."""
    sums_on_all_ranks: bool = False
    """In stages 1 and 2 gradients are all-reduced, though a rank needs its share alone (DeepSpeed of today)."""
    overlaps_reduction: bool = False
    """In stages 1 and 2 a bucket is reduced beside the backward pass that fills the next one (overlap_comm)."""
    bytes_per_element: int = 2
    nvme: NvmeTraffic | None = None
    """None: nothing is on NVMe."""

    @property
    def data_degree(self) -> int:
        return self.num_gpus // (self.tensor_degree * self.pipeline_degree * self.sequence_degree)

    @property
    def zero_ranks(self) -> int:
        """Ranks that hold the same layers in full, so that ZeRO can split their states: those of a sequence count as well.

        Source: Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509), section 3.3.
        """
        return self.data_degree * self.sequence_degree

    @property
    def held_parameters(self) -> float:
        """Parameters whose optimizer states one rank holds."""
        of_the_layers = self.shape.num_parameters / (self.tensor_degree * self.pipeline_degree)
        return of_the_layers / self.zero_ranks if self.zero_stage > 0 else of_the_layers

    @property
    def tokens_per_micro_step(self) -> float:
        """Of one GPU."""
        return self.micro_batch_size * self.seq_len / self.sequence_degree


def step_parts(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Seconds by part, exposed; their sum is the step.

    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> from hpctrain.plan.speed.software import SOFTWARE
    >>> setup = Setup(plain_shape(24, 2048, 50304), 2048, 8, 1, 8, zero_stage=3)
    >>> parts = step_parts(setup, Machine(8, 271.2, 2039, 300, None), SOFTWARE["fsdp"])
    >>> parts["matrix work"] / sum(parts.values()) > 0.5
    True
    """
    compute = _compute_parts(setup, machine, software)
    per_micro_step = sum(compute.values())
    steps = setup.num_micro_steps
    parts = {name: seconds * steps for name, seconds in compute.items()}
    parts |= _tensor_parallel_part(setup, machine, software)
    parts |= _sequence_parallel_part(setup, machine, software)
    busy = sum(parts.values())
    if somewhere(setup.pipeline_degree > 1):
        parts |= _pipeline_parts(setup, machine, software, busy)
    parts |= zero_parts(setup, machine, software, per_micro_step)
    parts |= host_parts(setup, machine, software, per_micro_step)
    parts |= optimizer_parts(setup, machine, software)
    if setup.nvme is not None:
        ranks = min(machine.gpus_per_node, setup.num_gpus)
        rates = (machine.nvme_read_gb_per_s, machine.nvme_write_gb_per_s)
        hidden_s = software.host_overlap * per_micro_step * steps
        parts |= nvme_parts(setup.nvme, ranks, rates, steps, hidden_s, parts.get("optimizer on the CPU", 0.0))
    return {name: seconds for name, seconds in parts.items() if somewhere(seconds > 0)}


def _passes(setup: Setup, software: Software) -> tuple[float, float]:
    """Forward-pass equivalents of a block and of its attention: 3, and what is recomputed."""
    if setup.recomputation == "selective":
        return 3.0 + software.selective_share, 4.0
    again = 1.0 if setup.recomputation == "full" else 0.0
    return 3.0 + again, 3.0 + again


def _compute_parts(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Of one micro step on one GPU of the busiest pipeline rank."""
    shape, tp = setup.shape, setup.tensor_degree
    layers = shape.num_layers / setup.pipeline_degree
    tokens = setup.tokens_per_micro_step
    block_passes, attention_passes = _passes(setup, software)
    rate = machine.achievable_tflops * TERA * machine.sustained_matrix * software.matrix_share
    on_busiest = _logits_share(setup, software)
    terms = block_forward_flops(shape, setup.seq_len)
    per_sequence = sum(terms[name] for name in ("qkv", "projection", "ffn"))
    products = per_sequence * setup.micro_batch_size / setup.sequence_degree / tp
    logits = 2 * tokens * shape.hidden_size * shape.vocab_size / tp * on_busiest
    block_rate = rate if machine.block_tflops is None else machine.block_tflops * TERA * software.matrix_share
    half_rate_outputs = machine.half_rate_outputs * software.half_rate_share
    blocks_s = block_passes * layers * products / block_rate / block_efficiency(setup, half_rate_outputs)
    rows = tokens * shape.vocab_size / tp
    logits_s = 3 * logits / rate / product_efficiency(rows, shape.hidden_size, half_rate_outputs)
    attention = layers * _attention_s(setup, machine, software, attention_passes)
    elements = layers * block_passes * _element_bytes(setup, software) * tokens * software.element_traffic
    loss = tokens * shape.vocab_size / tp * software.loss_bytes * on_busiest
    parts = {
        "matrix work": blocks_s + logits_s,
        "attention": attention,
        "element-wise work": (elements + loss) / (machine.memory_gb_per_s * GIGA),
        "blocking launches": layers * block_passes * software.launch_s_per_block_pass,
    }
    behind = layers * block_passes * software.host_s_per_block_pass - sum(parts.values())
    return {**parts, "host behind the GPU": larger(0.0, behind)}


def block_efficiency(setup: Setup, half_rate_outputs: float = HALF_RATE_OUTPUTS) -> float:
    """Share of the best shape's rate of a block's products, by the narrowest of them, and less off the tiles' grid.

    A side that 64 does not divide spoils the tiles' alignment; BigScience's table "tile and wave quantization" has its size.
    """
    shape, tp = setup.shape, setup.tensor_degree
    beyond_grid = (shape.attention_width // tp) % 64 + (shape.ffn_hidden_size // tp) % 64
    narrowest = smaller(float(shape.hidden_size), shape.ffn_hidden_size / tp)
    share = chosen(beyond_grid == 0, 1.0, UNALIGNED_SHARE)
    return product_efficiency(setup.tokens_per_micro_step * narrowest, narrowest, half_rate_outputs) * share


def product_efficiency(outputs: float, depth: float, half_rate_outputs: float = HALF_RATE_OUTPUTS) -> float:
    """Share of the best shape's rate that a product with so many results reaches, each a sum of ``depth`` terms.

    A small result leaves the last wave of tiles half empty; a short sum does not pay for the start and end of its tile.
    Source: NVIDIA, Matrix Multiplication Background User's Guide.

    >>> round(product_efficiency(4096 * 4096, 4096), 2), round(product_efficiency(4096 * 50304, 4096), 2)
    (0.73, 0.93)
    """
    return outputs / (outputs + half_rate_outputs) * depth / (depth + HALF_RATE_DEPTH)


def _logits_share(setup: Setup, software: Software) -> float:
    """Share of the logits' work by which the busiest pipeline rank is longer than its blocks.

    With equal numbers of blocks the last rank has the logits on top, and all wait for it. Where the software cuts by cost, or
    the number of blocks leaves the first and last rank fewer, it is spread.
    """
    p = setup.pipeline_degree
    if software.balanced_stages:
        return 1 / p
    return chosen((p > 1) & (setup.shape.num_layers % p == 0), 1.0, 1 / p)


def _attention_s(setup: Setup, machine: Machine, software: Software, passes: float) -> float:
    """Scores and values of one block for all passes."""
    shape = setup.shape
    terms = block_forward_flops(shape, setup.seq_len)
    flops = (terms["scores"] + terms["values"]) * setup.micro_batch_size / setup.tensor_degree / setup.sequence_degree
    rate = machine.achievable_tflops * TERA * machine.sustained_attention
    if software.fused_attention:
        # Half of the scores are skipped; the backward pass forms the scores once more (5 products for 4).
        backward_and_again = passes - 1 + 0.5 if setup.recomputation == "full" else 2.5
        rate *= software.attention_share
        again = 1 + software.attention_row_cost * rate / TERA / setup.seq_len
        return flops / 2 * (1 + backward_and_again) / rate * again
    scores = setup.micro_batch_size * shape.num_heads * setup.seq_len**2 / setup.tensor_degree / setup.sequence_degree
    traffic = scores * software.score_bytes * passes / (machine.memory_gb_per_s * GIGA)
    return flops * passes / (rate * software.attention_share) + traffic


def _element_bytes(setup: Setup, software: Software) -> float:
    """Bytes a token of one block's forward pass, each tensor read and written once: norms, residuals, activation function.

    Per token, in elements: two norms and two residual sums 10h, copies around attention 4·width, the activation function 2f
    (gated 4f). Without sequence parallelism the part of width h is done on every tensor rank.
    """
    shape, tp = setup.shape, setup.tensor_degree
    inner = (4 if shape.architecture == "llama" else 2) * shape.ffn_hidden_size
    outer = 10 * shape.hidden_size / (tp if software.sequence_parallel else 1)
    return setup.bytes_per_element * (outer + (4 * shape.attention_width + inner) / tp)


def _tensor_parallel_part(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Two all-reduces of a block's output in the forward pass, two in the backward, two in a recomputed forward.

    An input of which each rank keeps a part is gathered, half an all-reduce, before its block is recomputed.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Rajbhandari et al. 2020 (arXiv 1910.02054), section 6.1.
    """
    if everywhere(setup.tensor_degree == 1):
        return {}
    group = group_of(setup.tensor_degree, 1, machine.gpus_per_node)
    size = setup.tokens_per_micro_step * setup.shape.hidden_size * setup.bytes_per_element
    each_block = (6 if setup.recomputation == "full" else 4) + (0.5 if setup.split_block_inputs else 0)
    count = each_block * setup.shape.num_layers / setup.pipeline_degree
    one = all_reduce_time_s(size, group, links_of(machine, software))
    exposed = 1 - software.model_parallel_overlap
    return {"tensor-parallel all-reduce": count * one * setup.num_micro_steps * exposed}


def _sequence_parallel_part(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Queries, keys, values and the result change from a share of the tokens to a share of the heads, and back in the gradient.

    Source: Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509), section 3.2. A ring of keys and values moves less with
    grouped queries and hides more; it is taken for the same.
    """
    if everywhere(setup.sequence_degree == 1):
        return {}
    shape, tp = setup.shape, setup.tensor_degree
    group = group_of(setup.sequence_degree, tp, machine.gpus_per_node)
    width = 2 * (shape.attention_width + shape.kv_width) / tp
    size = setup.tokens_per_micro_step * width * setup.bytes_per_element
    passes = 3 if setup.recomputation == "full" else 2
    count = passes * shape.num_layers / setup.pipeline_degree * setup.num_micro_steps
    one = all_to_all_time_s(size, group, links_of(machine, software))
    return {"sequence-parallel exchange": count * one * (1 - software.model_parallel_overlap)}


def _pipeline_parts(setup: Setup, machine: Machine, software: Software, busy_s: float) -> dict[str, float]:
    """The bubble, (p - 1)/(m·v) of the busy time, and activations sent on.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
    """
    p, v = setup.pipeline_degree, setup.virtual_stages
    bubble = busy_s * (p - 1) / (setup.num_micro_steps * v)
    stride = setup.num_gpus // p
    size = setup.tokens_per_micro_step * setup.shape.hidden_size * setup.bytes_per_element / setup.tensor_degree
    rate = machine.link_gb_per_s * software.link_share
    if machine.network_gb_per_s is not None:
        over_network = machine.network_gb_per_s / machine.gpus_per_node * software.network_share
        rate = chosen(stride >= machine.gpus_per_node, over_network, rate)
    sends = chosen(p > 1, 2 * setup.num_micro_steps * v, 0)
    return {
        "pipeline bubble": bubble,
        "pipeline sends": sends * size / (rate * GIGA) * (1 - software.model_parallel_overlap),
    }
