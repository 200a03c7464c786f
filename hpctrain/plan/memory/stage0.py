"""Memory of one rank of plain data parallelism (ZeRO stage 0), phase by phase: all states on every rank.

Source: hpctrain/worker/plain_optimizer.py; DeepSpeed 0.19.8, runtime/engine.py. Left out: tensors of a few numbers, and on a GPU
what kernels and libraries take for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.plan.memory.adam_scratch import adam_scratch
from hpctrain.plan.memory.decoder_activations import DecoderActivations
from hpctrain.plan.memory.terms import Amounts, Height, MemoryPhase, Pinned, RankMemory, added
from hpctrain.plan.rank_parameters import RankParameters
from hpctrain.plan.rank_work import RankWork

_FP32 = 4
REDUCE_BUCKET = 500_000_000
"""Elements that are averaged by one collective; one more parameter may lie across it. Source: runtime/engine.py
MEMORY_OPT_ALLREDUCE_SIZE, allreduce_no_retain."""


def stage0_memory(work: RankWork, parameters: RankParameters) -> RankMemory:
    """Bytes by phase and term, the device's under ``gpu`` even where it is the CPU.

    Args:
        work: of the run, without a pipeline.
        parameters: of this rank.
    """
    return _Stage0(work, parameters).memory()


class _Stage0:
    def __init__(self, work: RankWork, parameters: RankParameters) -> None:
        self._work, self._parameters = work, parameters
        self._width = work.bytes_per_element
        self._activations = DecoderActivations(work)
        self._accumulates = work.batch.gradient_accumulation_steps > 1

    def memory(self) -> RankMemory:
        total = self._parameters.total
        states = {"Adam moments": 2 * _FP32 * total}
        if self._is_copied:
            states["fp32 master"] = _FP32 * total
        resting = {"parameters": self._width * total, **states}
        gpu: dict[MemoryPhase, Amounts] = {
            "model": {"initialisation": _FP32 * total},
            "engine": {"initialisation": self._engine()},
            "forward": self._forward().over(resting),
            "backward": self._backward().over(resting),
            "optimizer": added(resting, self._step()),
        }
        host, pinned = self._host()
        return RankMemory(gpu, host, pinned)

    @property
    def _is_copied(self) -> bool:
        """Parameters of 16 bits have a copy in fp32."""
        return self._width != _FP32

    @property
    def _kept_name(self) -> str:
        return "block inputs" if self._work.checkpointing == "full" else "activations"

    @property
    def _accumulated(self) -> int:
        """Gradients of earlier micro steps."""
        return self._width * self._parameters.total if self._accumulates else 0

    def _engine(self) -> int:
        """The cast one parameter at a time, then the fp32 copies."""
        total, width, cast, done = self._parameters.total, self._width, 0, 0
        if not self._is_copied:
            return _FP32 * total
        for size in self._parameters.matrices:
            cast = max(cast, _FP32 * (total - done) + width * (done + size))
            done += size
        return max(cast, (width + _FP32) * total)

    def _forward(self) -> Height:
        activations, last = self._activations, self._parameters.num_blocks - 1
        height = Height(self._kept_name, "activations of one block", "logits and loss", "gradients")
        is_kept = self._work.checkpointing != "full"
        inside = activations.forward_height if is_kept else activations.recomputed_forward_height
        kept = activations.kept_with(last)
        height.offer(kept, inside, 0, self._accumulated)
        height.offer(kept, activations.ends, activations.loss_forward, self._accumulated)
        return height

    def _backward(self) -> Height:
        width, activations, parameters = self._width, self._activations, self._parameters
        height = Height(
            *(self._kept_name, "activations of one block", "logits and loss"),
            *("gradients", "whole gradients", "flattened for reduction"),
        )
        output = parameters.token_table if parameters.is_tied else parameters.head
        # A tied table's gradient as the output matrix waits for that as the table.
        tied = output if parameters.is_tied else 0
        at_loss = (activations.kept_with(parameters.num_blocks - 1), activations.ends)
        height.offer(*at_loss, activations.loss_backward, self._accumulated, 0, 0)
        height.offer(*at_loss, activations.head_backward, self._accumulated, width * output, 0)
        done = sum(parameters.final_norm) + output - tied
        matrices = parameters.block_matrices[::-1]
        for block in range(parameters.num_blocks - 1, -1, -1):
            for moment in activations.block_heights():
                kept = self._accumulated or width * (done + sum(matrices[: moment.matrix]))
                whole = width * (tied + matrices[moment.matrix])
                height.offer(activations.kept_before(block), moment.num_bytes, 0, kept, whole, 0)
            done += parameters.block
        # A tied table's gradient as the output matrix, that as the table, and their sum.
        table = width * max(3 * tied, parameters.token_table)
        height.offer(0, activations.block_input, 0, self._accumulated or width * done, table, 0)
        height.offer(0, 0, 0, width * parameters.total, 0, width * self._bucket())
        return height

    def _bucket(self) -> int:
        """Elements of the largest collective that averages gradients, which are copied into one tensor for it."""
        largest = filled = 0
        for size in self._in_order():
            filled += size
            largest = max(largest, filled)
            if filled > REDUCE_BUCKET:
                filled = 0
        return largest

    def _in_order(self) -> Iterator[int]:
        """Elements of the parameters as the model has them; a block's vectors, which are small, behind its matrices."""
        parameters = self._parameters
        yield from (parameters.token_table, parameters.position_table)
        for _ in range(parameters.num_blocks):
            yield from (*parameters.block_matrices, sum(parameters.block_vectors))
        yield from (*parameters.final_norm, parameters.head)

    def _step(self) -> Amounts:
        """Gradients in fp32, made one by one from those of 16 bits, which are then given up; the optimizer goes so too."""
        parameters, width = self._parameters, self._width
        gradients = _FP32 * parameters.total
        scratch = adam_scratch(self._work) * parameters.largest
        if not self._is_copied:
            return {"gradients": gradients, "optimizer step": scratch}
        handing_over, done = 0, 0
        for size in (*parameters.matrices, *parameters.vectors):
            handing_over = max(handing_over, _FP32 * (done + size) + width * (parameters.total - done))
            done += size
        return {"optimizer step": max(handing_over, gradients + scratch)}

    def _host(self) -> tuple[dict[MemoryPhase, Amounts], dict[str, Pinned]]:
        """Host memory of one rank: blocks' inputs, where they wait there."""
        waiting: Amounts = {}
        pinned: dict[str, Pinned] = {}
        if self._work.offload_activations:
            size, num_waiting = self._activations.block_input, self._parameters.num_blocks - 1
            waiting, pinned = {"block inputs": num_waiting * size}, {"block inputs": Pinned((size,) * num_waiting)}
        return {"model": {}, "engine": {}, "forward": waiting, "backward": waiting, "optimizer": {}}, pinned
