"""Memory of one rank in ZeRO-1 and 2, phase by phase.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, runtime/engine.py. Left out: tensors of a few numbers, and on a GPU what
kernels and libraries take for themselves.
"""

from __future__ import annotations

from itertools import accumulate

from hpctrain.plan.ds_config import overlaps_reduction, reduce_bucket_elements
from hpctrain.plan.layout import RankPlace
from hpctrain.plan.memory.adam_scratch import adam_scratch
from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.memory.gradient_buckets import GradientFlow, Gradients, gradient_flow, reduced_at_the_end
from hpctrain.plan.memory.pipeline_buffers import micro_batches_in_flight, pipeline_buffers
from hpctrain.plan.memory.stage12_moments import Arrivals, block_moments, reductions_before
from hpctrain.plan.memory.stage12_shares import rank_share
from hpctrain.plan.memory.terms import Amounts, Height, MemoryPhase, Pinned, RankMemory, added, in_pieces, total
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.rank_work import RankWork

_FP32, _FP64 = 4, 8
_PIPELINE = "pipeline buffers"


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
        self._of_rank = rank_share(parameters, data_rank, self._degree)
        self._share, self._whole = self._of_rank.numel, self._of_rank.whole
        self._num_stages = work.layout.pipeline_parallel_size
        self._in_flight = micro_batches_in_flight(work, place.pipeline)
        self._pipe = pipeline_buffers(work, place.pipeline, self._activations.block_input)

    def memory(self) -> RankMemory:
        resting = self._resting_gpu()
        gpu: dict[MemoryPhase, Amounts] = {
            "model": {"initialisation": _FP32 * self._parameters.total},
            "engine": {"initialisation": self._engine()},
            "forward": self._forward().over(resting),
            "backward": (self._backward_before_reduction() if self._reduces_last else self._backward()).over(resting),
            "optimizer": added(
                max(added(resting, self._step()), self._between_micro_steps(resting), key=total),
                {_PIPELINE: self._pipe.in_step},
            ),
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
        width, cast = self._width, 0
        if width != _FP32:
            total = self._parameters.total
            cast = max(
                _FP32 * (total - done) + width * (done + size) for size, done in self._parameters.first_matrices()
            )
        numel = self._of_rank.groups[0].numel
        matrices, vectors = (width * group.numel * self._degree for group in self._of_rank.groups)
        # The fp32 copies, with room for a gradient of each where the optimizer is here.
        states = _FP32 * numel + (width if width != _FP32 else 0) * numel
        masters = matrices + vectors + (states if self._on_host else max(states, 2 * _FP32 * self._share))
        flat = 2 * matrices + vectors
        return max(cast, flat, masters, _FP32 * self._parameters.total)

    def _kept_with(self, block: int) -> int:
        """Activations kept of the blocks up to one, when its forward pass is over, and of micro batches in flight."""
        return self._of_others + self._activations.kept_with(block)

    @property
    def _of_others(self) -> int:
        """Activations that a pipeline's stage keeps of the other micro batches in flight."""
        return (self._in_flight - 1) * self._activations.kept_with(self._parameters.num_blocks - 1)

    @property
    def _kept_name(self) -> str:
        return "block inputs" if self._work.checkpointing == "full" else "activations"

    @property
    def _keeps_whole(self) -> bool:
        """Gradients of all parameters are kept until the last micro step, or the end of the pipeline's schedule."""
        return self._stage == 1 and (self._micro_steps > 1 or self._num_stages > 1)

    @property
    def _reduces_last(self) -> bool:
        """Gradients of the only micro step are all there before the first is reduced."""
        return self._stage == 1 and not self._keeps_whole and not self._overlaps

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
        return self._width * self._bucket * (2 if self._overlaps else 1)

    @property
    def _overlaps(self) -> bool:
        return overlaps_reduction(self._work.parallelism, self._work.hardware.device == "cuda")

    @property
    def _has_loss(self) -> bool:
        return bool(self._parameters.final_norm)

    def _forward(self) -> Height:
        activations = self._activations
        height = Height(
            *(self._kept_name, "activations of one block", "logits and loss"),
            *(_PIPELINE, "gradients", "reduce buckets"),
        )
        is_kept, last = self._work.checkpointing != "full", self._parameters.num_blocks - 1
        inside = activations.forward_height if is_kept else activations.recomputed_forward_height
        earlier = (self._accumulated, self._early_buckets)
        height.offer(self._kept_with(last), inside, 0, self._pipe.in_forward, *earlier)
        if self._has_loss:
            logits = activations.loss_forward
            height.offer(self._kept_with(last), activations.ends, logits, self._pipe.at_loss, *earlier)
        return height

    def _backward(self) -> Height:
        width, activations, parameters = self._width, self._activations, self._parameters
        height = self._backward_height()
        at_loss = (self._kept_with(parameters.num_blocks - 1), activations.ends)
        output = parameters.token_table if parameters.is_tied else parameters.head
        accumulated, buckets, pipe = self._accumulated, self._buckets, self._pipe
        if self._has_loss:
            earlier = self._early_buckets
            height.offer(*at_loss, activations.loss_backward, pipe.at_loss, accumulated, 0, earlier)
            height.offer(*at_loss, activations.head_backward, pipe.at_loss, accumulated, width * output, earlier)
        # In a pipeline the table of the first stage and that of the last are two parameters.
        tied = output if parameters.is_tied and self._num_stages == 1 else 0
        reduced = not self._keeps_whole
        flow = gradient_flow(parameters, self._bucket, self._degree, self._stage, self._on_host)
        matrices, arrived_bytes = parameters.block_matrices[::-1], self._arrived_bytes
        arrivals = self._arrivals(flow)
        if reduced and self._has_loss:
            self._offer_starts(height, flow.starts, arrivals, tied)
        # Gradients that wait are there throughout a block's pass, so that its height is the same one in all blocks.
        inside = max(activations.block_heights(), key=lambda each: each.num_bytes + width * matrices[each.matrix])
        of_matrices, of_others = activations.arrival_heights(), self._of_others
        for moment in block_moments(parameters, self._bucket, self._degree, self._stage, arrivals):
            gradients, kept = moment.gradients, of_others + max(map(activations.kept_before, moment.blocks))
            arrived = [accumulated + (arrived_bytes if has_arrived else 0) for has_arrived in moment.has_arrived]
            whole = width * (tied + gradients.waiting + matrices[inside.matrix])
            height.offer(kept, inside.num_bytes, 0, pipe.in_backward, arrived[inside.matrix], whole, buckets)
            if reduced:
                for at, reached, num_bytes in zip(gradients.at_matrix, arrived[1:], of_matrices, strict=True):
                    height.offer(kept, num_bytes, 0, pipe.in_backward, reached, width * (tied + at.whole), buckets)
        there = arrivals.are_there(flow.blocks[-1].counts[-1], *(end.reductions for end in flow.ends))
        ends = [accumulated + (arrived_bytes if is_there else 0) for is_there in there]
        if there[-1]:
            ends[-1] = accumulated + self._arrived_at_last
        # A tied table's gradient as the output matrix, that as the table, and their sum.
        table = width * max(3 * tied, parameters.token_table)
        stays = ends[0] if arrivals.stay else accumulated
        height.offer(0, activations.block_input, 0, pipe.at_end, stays, table, buckets)
        if self._num_stages == 1:
            for end, reached in zip(flow.ends, ends, strict=True):
                height.offer(0, activations.block_input, 0, 0, reached, width * end.whole, buckets)
        return height

    def _arrivals(self, flow: GradientFlow) -> Arrivals:
        share = self._of_rank
        if not self._on_host:
            return Arrivals(reductions_before(flow, share.last_matrix) + 1, 0, True)
        # Vectors are left out: what is copied of them is little beside a matrix.
        last, first = (
            (share.matrices.last_block, share.matrices.last_parameter),
            (share.matrices.first_block, share.matrices.first_parameter),
        )
        return Arrivals(reductions_before(flow, last) + 1, reductions_before(flow, first) + 1, False)

    def _offer_starts(self, height: Height, starts: tuple[Gradients, ...], arrivals: Arrivals, tied: int) -> None:
        """When the gradients of the output matrix and of the final norm are handed over.

        Args:
            height: of the backward pass.
            starts: these moments.
            arrivals: of the rank's share.
            tied: elements of the output matrix's gradient that waits for that of the table; 0: they are not one parameter.
        """
        activations, kept = self._activations, self._kept_with(self._parameters.num_blocks - 1)
        # What the output matrix and the norm read is gone when the norm's gradients are there.
        there = arrivals.are_there(0, *(start.reductions for start in starts))
        for start, inside, is_there in zip(starts, (activations.ends, 0, 0), there, strict=False):
            if not start.whole:  # the output matrix is no parameter of its own
                continue
            reached = self._accumulated + (self._arrived_bytes if is_there else 0)
            moment = (kept, inside, activations.block_input, self._pipe.at_loss)
            height.offer(*moment, reached, self._width * (tied + start.whole), self._buckets)

    def _backward_height(self) -> Height:
        return Height(
            self._kept_name,
            "activations of one block",
            "logits and loss",
            _PIPELINE,
            "gradients",
            "whole gradients",
            "reduce buckets",
        )

    def _backward_before_reduction(self) -> Height:
        """Stage 1, one micro step, nothing reduced beside the backward pass: gradients add up till all of them are there."""
        width, activations, parameters, buckets = self._width, self._activations, self._parameters, self._buckets
        height, last = self._backward_height(), self._parameters.num_blocks - 1
        at_loss = (self._kept_with(last), activations.ends)
        output = parameters.token_table if parameters.is_tied else parameters.head
        height.offer(*at_loss, activations.loss_backward, 0, 0, 0, 0)
        height.offer(*at_loss, activations.head_backward, 0, 0, width * output, 0)
        matrices = tuple(accumulate(parameters.block_matrices[::-1]))
        inside = max(activations.block_heights(), key=lambda each: each.num_bytes + width * matrices[each.matrix])
        moments = [(inside.num_bytes, matrices[inside.matrix])]
        moments += zip(activations.arrival_heights(), matrices, strict=True)
        # Activations become fewer and gradients more from block to block, each by the same amount but at the ends.
        for block in sorted({0, min(1, last), max(last - 1, 0), last}):
            before = output + sum(parameters.final_norm) + (last - block) * parameters.block
            for num_bytes, numel in moments:
                height.offer(activations.kept_before(block), num_bytes, 0, 0, 0, width * (before + numel), buckets)
        # A tied table's gradient as the output matrix, that as the table, and their sum.
        more = 2 * parameters.token_table if parameters.is_tied else 0
        height.offer(0, activations.block_input, 0, 0, 0, width * (parameters.total + more), buckets)
        before, first = reduced_at_the_end(parameters, self._bucket)
        height.offer(0, 0, 0, 0, 0, width * before, buckets)
        # The rank whose share comes first has it at once.
        height.offer(0, 0, 0, 0, self._arrived_bytes, width * first, buckets)
        return height

    @property
    def _arrived_bytes(self) -> int:
        """Reduced gradients of the rank's share: a buffer that is made when the first of them comes.

        With the optimizer on the host each goes there when it comes, and is copied to fp64 for its norm. Source:
        set_norm_for_param_grad_in_gpu.
        """
        if self._keeps_whole:
            return 0
        return _FP64 * self._of_rank.matrices.largest_part if self._on_host else self._width * self._whole

    @property
    def _arrived_at_last(self) -> int:
        """The same when the bucket with the token table's gradient is emptied."""
        if self._keeps_whole or not self._on_host:
            return self._arrived_bytes
        return max(self._arrived_bytes, _FP64 * self._of_rank.matrices.table_part)

    def _step(self) -> Amounts:
        """Per group: the gradients flattened, if they are in pieces, and in fp32, with the optimizer's scratch."""
        if self._on_host:
            return {"optimizer step": self._of_rank.largest_group * adam_scratch(self._work)}
        scratch, cast = adam_scratch(self._work), _FP32 if self._width != _FP32 else 0
        step = 0
        for group in self._of_rank.groups:
            flattened = 0 if group.is_one_piece else self._width
            step = max(step, group.numel * max(flattened + cast, (cast or flattened) + scratch))
        return {"gradients": self._width * self._whole, "optimizer step": step}

    def _between_micro_steps(self, resting: Amounts) -> Amounts:
        """What waits for the next micro step; the engine's step ends each of them.

        A pipeline reduces behind its last micro batch, through one bucket more. Source: reduce_gradients.
        """
        buckets = self._early_buckets * (2 if self._num_stages > 1 else 1)
        return added(resting, {"gradients": self._accumulated, "reduce buckets": buckets})

    def _host(self) -> tuple[dict[MemoryPhase, Amounts], dict[str, Pinned]]:
        """Host memory of one rank: what is offloaded."""
        width, parameters = self._width, self._parameters
        amounts: Amounts = {}
        pieces: dict[str, Pinned] = {}
        numels = [group.numel for group in self._of_rank.groups]
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
