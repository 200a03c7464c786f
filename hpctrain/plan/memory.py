"""A first estimate of the memory a run takes, per GPU and per node: closed rules, an estimate and no measurement.

The rules follow what DeepSpeed 0.19.8 allocates; each term names the engine's file. What they leave out: fragmentation of the
allocator, workspaces of the matrix library, and the initialisation peak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctrain.config.schema import (
    ActivationCheckpointing,
    HardwareConfig,
    ParallelismConfig,
    Precision,
)
from hpctrain.errors import Problem
from hpctrain.plan.ds_config import reduce_bucket_elements
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.model_shape import ModelShape
from hpctrain.units import GIB, gib

CPU_PROCESS_BYTES = int(0.4 * GIB)
"""A rank's resident size, read with ps from ranks of model=tiny, whose own share is a few MiB: 0.37 to 0.39 GiB.

Read 2026-11-29 with torch 2.13.0 (CPU build), DeepSpeed 0.19.8, gloo; a CUDA build will differ.
"""
BYTES_PER_ELEMENT: dict[Precision, int] = {"fp32": 4, "bf16": 2}
_DECODER = "hpctrain/worker/model/decoder.py"
CONTEXT_TERM = "context and NCCL"
DEVICE_CONTEXT_BYTES = int(1.5 * GIB)
"""CUDA context and NCCL's buffers. An assumption (0.5 GiB and 1 GiB), not a measurement."""


@dataclass(frozen=True)
class MemoryTerm:
    """One allocation of one rank."""

    name: str
    num_bytes: int
    tier: str
    """``gpu`` or ``host``."""
    source: str


@dataclass(frozen=True)
class MemoryEstimate:
    """Predicted memory, by term of one rank, with what the hardware has."""

    terms: tuple[MemoryTerm, ...]
    gpu_capacity_bytes: int | None
    """None: the device is the CPU and ranks share the host's memory."""
    host_capacity_bytes: int | None
    ranks_per_node: int

    @property
    def gpu_bytes(self) -> int:
        """Per GPU."""
        return sum(term.num_bytes for term in self.terms if term.tier == "gpu")

    @property
    def allocator_bytes(self) -> int:
        """Of ``gpu_bytes`` what torch's allocator counts: CUDA's context and NCCL stand outside it."""
        return sum(term.num_bytes for term in self.terms if term.tier == "gpu" and term.name != CONTEXT_TERM)

    @property
    def host_bytes_per_node(self) -> int:
        return self.ranks_per_node * sum(term.num_bytes for term in self.terms if term.tier == "host")

    @property
    def fits_with_headroom(self) -> bool:
        """A tenth of each tier stays free; asked of what is chosen for the user, since this is an estimate."""
        gpu_ok = self.gpu_capacity_bytes is None or self.gpu_bytes <= 0.9 * self.gpu_capacity_bytes
        host_ok = self.host_capacity_bytes is None or self.host_bytes_per_node <= 0.9 * self.host_capacity_bytes
        return gpu_ok and host_ok

    def problems(self) -> tuple[Problem, ...]:
        """What is short, on which tier, by how much."""
        found = []
        if self.gpu_capacity_bytes is not None and self.gpu_bytes > self.gpu_capacity_bytes:
            found.append(_short("memory.gpu", self.gpu_bytes, self.gpu_capacity_bytes, "a GPU"))
        if self.host_capacity_bytes is not None and self.host_bytes_per_node > self.host_capacity_bytes:
            found.append(_short("memory.host", self.host_bytes_per_node, self.host_capacity_bytes, "a node"))
        return tuple(found)


def _short(key: str, needed: int, available: int, place: str) -> Problem:
    return Problem(
        key,
        gib(needed),
        f"estimated need; {place} has {gib(available)}, short by {gib(needed - available)}",
        "more nodes, a smaller training.micro_batch_size, parallelism=zero3_offload or another hardware;"
        " --force submits all the same",
        kind="memory",
    )


def estimate_memory(
    shape: ModelShape,
    layout: Layout,
    batch: Batch,
    parallelism: ParallelismConfig,
    hardware: HardwareConfig,
    precision: Precision,
    checkpointing: ActivationCheckpointing,
) -> MemoryEstimate:
    """The terms of one rank for ZeRO 1, 2 or 3, with or without offload to the host."""
    width = BYTES_PER_ELEMENT[precision]
    terms = [
        *_state_terms(shape.num_parameters, layout.data_parallel_degree, parallelism, width),
        *_bucket_terms(shape, parallelism, width),
        *max(
            [
                *_kept_activation_terms(shape, batch, width, checkpointing),
                *_peak_phase_terms(shape, batch, parallelism, width, checkpointing),
            ],
            _step_terms(shape.num_parameters, layout.data_parallel_degree, parallelism, width),
            key=_total,
        ),
    ]
    if hardware.device == "cuda":
        terms.append(MemoryTerm(CONTEXT_TERM, DEVICE_CONTEXT_BYTES, "gpu", "assumed"))
    else:
        terms = [MemoryTerm(term.name, term.num_bytes, "host", term.source) for term in terms]
    terms.append(MemoryTerm("Python and torch", CPU_PROCESS_BYTES, "host", "read on a CPU build of torch"))
    return MemoryEstimate(
        terms=tuple(term for term in terms if term.num_bytes),
        gpu_capacity_bytes=_bytes(hardware.gpu_memory_gib),
        host_capacity_bytes=_bytes(hardware.host_memory_gib),
        ranks_per_node=layout.gpus_per_node,
    )


def _bytes(size_gib: float | None) -> int | None:
    return None if size_gib is None else int(size_gib * GIB)


def _state_terms(num_parameters: int, degree: int, parallelism: ParallelismConfig, width: int) -> list[MemoryTerm]:
    """Parameters, gradients, fp32 master copy and the two Adam moments.

    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 5; runtime/zero/stage3.py, runtime/zero/stage_1_and_2.py.
    """
    stage = parallelism.zero_stage
    share = math.ceil(num_parameters / degree)
    source = "runtime/zero/stage3.py" if stage == 3 else "runtime/zero/stage_1_and_2.py"
    optimizer_tier = "host" if parallelism.offload_optimizer == "cpu" else "gpu"
    param_tier = "host" if parallelism.offload_param == "cpu" else "gpu"
    gradients = num_parameters if stage == 1 else share
    terms = [
        MemoryTerm("parameters", width * (share if stage == 3 else num_parameters), param_tier, source),
        MemoryTerm("gradients", width * gradients, "gpu" if stage == 1 else optimizer_tier, source),
        MemoryTerm("fp32 master", 4 * share, optimizer_tier, source),
        MemoryTerm("Adam moments", 8 * share, optimizer_tier, source),
    ]
    if optimizer_tier == "host":
        terms.append(MemoryTerm("fp32 gradients", 4 * share, "host", source))
    return terms


def _bucket_terms(shape: ModelShape, parallelism: ParallelismConfig, width: int) -> list[MemoryTerm]:
    """Communication buckets, and in stage 3 the small parameters that stay whole.

    The stage-3 bucket is allocated whole at the start, and flattening for the collective copies at most one more.
    """
    total = shape.num_parameters
    if parallelism.zero_stage < 3:
        copies = 3 if parallelism.overlap_comm else 2
        bucket = min(reduce_bucket_elements(parallelism, total), total)
        return [MemoryTerm("reduce buckets", copies * bucket * width, "gpu", "runtime/zero/stage_1_and_2.py")]
    bucket = reduce_bucket_elements(parallelism, total)
    persistent = shape.num_layers * shape.block_vector_parameters
    return [
        MemoryTerm("reduce bucket", bucket * width, "gpu", "runtime/zero/stage3.py"),
        MemoryTerm("reduce-scatter copy", min(bucket, total) * width, "gpu", "coalesced_collectives.py"),
        MemoryTerm("persistent parameters", persistent * width, "gpu", "runtime/zero/parameter_offload.py"),
    ]


def _kept_activation_terms(
    shape: ModelShape, batch: Batch, width: int, checkpointing: ActivationCheckpointing
) -> list[MemoryTerm]:
    """What the forward pass keeps for the backward pass."""
    if checkpointing == "full":
        inputs = shape.num_layers * batch.micro_batch_size * batch.seq_len * shape.hidden_size * width
        return [MemoryTerm("block inputs", inputs, "gpu", _DECODER)]
    return [MemoryTerm("activations", shape.num_layers * _block_activations(shape, batch, width), "gpu", _DECODER)]


def _block_activations(shape: ModelShape, batch: Batch, width: int) -> int:
    """Bytes that one block keeps for its backward pass.

    Per token, in elements: two norm inputs and outputs (4h), queries, keys, values and the attention's output (2q + 2kv), and
    the feed-forward's inner tensors (GPT 2f: before and after GELU; Llama 4f: gate, its SiLU, up, their product). Fused
    attention keeps no score matrix.
    """
    inner = (4 if shape.architecture == "llama" else 2) * shape.ffn_hidden_size
    per_token = 4 * shape.hidden_size + 2 * (shape.attention_width + shape.kv_width) + inner
    return batch.micro_batch_size * batch.seq_len * per_token * width


def _peak_phase_terms(
    shape: ModelShape,
    batch: Batch,
    parallelism: ParallelismConfig,
    width: int,
    checkpointing: ActivationCheckpointing,
) -> list[MemoryTerm]:
    """The largest of three moments, which do not coincide: the loss, a block being gathered, a block's backward pass.

    The loss holds logits in the training type and, in fp32, their copy, the log-softmax and the gradient. In stage 3 a block
    is gathered as one unit into a flat buffer and then copied out (twice its size for a moment), and prefetching the next
    one overshoots by up to one parameter. The backward pass holds the gradients of a block's activations beside them.
    """
    loss_bytes = batch.micro_batch_size * batch.seq_len * shape.vocab_size * (width + 12)
    activations = _block_activations(shape, batch, width)
    backward_bytes = 2 * activations if checkpointing == "full" else activations
    loss = [MemoryTerm("logits and loss", loss_bytes, "gpu", _DECODER)]
    backward = [MemoryTerm("backward of one block", backward_bytes, "gpu", _DECODER)]
    if parallelism.zero_stage < 3:
        return max(loss, backward, key=_total)
    embedding = shape.vocab_size * shape.hidden_size
    largest = max(embedding, shape.hidden_size * max(shape.ffn_hidden_size, shape.attention_width + 2 * shape.kv_width))
    prefetch = MemoryTerm(
        "prefetched parameters",
        min(parallelism.prefetch_bucket_size + largest, shape.num_parameters) * width,
        "gpu",
        "runtime/zero/partitioned_param_coordinator.py",
    )
    phases = [
        [*loss, _gathered(2 * embedding * width)],
        [_gathered(2 * shape.block_parameters * width), prefetch],
        [*backward, _gathered(shape.block_parameters * width), prefetch],
    ]
    return max(phases, key=_total)


def _step_terms(num_parameters: int, degree: int, parallelism: ParallelismConfig, width: int) -> list[MemoryTerm]:
    """The optimizer step, when no activation is left: gradients flattened in the training type, then in fp32.

    Stage 3 does it by sub-groups, the others for the whole share. Source: runtime/zero/stage3.py
    _prepare_fp32_grad_for_sub_group, runtime/zero/stage_1_and_2.py.
    """
    share = math.ceil(num_parameters / degree)
    group = min(parallelism.sub_group_size, share) if parallelism.zero_stage == 3 else share
    tier = "host" if parallelism.offload_optimizer == "cpu" else "gpu"
    return [MemoryTerm("optimizer step", (width + 4) * group, tier, "runtime/zero/")]


def _gathered(num_bytes: int) -> MemoryTerm:
    return MemoryTerm("gathered parameters", num_bytes, "gpu", "runtime/zero/partition_parameters.py")


def _total(terms: list[MemoryTerm]) -> int:
    return sum(term.num_bytes for term in terms)
