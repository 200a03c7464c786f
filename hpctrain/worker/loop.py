"""The training loop."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpctrain.config.schema import TrainingConfig
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.schema import StepRecord
from hpctrain.worker.batch_size import set_batch_size
from hpctrain.worker.checkpoint import CheckpointSaver
from hpctrain.worker.data.micro_batches import MicroBatches, MicroBatchStream
from hpctrain.worker.end_reasons import LossScaleError, NonFiniteLossError, StoppedBySignalError
from hpctrain.worker.loss_scale import LossScale, loss_scale_of
from hpctrain.worker.pipeline import train_batch
from hpctrain.worker.schedule import learning_rate
from hpctrain.worker.step_log import StepLog
from hpctrain.worker.step_parts import StepParts
from hpctrain.worker.stop_signal import StopSignal
from hpctrain.worker.validation import Validation

# One bad batch can give one non-finite loss, and DeepSpeed may skip its update; once the weights themselves are lost no later
# loss is finite, and such steps run as fast as good ones.
_MAX_NON_FINITE_STEPS = 5


def train(
    engine: Any,
    plan: RunPlan,
    training: TrainingConfig,
    data: MicroBatchStream,
    log: StepLog,
    stop: StopSignal,
    saver: CheckpointSaver | None = None,
    first_step: int = 1,
    validation: Validation | None = None,
) -> None:
    """Runs the steps of the plan from ``first_step`` on.

    Args:
        engine: DeepSpeed's engine around the decoder.
        plan: number of steps and batch.
        training: schedule and log interval.
        data: the micro batches of this rank's place along data parallelism, from ``first_step`` on.
        log: where measured steps go.
        stop: signals to this rank.
        saver: saves checkpoints; None: there are none.
        first_step: 1, or the step after the checkpoint that was loaded.
        validation: on held-out data; None: there is none.

    Raises:
        NonFiniteLossError: the loss stays infinite or not a number.
        LossScaleError: gradients overflow fp16 at every scale that they may be scaled by.
        StoppedBySignalError: some rank got a signal; all ranks leave after the same step.
    """
    for step in range(first_step, plan.num_steps + 1):
        _run_step(engine, plan, training, data, log, stop, step)
        save_is_due = saver is not None and saver.is_due(step)
        validation_is_due = validation is not None and validation.is_due(step)
        flush_is_due = save_is_due or validation_is_due or step % training.log_interval == 0 or step == plan.num_steps
        if log.stop_agreed or flush_is_due:
            last = log.flush()
            if dist.get_rank() == 0:
                print(_report_line(last, plan.num_steps), flush=True)
            _check_finite(last, log.num_non_finite)
        is_stopping, told = log.stop_agreed and step < plan.num_steps, ""
        if validation is not None and validation_is_due and not is_stopping:
            is_stopping |= validation.run(engine, step, stop) and step < plan.num_steps
            log.resume_clock()
        if saver is not None and (save_is_due or (is_stopping and training.checkpoint_at_stop)):
            outcome = saver.save(step, last.loss, stop)
            log.resume_clock()
            told = f"; {outcome.text}"
            is_stopping |= outcome.stop_requested and step < plan.num_steps
        if is_stopping:
            by = stop.name or "a signal to another rank"
            raise StoppedBySignalError(f"stopped after step {step} of {plan.num_steps} by {by}{told}", stop.name)


def _run_step(
    engine: Any,
    plan: RunPlan,
    training: TrainingConfig,
    data: MicroBatchStream,
    log: StepLog,
    stop: StopSignal,
    step: int,
) -> None:
    """One optimizer step, noted in the log."""
    set_batch_size(engine, plan, step)
    rate = learning_rate(
        step, plan.num_steps, training.warmup_steps, training.learning_rate, training.min_learning_rate, training.decay
    )
    for group in engine.optimizer.param_groups:
        group["lr"] = rate
    scale = loss_scale_of(engine)
    scaled_by = None if scale is None else float(scale.loss_scale)
    micro_batches = data.step(step)
    if plan.layout.pipeline_parallel_size > 1:
        # Its stages run forward and backward passes of several micro batches in turns.
        parts, loss = None, train_batch(engine, micro_batches)
    else:
        parts = StepParts(engine.device)
        loss = _forward_and_backward(engine, micro_batches, parts)
    log.end_step(
        step=step,
        learning_rate=rate,
        loss=loss,
        stop_requested=stop.received,
        grad_norm=engine.get_global_grad_norm(),
        skipped=not engine.was_step_applied(),
        data_time_s=micro_batches.data_time_s,
        tokens=plan.batch.tokens_of(step),
        loss_scale=scaled_by,
        parts=parts,
    )
    if scale is not None:
        _move_loss_scale(scale, not engine.was_step_applied(), step == plan.num_steps, log)


def _forward_and_backward(engine: Any, micro_batches: MicroBatches, parts: StepParts) -> torch.Tensor:
    """One optimizer step; returns this rank's mean loss."""
    num_micro_steps = micro_batches.num_left
    loss = torch.zeros((), device=engine.device)
    parts.begin("data")
    for ids, labels in micro_batches:
        parts.begin("forward")
        micro_loss = engine(ids, labels)
        parts.begin("backward")
        engine.backward(micro_loss)
        parts.begin("optimizer")
        engine.step()
        parts.begin("data")
        loss += micro_loss.detach() / num_micro_steps
    parts.end()
    return loss


def _move_loss_scale(scale: LossScale, overflow: bool, is_last: bool, log: StepLog) -> None:
    """For the next step; where that cannot be, the steps so far are written before the error is raised."""
    try:
        scale.end_step(overflow, is_last)
    except LossScaleError:
        log.flush()
        raise


def _report_line(record: StepRecord, num_steps: int) -> str:
    """A line for people."""
    loss = "not finite" if record.loss is None else f"{record.loss:.4f}"
    return (
        f"step {record.step}/{num_steps}: loss {loss}, learning rate {record.learning_rate:.3g},"
        f" {record.step_time_s:.3f} s, {record.tokens / record.step_time_s:,.0f} tokens/s"
    )


def _check_finite(record: StepRecord, num_non_finite: int) -> None:
    """Raises NonFiniteLossError, on all ranks alike, since the loss is the mean of all."""
    if num_non_finite >= _MAX_NON_FINITE_STEPS:
        raise NonFiniteLossError(
            f"loss not finite in {num_non_finite} steps in a row, the last of them step {record.step}; try a lower"
            f" training.learning_rate (it was {record.learning_rate:.3g}) or a longer training.warmup_steps"
        )
