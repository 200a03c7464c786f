"""What a pipeline stage holds beside its activations: what it received, hands on, and has not given up yet.

Source: DeepSpeed 0.19.8, runtime/pipe/engine.py (_exec_forward_pass, _exec_backward_pass, _exec_recv_activations,
_exec_send_grads, _allocate_or_extend_buffers, pipe_buffers), runtime/pipe/schedule.py TrainSchedule.
"""

from __future__ import annotations

from typing import NamedTuple

from hpctrain.plan.rank_work import RankWork

_SLOTS = 2
"""Of the last stage: a micro batch keeps its place until the one after the next takes it. Source: num_pipe_buffers."""


class PipelineBuffers(NamedTuple):
    """Bytes of one rank at each moment of a step; all 0: there is no pipeline."""

    in_forward: int = 0
    """While the blocks of a micro batch run."""
    at_loss: int = 0
    """In its loss, forward and backward."""
    in_backward: int = 0
    at_end: int = 0
    """When the gradient of the stage's input is there."""
    in_step: int = 0
    """From the last backward pass to the next step."""


def micro_batches_in_flight(work: RankWork, stage: int) -> int:
    """Micro batches whose activations a stage holds at once: in the 1F1B schedule as many as there are stages from it to the end.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
    """
    return min(work.batch.gradient_accumulation_steps, work.layout.pipeline_parallel_size - stage)


def pipeline_buffers(work: RankWork, stage: int, hidden_bytes: int) -> PipelineBuffers:
    """The buffers of one stage.

    Args:
        work: of the run.
        stage: from 0.
        hidden_bytes: of the residual stream of one micro batch on one rank.
    """
    num_stages = work.layout.pipeline_parallel_size
    if num_stages == 1:
        return PipelineBuffers()
    is_first, is_last = stage == 0, stage == num_stages - 1
    # Tensor-parallel ranks each send a part; the receiver gathers them, and that is the input of its first block.
    parts = work.layout.tensor_parallel_size
    handed_on, in_flight = hidden_bytes // parts, micro_batches_in_flight(work, stage)
    # One buffer receives activations and gradients alike; the stage's outputs wait for their gradients.
    there = handed_on * in_flight
    if not is_first and parts == 1:
        # What came is copied out of the buffer, and once more before the first block.
        there += hidden_bytes * in_flight
    if not is_last:
        # The whole output, of which only the part was kept, is gathered again.
        restored = hidden_bytes if parts > 1 else 0
        return PipelineBuffers(there, there, there + restored, there + restored, handed_on)
    # The last stage gives up no output; each holds, through its graph, the stage's input with its gradient.
    slot, num_slots = 3 * hidden_bytes, min(_SLOTS, work.batch.gradient_accumulation_steps)
    earlier = slot * (num_slots - 1)
    return PipelineBuffers(
        in_forward=there + slot * num_slots,
        at_loss=there + earlier,
        in_backward=there + earlier + hidden_bytes,
        at_end=there + earlier + 2 * hidden_bytes,
        in_step=handed_on + slot * num_slots,
    )
