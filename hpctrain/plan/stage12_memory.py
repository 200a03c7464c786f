"""Memory of one rank in ZeRO-1 and 2, phase by phase.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, runtime/engine.py. Left out: tensors of a few numbers, and on a GPU what
kernels and libraries take for themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctrain.plan.adam_scratch import adam_scratch
from hpctrain.plan.decoder_activations import DecoderActivations
from hpctrain.plan.ds_config import reduce_bucket_elements
from hpctrain.plan.gradient_buckets import GradientFlow, gradient_flow
from hpctrain.plan.layout import RankPlace
from hpctrain.plan.memory_terms import Amounts, Height, MemoryPhase, Pinned, RankMemory, added, in_pieces, total
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.rank_work import RankWork

_FP32 = 4
_NORM = 8
"""Bytes of an element of a gradient norm, fp64. Source: runtime/zero/utils.py get_norm_dtype."""
_ALIGNMENT = 2
"""Elements to which each rank's share is rounded up. Source: nccl_start_alignment_factor."""


@dataclass(frozen=True)
class _Share:
    """What one rank updates of one parameter group."""

    numel: int
    """Elements of the flat share, padding included."""
    whole: int
    """Elements of all parameters that lie in it at least in part: their gradients are kept whole."""
    largest_piece: int
    last_block: int
    """The last block that it touches; -1: none."""


def stage12_memory(work: RankWork, parameters: RankParameters, place: RankPlace) -> RankMemory:
    """Bytes by phase and term, the device's under ``gpu`` even where it is the CPU.

    Args:
        work: of the run.
        parameters: of this rank.
        place: of the rank; who shares the states, and which pipeline stage it is.
    """
    return _Stage12(work, parameters, place).memory()


class _Stage12:
    def __init__(self, work: RankWork, parameters: RankParameters, place: RankPlace) -> None:
        self._work, self._parameters = work, parameters
        self._width, self._degree = work.bytes_per_element, work.layout.zero_degree
        self._stage = work.parallelism.zero_stage
        self._on_host = work.parallelism.offload_optimizer == "cpu"
        self._bucket = reduce_bucket_elements(work.parallelism, work.shape.num_parameters)
        self._micro_steps = work.batch.gradient_accumulation_steps
        self._activations = DecoderActivations(work)
        data_rank = place.data * work.layout.sequence_parallel_size + place.sequence
        self._shares = [_share(parameters, group, data_rank, self._degree) for group in ("matrices", "vectors")]
        self._share = sum(share.numel for share in self._shares)
        self._whole = sum(share.whole for share in self._shares)
        self._num_stages = work.layout.pipeline_parallel_size
        # In the 1F1B schedule a stage holds as many micro batches as there are stages from it to the end.
        # Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; runtime/pipe/schedule.py num_pipe_buffers.
        self._in_flight = min(self._micro_steps, self._num_stages - place.pipeline)

    def memory(self) -> RankMemory:
        resting = self._resting_gpu()
        gpu: dict[MemoryPhase, Amounts] = {
            "model": {"initialisation": _FP32 * self._parameters.total},
            "engine": {"initialisation": self._engine()},
            "forward": self._forward().over(resting),
            "backward": self._backward().over(resting),
            "optimizer": max(added(resting, self._step()), self._between_micro_steps(resting), key=total),
        }
        host, pinned = self._host()
        return RankMemory(gpu, host, pinned)

    def _resting_gpu(self) -> Amounts:
        """What is there all the time from the second step on."""
        resting = {"parameters": self._width * self._padded}
        if self._on_host:
            # One gradient at a time comes back through it.
            return resting | {"transfer buffers": self._width * self._parameters.largest}
        return resting | {"fp32 master": _FP32 * self._share, "Adam moments": 2 * _FP32 * self._share}

    @property
    def _padded(self) -> int:
        return self._share * self._degree

    def _engine(self) -> int:
        """The cast one parameter at a time, the flat copy beside the parameters, the first master copies."""
        width, cast, done = self._width, 0, 0
        if width != _FP32:
            for size in self._parameters.matrices:
                cast = max(cast, _FP32 * (self._parameters.total - done) + width * (done + size))
                done += size
        matrices, vectors = (width * share.numel * self._degree for share in self._shares)
        # The fp32 copies, with room for a gradient of each where the optimizer is here.
        states = _FP32 * self._shares[0].numel + (width if width != _FP32 else 0) * self._shares[0].numel
        masters = matrices + vectors + (states if self._on_host else max(states, 2 * _FP32 * self._share))
        flat = 2 * matrices + vectors
        return max(cast, flat, masters, _FP32 * self._parameters.total)

    def _kept(self, block: int) -> int:
        """Activations kept of the blocks before one, with its own input, and of micro batches in flight."""
        return self._of_others + self._activations.kept_before(block)

    def _kept_with(self, block: int) -> int:
        """Activations kept of the blocks up to one, when its forward pass is over, and of micro batches in flight."""
        return self._of_others + self._activations.kept_with(block)

    @property
    def _of_others(self) -> int:
        """What a pipeline's stage keeps of the other micro batches in flight: activations, and the stage's output."""
        one = self._activations.block_input
        if self._num_stages == 1:
            return 0
        # One buffer more receives the next gradient or activation.
        return (self._in_flight - 1) * (self._activations.kept_with(self._parameters.num_blocks - 1) + one) + one

    @property
    def _kept_name(self) -> str:
        return "block inputs" if self._work.checkpointing == "full" else "activations"

    @property
    def _keeps_whole(self) -> bool:
        """Gradients of all parameters are kept until the last micro step, or the end of the pipeline's schedule."""
        return self._stage == 1 and (self._micro_steps > 1 or self._num_stages > 1)

    @property
    def _accumulated(self) -> int:
        """Gradients of earlier micro steps: in stage 1 all, in stage 2 those of the rank's share."""
        if self._keeps_whole:
            return self._width * self._parameters.total
        return 0 if self._on_host or self._micro_steps == 1 else self._width * self._whole

    @property
    def _early_buckets(self) -> int:
        """In stage 1 the buckets of the first micro step stay until the last one's gradients are reduced."""
        return self._buckets if self._keeps_whole else 0

    @property
    def _buckets(self) -> int:
        """Made when the first gradient comes, and given up after the reduction."""
        is_double = self._work.parallelism.overlap_comm and self._num_stages == 1
        return self._width * self._bucket * (2 if is_double else 1)

    @property
    def _has_loss(self) -> bool:
        return bool(self._parameters.final_norm)

    @property
    def _kept_output(self) -> int:
        """The last stage of a pipeline keeps what its last norm gives out for a micro batch until the next one's is there.

        Source: runtime/pipe/engine.py, pipe_buffers.
        """
        return self._activations.block_input if self._num_stages > 1 and self._has_loss else 0

    def _forward(self) -> Height:
        activations = self._activations
        height = Height(self._kept_name, "activations of one block", "logits and loss", "gradients", "reduce buckets")
        is_kept, last = self._work.checkpointing != "full", self._parameters.num_blocks - 1
        inside = activations.forward_height if is_kept else activations.recomputed_forward_height
        earlier = (self._accumulated, self._early_buckets)
        height.offer(self._kept_with(last), inside, 0, *earlier)
        if self._has_loss:
            logits = activations.loss_forward + self._kept_output
            height.offer(self._kept_with(last), activations.ends, logits, *earlier)
        return height

    def _backward(self) -> Height:
        width, activations, parameters = self._width, self._activations, self._parameters
        height = Height(
            self._kept_name,
            "activations of one block",
            "logits and loss",
            "gradients",
            "whole gradients",
            "reduce buckets",
            "flattened for reduction",
        )
        at_loss = (self._kept_with(parameters.num_blocks - 1), activations.ends)
        output = parameters.token_table if parameters.is_tied else parameters.head
        accumulated, buckets, scores = self._accumulated, self._buckets, 2 * self._kept_output
        if self._has_loss:
            earlier = self._early_buckets
            height.offer(*at_loss, scores + activations.loss_backward, accumulated, 0, earlier, 0)
            height.offer(*at_loss, scores + activations.head_backward, accumulated, width * output, earlier, 0)
        # In a pipeline the table of the first stage and that of the last are two parameters.
        tied = output if parameters.is_tied and self._num_stages == 1 else 0
        reduced = not self._keeps_whole
        flow = gradient_flow(parameters, self._bucket, self._degree, self._stage)
        if reduced and self._has_loss:
            # The output matrix's gradient is handed over with those of the last norm.
            whole, flattened = width * (tied + flow.before.whole), width * flow.before.flattened
            height.offer(*at_loss, activations.block_input, accumulated, whole, buckets, flattened)
        matrices = parameters.block_matrices[::-1]
        for block in range(parameters.num_blocks - 1, -1, -1):
            gradients, kept = flow.blocks[-1 - block], self._kept(block)
            arrived = accumulated + self._arrived(flow, gradients.reductions)
            for moment in activations.block_heights():
                whole = width * (tied + gradients.waiting + matrices[moment.matrix])
                height.offer(kept, moment.num_bytes, scores, arrived, whole, buckets, 0)
            if reduced:
                for at, num_bytes in zip(gradients.at_matrix, activations.arrival_heights(), strict=True):
                    height.offer(kept, num_bytes, 0, arrived, width * (tied + at.whole), buckets, width * at.flattened)
        end = accumulated + self._arrived(flow, flow.reductions)
        # A tied table's gradient as the output matrix, that as the table, and their sum.
        height.offer(0, activations.block_input, 0, end, width * max(3 * tied, parameters.token_table), buckets, 0)
        if self._num_stages == 1:
            whole, flattened = width * flow.end.whole, width * flow.end.flattened
            height.offer(0, activations.block_input, 0, end, whole, buckets, flattened)
        return height

    def _arrived(self, flow: GradientFlow, reductions: int) -> int:
        """Reduced gradients of the rank's share: a buffer that is made when the first of them comes."""
        if self._on_host or self._keeps_whole:
            return 0
        last_block = max(share.last_block for share in self._shares)
        before = flow.blocks[-1 - last_block].reductions if last_block >= 0 else flow.reductions
        return self._width * self._whole if reductions > before else 0

    def _step(self) -> Amounts:
        """Per group: a piece in fp64 for the norm, then the gradients flattened and in fp32, with the optimizer's scratch."""
        if self._on_host:
            group = max(share.numel for share in self._shares)
            return {"optimizer step": group * adam_scratch(self._work)}
        flattened = (self._width if self._width != _FP32 else 0) + _FP32
        norm = _NORM * max(share.largest_piece for share in self._shares)
        group = max(share.numel for share in self._shares)
        step = max(norm, group * max(flattened, _FP32 + adam_scratch(self._work)))
        return {"gradients": self._width * self._whole, "optimizer step": step}

    def _between_micro_steps(self, resting: Amounts) -> Amounts:
        """What waits for the next micro step; the engine's step ends each of them.

        A pipeline reduces behind its last micro batch, through one bucket more. Source: reduce_gradients.
        """
        buckets = self._early_buckets * (2 if self._num_stages > 1 else 1)
        kept = {"gradients": self._accumulated, "logits and loss": 2 * self._kept_output}
        return added(resting, kept, {"reduce buckets": buckets})

    def _host(self) -> tuple[dict[MemoryPhase, Amounts], dict[str, Pinned]]:
        """Host memory of one rank: what is offloaded."""
        width, parameters = self._width, self._parameters
        amounts: Amounts = {}
        pieces: dict[str, Pinned] = {}
        numels = [share.numel for share in self._shares]
        if self._on_host:
            amounts = {
                "fp32 master": _FP32 * self._share,
                "Adam moments": 2 * _FP32 * self._share,
                "fp32 gradients": _FP32 * self._share,
                "transfer buffers": width * (self._share + parameters.largest),
            }
            pieces = {
                "fp32 master": in_pieces(numels, _FP32),
                "fp32 gradients": in_pieces(numels, _FP32),
                "transfer buffers": in_pieces([*numels, parameters.largest], width),
            }
            if self._micro_steps > 1 and self._stage == 2:
                amounts["gradients"] = width * self._whole
                pieces["gradients"] = in_pieces([self._whole], width)
        engine = {name: num_bytes for name, num_bytes in amounts.items() if name not in ("Adam moments", "gradients")}
        if self._on_host:
            # Made in ordinary memory, and copied to pinned memory.
            # The buffer for one gradient comes before the fp32 gradients.
            first = width * parameters.largest - _FP32 * self._share
            engine["initialisation"] = max(first, _FP32 * numels[0])
        waiting: Amounts = {}
        if self._work.offload_activations:
            size = self._activations.block_input
            num_waiting = parameters.num_blocks - 1
            waiting["block inputs"] = num_waiting * size
            pieces["block inputs"] = Pinned((size,) * num_waiting)
        host: dict[MemoryPhase, Amounts] = {
            "model": {},
            "engine": engine,
            "forward": added(amounts, waiting),
            "backward": added(amounts, waiting),
            "optimizer": amounts,
        }
        # Blocks' inputs are pinned in any case (worker/model/host_inputs.py); pin_memory is about the engine's own buffers.
        is_pinned = self._work.parallelism.pin_memory
        return host, {name: those for name, those in pieces.items() if is_pinned or name == "block inputs"}


def _share(parameters: RankParameters, group: str, data_rank: int, degree: int) -> _Share:
    """A rank's equal part of a group laid end to end. Source: runtime/zero/stage_1_and_2.py get_partition_info."""
    sizes = getattr(parameters, group)
    numel = math.ceil(sum(sizes) / (_ALIGNMENT * degree)) * _ALIGNMENT
    start, end, offset = data_rank * numel, (data_rank + 1) * numel, 0
    whole, largest, last_block = 0, 0, -1
    num_before = bool(parameters.token_table) + bool(parameters.position_table) if group == "matrices" else 0
    per_block = len(parameters.block_matrices if group == "matrices" else parameters.block_vectors)
    for index, size in enumerate(sizes):
        inside = min(end, offset + size) - max(start, offset)
        if inside > 0:
            whole += size
            largest = max(largest, inside)
            if index >= num_before:
                last_block = min((index - num_before) // per_block, parameters.num_blocks - 1)
        offset += size
    return _Share(numel, whole, largest, last_block)
