"""How large a checkpoint is, and whether there is room for as many as a run keeps."""

from __future__ import annotations

from hpctrain.config.schema import Precision, TrainingConfig
from hpctrain.errors import Problem
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.rank_work import BYTES_PER_ELEMENT
from hpctrain.plan.run_plan import RunPlan
from hpctrain.units import gib

OPTIMIZER_BYTES = 12
"""Of a parameter: the fp32 copy and Adam's two moments, 4 bytes each."""


def checkpoint_bytes(num_parameters: int, zero_stage: int, precision: Precision) -> int:
    """Bytes of the files that DeepSpeed writes for one checkpoint, all ranks together.

    The optimizer state in fp32, cut over the ranks; in stages 1 and 2 also the parameters in the training type, written once
    (stage 3 makes them from the fp32 copy). In stage 0 one rank writes all, and fp32 parameters have no copy. Leaves out names
    and padding: some kilobytes a file.

    Source: DeepSpeed 0.19.8, runtime/zero/stage3.py _rigid_state_dict, runtime/zero/stage_1_and_2.py state_dict,
    runtime/engine.py _save_checkpoint; held against saved files in tests/worker/test_checkpoint.py.

    >>> checkpoint_bytes(1000, 3, "bf16"), checkpoint_bytes(1000, 2, "bf16"), checkpoint_bytes(1000, 1, "fp32")
    (12000, 14000, 16000)
    >>> checkpoint_bytes(1000, 0, "bf16"), checkpoint_bytes(1000, 0, "fp32")
    (14000, 12000)
    """
    is_in_copy = zero_stage == 3 or (zero_stage == 0 and precision == "fp32")
    weights = 0 if is_in_copy else BYTES_PER_ELEMENT[precision]
    return num_parameters * (OPTIMIZER_BYTES + weights)


def saved_bytes(plan: RunPlan) -> int:
    """Bytes of one checkpoint of a run, all ranks together: ``checkpoint_bytes``, and what several ranks save alike.

    Tensor-parallel ranks each save what is not split. The last stage of a pipeline has an optimizer state of its own for a tied
    table; the table itself is in the first stage's files only.

    Source: DeepSpeed 0.19.8, runtime/pipe/module.py save_state_dict; held against saved files in tests/worker/test_pipeline.py.
    """
    layout = plan.layout
    num_stages = layout.pipeline_parallel_size
    stages = [rank_parameters(plan.model, layout, stage) for stage in range(num_stages)]
    held = layout.tensor_parallel_size * sum(stage.total for stage in stages)
    tied_again = layout.tensor_parallel_size * stages[-1].token_table if num_stages > 1 else 0
    without_second_table = checkpoint_bytes(held - tied_again, plan.zero_stage, plan.precision)
    return without_second_table + tied_again * OPTIMIZER_BYTES


def num_regular_saves(num_steps: int, training: TrainingConfig, after_step: int = 0) -> int:
    """Checkpoints that a run will save by its interval and at its end; a stop may add one.

    Args:
        num_steps: of the run.
        training: interval and end.
        after_step: the step that the run goes on from.
    """
    interval = training.checkpoint_interval
    by_interval = num_steps // interval - after_step // interval if interval else 0
    last_is_extra = (
        training.checkpoint_at_end and num_steps > after_step and not (interval and num_steps % interval == 0)
    )
    return max(0, by_interval) + last_is_extra


def room_problem(
    plan: RunPlan, training: TrainingConfig, place: str, free_bytes: int, num_there: int = 0, after_step: int = 0
) -> Problem | None:
    """What is short where the file system cannot hold the checkpoints that the run keeps, and the next beside them.

    Args:
        plan: of the run.
        training: its checkpoint settings.
        place: the folder, for the message.
        free_bytes: free for this user on its file system.
        num_there: complete checkpoints that the run has already.
        after_step: the step that the run goes on from.
    """
    most = max(1, training.keep_checkpoints + 1 - num_there)
    num_new = min(most, num_regular_saves(plan.num_steps, training, after_step))
    size = saved_bytes(plan)
    needed = num_new * size
    if needed <= free_bytes:
        return None
    what = f"{num_new} checkpoints of {gib(size)}" if num_new > 1 else "a checkpoint"
    rule = (
        f"{what} ({plan.num_parameters:,} parameters, ZeRO {plan.zero_stage}, {plan.precision}) need {gib(needed)}; {place} has"
        f" {gib(free_bytes)} free, short by {gib(needed - free_bytes)}"
    )
    fix = (
        "another run.root, a smaller training.keep_checkpoints (one more is held while the next is written), or no checkpoints:"
        " training.checkpoint_interval=null training.checkpoint_at_end=false; training.check_checkpoint_room=false saves as"
        " long as there is room"
    )
    return Problem("training.keep_checkpoints", str(training.keep_checkpoints), rule, fix)
