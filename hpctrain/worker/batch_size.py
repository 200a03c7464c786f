"""The engine's global batch in a ramp: more micro steps from stage to stage, of the same micro batch."""

from __future__ import annotations

from typing import Any

from hpctrain.plan.run_plan import RunPlan


def set_batch_size(engine: Any, plan: RunPlan, step: int) -> None:
    """Has the engine accumulate over as many micro steps as ``step`` has; between two steps, on all ranks alike.

    DeepSpeed's own ``set_train_batch_size`` leaves two things as they were: where a step ends it knows by counting all micro
    steps since the start modulo those of a step, which is wrong after a change; and the optimizers of ZeRO 1 and 2 with
    offload take the norm of the gradients from where steps of the first length leave them.
    Source: DeepSpeed 0.19.8, runtime/engine.py is_gradient_accumulation_boundary, runtime/zero/stage_1_and_2.py
    set_norm_for_param_grad.

    Args:
        engine: DeepSpeed's, of a pipeline or not.
        plan: with the batch and its ramp.
        step: optimizer step that comes next, from 1.
    """
    full, wanted = plan.batch.gradient_accumulation_steps, plan.batch.accumulation_of(step)
    if engine.gradient_accumulation_steps() == wanted:
        return
    engine.set_train_batch_size(plan.ds_config["train_batch_size"] // full * wanted)
    assert engine.gradient_accumulation_steps() == wanted, "DeepSpeed counts other data-parallel ranks than the plan"
    engine.micro_steps = 0
    if hasattr(engine.optimizer, "gradient_accumulation_steps"):
        engine.optimizer.gradient_accumulation_steps = wanted
