"""Memory of one rank in ZeRO-3, phase by phase.

Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py. Left out: tensors of
a few numbers, and on a GPU what kernels and libraries take for themselves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hpctrain.plan.ds_config import reduce_bucket_elements
from hpctrain.plan.memory.adam_scratch import ADAM_SCRATCH, adam_scratch
from hpctrain.plan.memory.decoder_activations import BlockHeight, DecoderActivations
from hpctrain.plan.memory.gathering import GatherRules, Int8
from hpctrain.plan.memory.stage3_moments import BackwardMoment, Stage3Moments, stage3_moments
from hpctrain.plan.memory.terms import Amounts, Height, MemoryPhase, Pinned, RankMemory, added, in_pieces, total
from hpctrain.plan.nvme.tier import NvmeTier
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.rank_work import RankWork

_FP32 = 4
_GATHERED = ("gathered parameters", "secondary partition")
_NORM_BYTES = 8
"""Of an element of a gradient norm, fp64. Source: runtime/zero/utils.py get_norm_dtype."""
_NORM_PIECE = 250_000_000
"""Elements whose norm is taken at once under offload. Source: runtime/zero/stage3.py _constant_buffered_norm2."""


def stage3_memory(work: RankWork, parameters: RankParameters) -> RankMemory:
    """Bytes by phase and term, the device's under ``gpu`` even where it is the CPU."""
    return _Stage3(work, parameters).memory()


class StateBytes(NamedTuple):
    """Of one rank's parameters, gradients and optimizer: on its device, and in host memory as pinned pieces take it."""

    gpu: int
    host: int


def stage3_states(work: RankWork, parameters: RankParameters) -> tuple[StateBytes, StateBytes]:
    """What is there throughout a step, and the height before the first: nothing of it depends on batch or recomputation.

    Left out is the second partition, which is not whole all the time.
    """
    return _Stage3(work, parameters).states()


class _Stage3:
    def __init__(self, work: RankWork, parameters: RankParameters) -> None:
        self._work, self._parameters = work, parameters
        self._width = work.bytes_per_element
        self._degree = work.layout.zero_degree
        parallelism = work.parallelism
        self._on_host = parallelism.offload_optimizer != "none"
        self._params_on_host = parallelism.offload_param != "none"
        self._share = parameters.partition(self._degree)
        self._nvme = NvmeTier(parallelism, parameters, self._degree, self._width)
        groups = self._nvme.sub_groups
        self._here, self._there, self._swapped = (
            [group.elements for group in groups if group.tier == tier] for tier in ("gpu", "host", "nvme")
        )
        self._bucket = reduce_bucket_elements(parallelism, work.shape.num_parameters)
        self._activations = DecoderActivations(work)
        # Of one rank nothing is gathered: a parameter is its own partition.
        self._gather_width = self._width if self._degree > 1 or self._params_on_host else 0

        self._persistent = parameters.up_to(parallelism.param_persistence_threshold)

    def memory(self) -> RankMemory:
        resting = self._resting_gpu()
        gpu: dict[MemoryPhase, Amounts] = {
            "model": self._construction(),
            "engine": self._engine(resting),
            "forward": self._forward().over(resting),
            "backward": self._backward().over(added(resting, self._unswapped)),
            "optimizer": self._optimizer(added(resting, self._unswapped)),
        }
        host, pinned = self._host()
        return RankMemory(gpu, host, pinned)

    def states(self) -> tuple[StateBytes, StateBytes]:
        resting, (host, pinned) = self._resting_gpu(), self._host()

        def taken(amounts: Amounts) -> int:
            pieces = (pinned[name] for name in amounts if name in pinned)
            return total(amounts) + sum(each.rounded_bytes - each.num_bytes for each in pieces)

        throughout = {name: num_bytes for name, num_bytes in host["forward"].items() if name != "block inputs"}
        before = max(total(self._construction()), total(self._engine(resting)))
        return (
            StateBytes(total(resting) - resting.get("secondary partition", 0), taken(throughout)),
            StateBytes(before, max(taken(host["model"]), taken(host["engine"]))),
        )

    def _resting_gpu(self) -> Amounts:
        """What is there all the time from the second step on."""
        width, here = self._width, sum(self._here)
        resting = {
            "parameters": width * (self._nvme.resident_parameters[0] if self._params_on_host else self._share),
            "persistent parameters": self._gather_width * self._persistent,
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

    @property
    def _second_grows(self) -> bool:
        """The optimizer's step drops the second partition; a parameter has its part again from its first release on.

        Source: runtime/zero/stage3.py invalidate_secondary_tensor; partition_parameters.py _partition_param_sec.
        """
        return self._work.parallelism.hpz_partition_size > 1 and self._work.batch.gradient_accumulation_steps == 1

    def _gathered(self, elements: int, unreleased: int) -> tuple[int, int]:
        """Bytes of gathered parameters, and of what the second partition has not got yet.

        Args:
            elements: gathered at the moment.
            unreleased: elements of parameters that have not been released since the step; those that never are come to them.
        """
        hpz = self._work.parallelism.hpz_partition_size
        missing = self._width * (unreleased + self._persistent) // hpz if self._second_grows else 0
        return self._gather_width * elements, -missing

    def _construction(self) -> Amounts:
        """zero.Init: each parameter is whole in fp32, then in the training type, beside the shares of those before it."""
        width, height = self._width, Height("initialisation", "parameters", "secondary partition")
        hpz, matrices = self._work.parallelism.hpz_partition_size, self._parameters.last_matrices
        for (size, before), (_, second) in zip(matrices(self._degree), matrices(hpz), strict=True):
            there = 0 if self._params_on_host else width * before
            height.offer((_FP32 + width) * size, there, width * second if hpz > 1 else 0)
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

    @property
    def _moments(self) -> Stage3Moments:
        parallelism = self._work.parallelism
        rules = GatherRules(
            num_ranks=self._degree,
            prefetch_bucket_size=parallelism.prefetch_bucket_size,
            max_live_parameters=parallelism.max_live_parameters,
            max_reuse_distance=parallelism.max_reuse_distance,
            persistence_threshold=parallelism.param_persistence_threshold,
            int8=Int8(self._width, self._work.precision == "fp16") if parallelism.quantized_weights else None,
        )
        return stage3_moments(
            self._parameters, rules, self._work.checkpointing == "full", self._bucket, self._second_grows
        )

    def _forward(self) -> Height:
        activations = self._activations
        height = Height(*_GATHERED, self._kept_name, "activations of one block", "logits and loss")
        is_kept = self._work.checkpointing != "full"
        inside = activations.forward_height if is_kept else activations.recomputed_forward_height
        for moment in self._moments.forward:
            kept = max(map(activations.kept_before, moment.blocks))
            height.offer(*self._gathered(moment.fetching, moment.unreleased), kept, 0, 0)
            kept = max(map(activations.kept_with, moment.blocks))
            height.offer(*self._gathered(moment.held, moment.unreleased), kept, inside, 0)
        height.offer(
            *self._gathered(*self._moments.at_loss),
            activations.kept_with(self._parameters.num_blocks - 1),
            activations.ends,
            activations.loss_forward,
        )
        return height

    def _backward(self) -> Height:
        width, activations, parameters, moments = self._width, self._activations, self._parameters, self._moments
        height = Height(
            *_GATHERED,
            self._kept_name,
            "activations of one block",
            "logits and loss",
            "whole gradients",
            "flattened for reduction",
        )
        at_loss = (
            *self._gathered(*moments.at_backward),
            activations.kept_with(parameters.num_blocks - 1),
            activations.ends,
        )
        output = parameters.token_table if parameters.is_tied else parameters.head
        height.offer(*at_loss, activations.loss_backward, 0, 0)
        height.offer(*at_loss, activations.head_backward, width * output, 0)
        tied = output if parameters.is_tied else 0
        # The output matrix's gradient is handed over with those of the last norm.
        before, end = moments.before, moments.end
        height.offer(*at_loss, activations.block_input, width * (tied + before.whole), self._reduced(before.flattened))
        heights = activations.block_heights()
        for moment in moments.backward:
            fetched = (
                *self._gathered(moment.fetching, moment.unreleased),
                max(map(activations.kept_with, moment.blocks)),
                activations.block_input,
            )
            height.offer(*fetched, 0, width * (tied + moment.waiting), 0)
            if moment.computes:
                gathered = self._gathered(moment.held, moment.unreleased)
                self._offer_block(height, moment, heights, tied, gathered)
        at_end = (*self._gathered(*moments.at_end), 0, activations.block_input, 0)
        # A tied table's gradient as the output matrix, that as the table, and their sum.
        height.offer(*at_end, width * max(3 * tied, parameters.token_table), 0)
        height.offer(*at_end, width * end.whole, self._reduced(end.flattened))
        return height

    def _offer_block(
        self,
        height: Height,
        moment: BackwardMoment,
        heights: list[BlockHeight],
        tied: int,
        gathered: tuple[int, int],
    ) -> None:
        """The heights of a block's backward pass and of the reduction behind it."""
        width, activations = self._width, self._activations
        kept = max(map(activations.kept_before, moment.blocks))
        for inside in heights:
            whole = tied + moment.at_matrix[inside.matrix].whole
            height.offer(*gathered, kept, inside.num_bytes, 0, width * whole, 0)
        whole, flattened = tied + moment.behind.whole, self._reduced(moment.behind.flattened) + self._to_host
        height.offer(*gathered, kept, 2 * activations.block_input, 0, width * whole, flattened)

    def _reduced(self, flattened: int) -> int:
        """Gradients in one piece, and of those on their way to NVMe this rank's shares in fp32, all of a reduction at once.

        Source: runtime/zero/stage3.py partition_grads, _offload_grad_partition_at_boundary.
        """
        if not self._swapped or self._is_fp32_on_cpu:
            return self._width * flattened
        together = max(flattened, max(self._parameters.block_matrices))
        on_their_way = min(math.ceil(together / self._degree), sum(self._swapped))
        return self._width * flattened + _FP32 * on_their_way

    @property
    def _to_host(self) -> int:
        """Under offload a share of a gradient is brought back to the GPU, and in fp64 for its norm."""
        if not self._on_host:
            return 0
        share = math.ceil(max(self._parameters.block_matrices) / self._degree)
        return self._width * share + _NORM_BYTES * min(share, _NORM_PIECE)

    @property
    def _unswapped(self) -> Amounts:
        """Gradients too small for NVMe wait where they were made; in fp32 on a CPU they are parts of the buffer of all."""
        return {} if self._is_fp32_on_cpu else {"fp32 gradients": self._nvme.unswapped_gradient_bytes}

    @property
    def _is_fp32_on_cpu(self) -> bool:
        return self._width == _FP32 and self._work.hardware.device == "cpu"

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
            elsewhere = max([*self._there, *self._swapped], default=0)
            return max(ADAM_SCRATCH * max(self._here, default=0), adam_scratch(self._work) * elsewhere)
        flattened = (self._width if self._width != _FP32 else 0) + _FP32
        step = max(flattened, _FP32 + adam_scratch(self._work)) * max(self._here)
        return max(step, _NORM_BYTES * share, self._overflow_check)

    @property
    def _overflow_check(self) -> int:
        """fp16 looks for infinite numbers in all gradients at once: their absolute values, and a byte of an answer for each.

        Source: runtime/zero/stage3.py has_overflow; ATen/native/TensorCompare.cpp isinf.
        """
        return (self._width + 1) * self._share if self._work.precision == "fp16" else 0

    def _overflow_check_on_host(self) -> int:
        """Where the gradients are there; before the step, so that on CPU ranks only what is beyond the step's counts."""
        if not self._on_host:
            return 0
        is_cpu = self._work.hardware.device == "cpu"
        return max(0, self._overflow_check - (self._step() if is_cpu else 0))

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
        buffers = self._nvme.state_buffer_bytes + self._nvme.parameter_buffer_bytes
        if buffers:
            # Locked by DeepSpeed's own allocator, in pieces of their very size.
            amounts["swap buffers"] = buffers
        if self._nvme.holds_parameters:
            amounts["parameters"] = width * self._nvme.resident_parameters[1]
        elif self._params_on_host:
            amounts["parameters"] = width * self._share
            pieces["parameters"] = in_pieces(self._parameters.partitions(self._degree), width)
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
            "optimizer": added(amounts, {"optimizer step": self._overflow_check_on_host()}),
        }
        # Blocks' inputs are pinned in any case (worker/model/host_inputs.py); pin_memory is about the engine's own buffers.
        is_pinned = parallelism.pin_memory
        return host, {name: those for name, those in pieces.items() if is_pinned or name == "block inputs"}

    def _host_construction(self) -> Amounts:
        """Each share is made in ordinary memory and copied to pinned memory, or written to NVMe."""
        if self._nvme.holds_parameters:
            small = self._width * self._nvme.resident_parameters[1]
            return {"parameters": small, "swap buffers": self._nvme.parameter_buffer_bytes}
        matrices, height = list(self._parameters.last_matrices(self._degree)), Height("parameters", "initialisation")
        for size, before in matrices:
            share = math.ceil(size / self._degree)
            height.offer(self._width * (before + share), self._width * share)
        # The vectors come last, and are small beside what is there by then.
        height.offer(self._width * self._share, self._width * math.ceil(max(self._parameters.vectors) / self._degree))
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
        largest = max((*self._here, *self._there, *self._swapped), default=0)
        first = _FP32 * (largest + height - pinned) - self._width * self._share
        return max(first, self._width * self._share)
