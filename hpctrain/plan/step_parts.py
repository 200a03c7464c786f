"""Seconds of one optimizer step, part by part, from shapes, rates and links: the physical core of the prediction.

Parts that overlap are counted as far as they stay exposed, so the parts add up to the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.plan.flops import block_forward_flops
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.network import Links, all_reduce_time_s, all_to_all_time_s, gather_time_s, group_of
from hpctrain.plan.nvme_parts import NvmeTraffic, nvme_parts
from hpctrain.plan.software import (
    ADAM_BYTES_PER_PARAMETER,
    GPU_MEMORY_SHARE,
    HALF_RATE_DEPTH,
    HALF_RATE_OUTPUTS,
    LOSS_BYTES_PER_LOGIT,
    SCORE_BYTES,
    UNALIGNED_SHARE,
    Software,
)
from hpctrain.units import GIGA, TERA

Recomputation = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Machine:
    """One kind of GPU and node, in the data type of the matrix products."""

    gpus_per_node: int
    achievable_tflops: float
    """Best measured matmul rate of one GPU."""
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
    """Parameters are sharded in a node and replicated over nodes (HSDP; in published runs of DeepSpeed, its second partition)."""
    second_partition_ranks: int = 1
    """Neighbouring ranks that keep a second partition of the parameters between them (ZeRO++ hpZ); 1: none."""
    virtual_stages: int = 1
    """Pieces of a pipeline rank in the interleaved schedule."""
    recomputation: Recomputation = "none"
    offload_optimizer: bool = False
    offload_ratio: float = 1.0
    """Share of the optimizer's state that offload_optimizer moves."""
    offload_param: bool = False
    offload_activations: bool = False
    live_parameters: float | None = None
    """Gathered parameters that the engine keeps at most (DeepSpeed's max_live_parameters, max_reuse_distance); None: no bound."""
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

    >>> from hpctrain.plan.plain_shape import plain_shape
    >>> from hpctrain.plan.software import SOFTWARE
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
    if setup.pipeline_degree > 1:
        parts |= _pipeline_parts(setup, machine, software, busy)
    parts |= _zero_parts(setup, machine, software, per_micro_step)
    parts |= _host_parts(setup, machine, software, per_micro_step)
    parts |= _optimizer_parts(setup, machine, software)
    if setup.nvme is not None:
        ranks = min(machine.gpus_per_node, setup.num_gpus)
        rates = (machine.nvme_read_gb_per_s, machine.nvme_write_gb_per_s)
        hidden_s = software.host_overlap * per_micro_step * steps
        parts |= nvme_parts(setup.nvme, ranks, rates, steps, hidden_s, parts.get("optimizer on the CPU", 0.0))
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


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
    blocks_s = block_passes * layers * products / rate / block_efficiency(setup)
    logits_s = 3 * logits / rate / product_efficiency(tokens * shape.vocab_size / tp, shape.hidden_size)
    attention = layers * _attention_s(setup, machine, software, attention_passes)
    elements = layers * block_passes * _element_bytes(setup, software) * tokens * software.element_traffic
    loss = tokens * shape.vocab_size / tp * LOSS_BYTES_PER_LOGIT * on_busiest
    parts = {
        "matrix work": blocks_s + logits_s,
        "attention": attention,
        "element-wise work": (elements + loss) / (machine.memory_gb_per_s * GIGA),
        "blocking launches": layers * block_passes * software.launch_s_per_block_pass,
    }
    behind = layers * block_passes * software.host_s_per_block_pass - sum(parts.values())
    return {**parts, "host behind the GPU": max(0.0, behind)}


def block_efficiency(setup: Setup) -> float:
    """Share of the best shape's rate of a block's products, by the narrowest of them, and less off the tiles' grid.

    A side that 64 does not divide spoils the tiles' alignment; BigScience's table "tile and wave quantization" has its size.
    """
    shape, tp = setup.shape, setup.tensor_degree
    sides = (shape.attention_width // tp, shape.ffn_hidden_size // tp)
    narrowest = min(shape.hidden_size, shape.ffn_hidden_size / tp)
    aligned = all(side % 64 == 0 for side in sides)
    return product_efficiency(setup.tokens_per_micro_step * narrowest, narrowest) * (
        1.0 if aligned else UNALIGNED_SHARE
    )


def product_efficiency(outputs: float, depth: float) -> float:
    """Share of the best shape's rate that a product with so many results reaches, each a sum of ``depth`` terms.

    A small result leaves the last wave of tiles half empty; a short sum does not pay for the start and end of its tile.
    Source: NVIDIA, Matrix Multiplication Background User's Guide.

    >>> round(product_efficiency(4096 * 4096, 4096), 2), round(product_efficiency(4096 * 50304, 4096), 2)
    (0.73, 0.93)
    """
    return outputs / (outputs + HALF_RATE_OUTPUTS) * depth / (depth + HALF_RATE_DEPTH)


def _logits_share(setup: Setup, software: Software) -> float:
    """Share of the logits' work by which the busiest pipeline rank is longer than its blocks.

    With equal numbers of blocks the last rank has the logits on top, and all wait for it. Where the software cuts by cost, or
    the number of blocks leaves the first and last rank fewer, it is spread.
    """
    p = setup.pipeline_degree
    even = p > 1 and setup.shape.num_layers % p == 0
    return 1.0 if even and not software.balanced_stages else 1 / p


def _attention_s(setup: Setup, machine: Machine, software: Software, passes: float) -> float:
    """Scores and values of one block for all passes."""
    shape = setup.shape
    terms = block_forward_flops(shape, setup.seq_len)
    flops = (terms["scores"] + terms["values"]) * setup.micro_batch_size / setup.tensor_degree / setup.sequence_degree
    rate = machine.achievable_tflops * TERA * machine.sustained_attention
    if software.fused_attention:
        # Half of the scores are skipped; the backward pass forms the scores once more (5 products for 4).
        backward_and_again = passes - 1 + 0.5 if setup.recomputation == "full" else 2.5
        return flops / 2 * (1 + backward_and_again) / (rate * software.attention_share)
    scores = setup.micro_batch_size * shape.num_heads * setup.seq_len**2 / setup.tensor_degree / setup.sequence_degree
    traffic = scores * SCORE_BYTES * passes / (machine.memory_gb_per_s * GIGA)
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


def _links(setup: Setup, machine: Machine, software: Software) -> Links:
    network = machine.network_gb_per_s
    return Links(
        machine.gpus_per_node,
        machine.link_gb_per_s * software.link_share,
        None if network is None else network * software.network_share,
        software.hop_latency_s,
    )


def _tensor_parallel_part(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Two all-reduces of a block's output in the forward pass, two in the backward, two in a recomputed forward.

    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    if setup.tensor_degree == 1:
        return {}
    group = group_of(setup.tensor_degree, 1, machine.gpus_per_node)
    size = setup.tokens_per_micro_step * setup.shape.hidden_size * setup.bytes_per_element
    count = (6 if setup.recomputation == "full" else 4) * setup.shape.num_layers / setup.pipeline_degree
    one = all_reduce_time_s(size, group, _links(setup, machine, software))
    return {"tensor-parallel all-reduce": count * one * setup.num_micro_steps}


def _sequence_parallel_part(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Queries, keys, values and the result change from a share of the tokens to a share of the heads, and back in the gradient.

    Source: Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509), section 3.2. A ring of keys and values moves less with
    grouped queries and hides more; it is taken for the same.
    """
    if setup.sequence_degree == 1:
        return {}
    shape, tp = setup.shape, setup.tensor_degree
    group = group_of(setup.sequence_degree, tp, machine.gpus_per_node)
    width = 2 * (shape.attention_width + shape.kv_width) / tp
    size = setup.tokens_per_micro_step * width * setup.bytes_per_element
    passes = 3 if setup.recomputation == "full" else 2
    count = passes * shape.num_layers / setup.pipeline_degree * setup.num_micro_steps
    return {"sequence-parallel exchange": count * all_to_all_time_s(size, group, _links(setup, machine, software))}


def _pipeline_parts(setup: Setup, machine: Machine, software: Software, busy_s: float) -> dict[str, float]:
    """The bubble, (p - 1)/(m·v) of the busy time, and activations sent on.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
    """
    p, v = setup.pipeline_degree, setup.virtual_stages
    bubble = busy_s * (p - 1) / (setup.num_micro_steps * v)
    stride = setup.num_gpus // p
    size = setup.tokens_per_micro_step * setup.shape.hidden_size * setup.bytes_per_element / setup.tensor_degree
    if stride >= machine.gpus_per_node and machine.network_gb_per_s is not None:
        rate = machine.network_gb_per_s / machine.gpus_per_node * software.network_share
    else:
        rate = machine.link_gb_per_s * software.link_share
    sends = 2 * setup.num_micro_steps * v
    return {
        "pipeline bubble": bubble,
        "pipeline sends": sends * size / (rate * GIGA),
    }


def _zero_parts(setup: Setup, machine: Machine, software: Software, micro_step_s: float) -> dict[str, float]:
    """Gathers and reduce-scatters of ZeRO, or the all-reduce of plain data parallelism, as far as compute does not hide them.

    Stage 3 gathers all parameters for the forward and again for the backward pass and reduces gradients in each micro step.
    Below it parameters are gathered once a step (or are the second half of an all-reduce) and gradients reduced once, in stage 2
    once a micro step.
    From a second partition all gathers of stage 3 come but those of the forward pass that follows an update, which makes it.
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7; DeepSpeed 0.19.8, runtime/zero/partition_parameters.py.
    """
    model_parallel = setup.tensor_degree * setup.pipeline_degree
    ranks = setup.zero_ranks
    if ranks == 1:
        return {}
    links = _links(setup, machine, software)
    shard = setup.shape.num_parameters / model_parallel
    size = shard * setup.bytes_per_element
    layers = setup.shape.num_layers / setup.pipeline_degree
    group = group_of(ranks, setup.tensor_degree, machine.gpus_per_node)
    if setup.zero_stage < 3:
        reduce_s = gather_time_s(shard * software.gradient_bytes, group, links, layers)
        reduce_s *= setup.num_micro_steps if setup.zero_stage == 2 else 1
        gather_s = gather_time_s(size, group, links, layers)
        exposed = max(0.0, reduce_s - software.gradient_overlap * micro_step_s * 2 / 3) + gather_s
        return {"gradient reduction": exposed}
    again = 0.0
    if setup.shard_within_node:
        over_nodes = group_of(-(-ranks // machine.gpus_per_node), machine.gpus_per_node, machine.gpus_per_node)
        again = all_reduce_time_s(size / machine.gpus_per_node, over_nodes, links, layers)
        group = group_of(min(ranks, machine.gpus_per_node), setup.tensor_degree, machine.gpus_per_node)
    count = layers * software.collectives_per_block
    forward = backward = gather_time_s(size, group, links, count)
    if setup.second_partition_ranks > 1:
        near = group_of(setup.second_partition_ranks, setup.tensor_degree, machine.gpus_per_node)
        backward = gather_time_s(size, near, links, count)
        forward = (forward + (setup.num_micro_steps - 1) * backward) / setup.num_micro_steps
    # Gathers need no arithmetic; sums are formed in the wider type where the software says so.
    reduce_s = gather_time_s(shard * software.gradient_bytes, group, links, count) + again
    # Where a block is larger than what may stay gathered, nothing can be fetched ahead of its use.
    too_large = setup.live_parameters is not None and setup.shape.block_parameters > setup.live_parameters
    total = forward + backward + reduce_s
    hidden = 0.0 if too_large else min(total, micro_step_s) * software.zero_overlap
    share = (total - hidden) / total * setup.num_micro_steps
    return {"parameter gathers": (forward + backward) * share, "gradient reduce-scatter": reduce_s * share}


def _host_parts(setup: Setup, machine: Machine, software: Software, micro_step_s: float) -> dict[str, float]:
    """Traffic between GPU and host memory that compute does not hide."""
    if not (setup.offload_optimizer or setup.offload_param or setup.offload_activations):
        return {}
    assert machine.host_link_gb_per_s is not None, "callers check that an offload has a link to the host"
    rate = machine.host_link_gb_per_s * GIGA
    shard = setup.held_parameters
    per_micro_step = 0.0
    if setup.offload_param:
        per_micro_step += 2 * shard * setup.bytes_per_element
    if setup.offload_activations:
        inputs = setup.shape.num_layers / setup.pipeline_degree * setup.tokens_per_micro_step * setup.shape.hidden_size
        per_micro_step += 2 * inputs * setup.bytes_per_element
    once = 0.0
    if setup.offload_optimizer:
        per_micro_step += shard * setup.offload_ratio * setup.bytes_per_element
        once = shard * setup.offload_ratio * setup.bytes_per_element
    exposed = max(0.0, per_micro_step / rate - software.host_overlap * micro_step_s)
    return {"host link": exposed * setup.num_micro_steps + once / rate}


def _optimizer_parts(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Adam is bound by memory: on the GPU by its own, on the host by that of the node, shared by its ranks.

    Where a part is on the host, one is stepped after the other (DeepSpeed 0.19.8, runtime/zero/stage3.py step).
    """
    size = setup.held_parameters * ADAM_BYTES_PER_PARAMETER
    on_host = size * setup.offload_ratio if setup.offload_optimizer else 0.0
    parts = {"optimizer": (size - on_host) / (machine.memory_gb_per_s * GIGA * GPU_MEMORY_SHARE)}
    if on_host:
        assert machine.host_memory_gb_per_s is not None, (
            "callers check that an optimizer on the CPU has its memory's rate"
        )
        ranks = min(machine.gpus_per_node, setup.num_gpus)
        rate = machine.host_memory_gb_per_s * GIGA * software.host_memory_share
        parts["optimizer on the CPU"] = on_host * ranks / rate
    return parts
