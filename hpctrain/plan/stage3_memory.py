"""Memory of one rank in ZeRO-3, phase by phase.

Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py. Left out: tensors of
a few numbers, and on a GPU what kernels and libraries take for themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpctrain.plan.adam_scratch import ADAM_SCRATCH, adam_scratch
from hpctrain.plan.decoder_activations import DecoderActivations
from hpctrain.plan.ds_config import reduce_bucket_elements
from hpctrain.plan.gathering import GatherRules, Visit, gathered_visits
from hpctrain.plan.gradient_buckets import BlockGradients, gradient_flow
from hpctrain.plan.memory_terms import Amounts, Height, MemoryPhase, Pinned, RankMemory, added, in_pieces, total
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.sub_groups import DEFAULT_SUB_GROUP_SIZE, num_kept_on_gpu, sub_groups

_FP32 = 4
_NORM = 8
"""Bytes of an element of a gradient norm, fp64. Source: runtime/zero/utils.py get_norm_dtype."""
_NORM_PIECE = 250_000_000
"""Elements whose norm is taken at once under offload. Source: runtime/zero/stage3.py _constant_buffered_norm2."""


def stage3_memory(work: RankWork, parameters: RankParameters) -> RankMemory:
    """Bytes by phase and term, the device's under ``gpu`` even where it is the CPU."""
    return _Stage3(work, parameters).memory()


class _Stage3:
    def __init__(self, work: RankWork, parameters: RankParameters) -> None:
        self._work, self._parameters = work, parameters
        self._width = work.bytes_per_element
        self._degree = work.layout.zero_degree
        parallelism = work.parallelism
        self._on_host = parallelism.offload_optimizer == "cpu"
        self._params_on_host = parallelism.offload_param == "cpu"
        self._share = parameters.partition(self._degree)
        groups = sub_groups(parameters, self._degree, parallelism.sub_group_size or DEFAULT_SUB_GROUP_SIZE)
        num_here = num_kept_on_gpu(len(groups), parallelism.offload_ratio) if self._on_host else len(groups)
        self._here, self._there = groups[:num_here], groups[num_here:]
        self._bucket = reduce_bucket_elements(parallelism, work.shape.num_parameters)
        self._activations = DecoderActivations(work)
        # Of one rank nothing is gathered: a parameter is its own partition.
        self._gather_width = self._width if self._degree > 1 or self._params_on_host else 0

    def memory(self) -> RankMemory:
        resting = self._resting_gpu()
        gpu: dict[MemoryPhase, Amounts] = {
            "model": self._construction(),
            "engine": self._engine(resting),
            "forward": self._forward().over(resting),
            "backward": self._backward().over(resting),
            "optimizer": self._optimizer(resting),
        }
        host, pinned = self._host()
        return RankMemory(gpu, host, pinned)

    def _resting_gpu(self) -> Amounts:
        """What is there all the time from the second step on."""
        width, here = self._width, sum(self._here)
        persistent = [size for size in self._all_sizes() if size <= self._work.parallelism.param_persistence_threshold]
        resting = {
            "parameters": 0 if self._params_on_host else width * self._share,
            "persistent parameters": self._gather_width * sum(persistent),
            "gradients": 0 if self._on_host else width * self._share,
            "fp32 gradients": _FP32 * here if self._on_host else 0,
            "fp32 master": _FP32 * here,
            "Adam moments": 2 * _FP32 * here,
            "reduce buckets": width * self._bucket,
        }
        hpz = self._work.parallelism.hpz_partition_size
        if hpz > 1:
            resting["secondary partition"] = width * self._parameters.partition(hpz)
        return resting

    def _all_sizes(self) -> Iterator[int]:
        yield from self._parameters.matrices
        yield from self._parameters.vectors

    def _construction(self) -> Amounts:
        """zero.Init: each parameter is whole in fp32, then in the training type, beside the shares of those before it."""
        width, before, height = self._width, 0, Height("initialisation", "parameters")
        for size in self._parameters.matrices:
            height.offer((_FP32 + width) * size, 0 if self._params_on_host else width * before)
            before += math.ceil(size / self._degree)
        return height.over({})

    def _engine(self, resting: Amounts) -> Amounts:
        """To hang a hook on it each parameter is gathered once; the moments are not there yet."""
        gathered = self._gather_width * self._parameters.largest
        there = {
            name: num_bytes
            for name, num_bytes in resting.items()
            if name not in ("persistent parameters", "Adam moments")
        }
        return added(there, {"gathered parameters": gathered})

    def _visits(self) -> tuple[Visit, ...]:
        parallelism = self._work.parallelism
        rules = GatherRules(
            num_ranks=self._degree,
            prefetch_bucket_size=parallelism.prefetch_bucket_size,
            max_live_parameters=parallelism.max_live_parameters,
            max_reuse_distance=parallelism.max_reuse_distance,
            persistence_threshold=parallelism.param_persistence_threshold,
        )
        return gathered_visits(self._parameters, rules, self._work.checkpointing == "full")

    def _forward(self) -> Height:
        width, activations = self._gather_width, self._activations
        height = Height("gathered parameters", self._kept_name, "activations of one block", "logits and loss")
        is_kept, last = self._work.checkpointing == "none", 0
        inside = activations.forward_height if is_kept else activations.recomputed_forward_height
        for visit in self._visits():
            if visit.is_backward:
                break
            if visit.block is not None:
                kept = self._activations.kept_before(visit.block)
                height.offer(width * visit.fetching, kept, 0, 0)
                height.offer(width * visit.held, self._activations.kept_with(visit.block), inside, 0)
            last = visit.held
        height.offer(
            width * last,
            self._activations.kept_with(self._parameters.num_blocks - 1),
            activations.ends,
            activations.loss_forward,
        )
        return height

    def _backward(self) -> Height:
        width, activations, parameters = self._width, self._activations, self._parameters
        height = Height(
            "gathered parameters",
            self._kept_name,
            "activations of one block",
            "logits and loss",
            "whole gradients",
            "flattened for reduction",
        )
        visits = [visit for visit in self._visits() if visit.is_backward]
        at_loss = (
            self._gather_width * visits[0].held,
            self._activations.kept_with(parameters.num_blocks - 1),
            activations.ends,
        )
        output = parameters.token_table if parameters.is_tied else parameters.head
        height.offer(*at_loss, activations.loss_backward, 0, 0)
        height.offer(*at_loss, activations.head_backward, width * output, 0)
        tied = output if parameters.is_tied else 0
        flow = gradient_flow(parameters, self._bucket, self._degree, 3)
        # The output matrix's gradient is handed over with those of the last norm.
        height.offer(
            *at_loss, activations.block_input, width * (tied + flow.before.whole), width * flow.before.flattened
        )
        seen: set[int] = set()
        for visit in visits:
            if visit.block is None:
                continue
            gradients = flow.blocks[-1 - visit.block]
            fetched = (
                self._gather_width * visit.fetching,
                activations.kept_with(visit.block),
                activations.block_input,
            )
            height.offer(*fetched, 0, width * (tied + gradients.waiting), 0)
            if visit.block in seen or self._work.checkpointing == "none":
                self._offer_block(height, visit, gradients, tied)
            seen.add(visit.block)
        at_end = (self._gather_width * visits[-1].held, 0, activations.block_input, 0)
        # A tied table's gradient as the output matrix, that as the table, and their sum.
        height.offer(*at_end, width * max(3 * tied, parameters.token_table), 0)
        height.offer(*at_end, width * flow.end.whole, width * flow.end.flattened)
        return height

    def _offer_block(self, height: Height, visit: Visit, gradients: BlockGradients, tied: int) -> None:
        """The moments of a block's backward pass and of the reduction behind it."""
        assert visit.block is not None
        width, activations = self._width, self._activations
        gathered, kept = self._gather_width * visit.held, self._activations.kept_before(visit.block)
        for moment in activations.block_heights():
            whole = tied + gradients.at_matrix[moment.matrix].whole
            height.offer(gathered, kept, moment.num_bytes, 0, width * whole, 0)
        whole, flattened = tied + gradients.behind.whole, width * gradients.behind.flattened + self._to_host
        height.offer(gathered, kept, 2 * activations.block_input, 0, width * whole, flattened)

    @property
    def _to_host(self) -> int:
        """Under offload a share of a gradient is brought back to the GPU, and in fp64 for its norm."""
        if not self._on_host:
            return 0
        share = math.ceil(max(self._parameters.block_matrices) / self._degree)
        return self._width * share + _NORM * min(share, _NORM_PIECE)

    @property
    def _kept_name(self) -> str:
        return "block inputs" if self._work.checkpointing == "full" else "activations"

    def _optimizer(self, resting: Amounts) -> Amounts:
        """Small parameters that stay whole are given up before the step and gathered anew behind it."""
        there = {name: num_bytes for name, num_bytes in resting.items() if name != "persistent parameters"}
        return max(added(there, {"optimizer step": self._step()}), resting, key=total)

    def _step(self) -> int:
        """Gradients of a sub-group flattened and in fp32, or one gradient's share in fp64 for the norm."""
        share = math.ceil(self._parameters.largest / self._degree)
        if self._on_host:
            # On the GPU torch's own AdamW works, with as much scratch as on a CPU device.
            return max(ADAM_SCRATCH * max(self._here, default=0), adam_scratch(self._work) * max(self._there))
        flattened = (self._width if self._width != _FP32 else 0) + _FP32
        return max(max(flattened, _FP32 + adam_scratch(self._work)) * max(self._here), _NORM * share)

    def _host(self) -> tuple[dict[MemoryPhase, Amounts], dict[str, Pinned]]:
        """Host memory of one rank: what is offloaded."""
        parallelism, width, there = self._work.parallelism, self._width, sum(self._there)
        amounts: Amounts = {}
        pieces: dict[str, Pinned] = {}
        if self._on_host:
            amounts |= {
                "gradients": width * self._share,
                "fp32 gradients": _FP32 * there,
                "fp32 master": _FP32 * there,
                "Adam moments": 2 * _FP32 * there,
            }
            pieces |= {
                "gradients": in_pieces([self._share], width),
                "fp32 gradients": in_pieces(self._there, _FP32),
            }
        if self._params_on_host:
            groups = (self._parameters.matrices, self._parameters.vectors)
            amounts["parameters"] = width * self._share
            shares = [sum(math.ceil(size / self._degree) for size in group) for group in groups]
            pieces["parameters"] = in_pieces(shares, width)
        engine = {name: num_bytes for name, num_bytes in amounts.items() if name != "Adam moments"}
        engine["initialisation"] = self._host_initialisation()
        waiting: Amounts = {}
        if self._work.offload_activations:
            size = self._activations.block_input
            num_waiting = self._parameters.num_blocks - 1
            waiting["block inputs"] = num_waiting * size
            pieces["block inputs"] = Pinned((size,) * num_waiting)
        host: dict[MemoryPhase, Amounts] = {
            "model": self._host_construction() if self._params_on_host else {},
            "engine": engine,
            "forward": added(amounts, waiting),
            "backward": added(amounts, waiting),
            "optimizer": amounts,
        }
        # Blocks' inputs are pinned in any case (worker/model/host_inputs.py); pin_memory is about the engine's own buffers.
        is_pinned = parallelism.pin_memory
        return host, {name: those for name, those in pieces.items() if is_pinned or name == "block inputs"}

    def _host_construction(self) -> Amounts:
        """Each share is made in ordinary memory and copied to pinned memory."""
        before, height = 0, Height("parameters", "initialisation")
        for size in self._all_sizes():
            share = math.ceil(size / self._degree)
            before += share
            height.offer(self._width * before, self._width * share)
        return height.over({})

    def _host_initialisation(self) -> int:
        """Buffers are made in ordinary memory and copied to pinned memory; partitions go through the host to become one buffer.

        Source: runtime/zero/stage3.py initialize_optimizer_states, _setup_for_real_optimizer; runtime/zero/utils.py defragment.
        """
        if not self._on_host:
            return 0 if self._params_on_host else self._width * self._share
        # fp32 gradients: a buffer for the largest sub-group, then one after the other; the 16-bit ones come later.
        height, pinned = 0, 0
        for size in self._there:
            pinned += size
            height = max(height, pinned + size)
        first = _FP32 * (max(*self._here, *self._there) + height - pinned) - self._width * self._share
        return max(first, self._width * self._share)
