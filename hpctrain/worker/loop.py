"""The training loop."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpctrain.config.schema import TrainingConfig
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.schema import StepRecord
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.end_reasons import NonFiniteLossError, StoppedBySignalError
from hpctrain.worker.schedule import learning_rate
from hpctrain.worker.step_log import StepLog
from hpctrain.worker.stop_signal import StopSignal

# One bad batch can give one non-finite loss, and DeepSpeed may skip its update; once the weights themselves are lost no later
# loss is finite, and such steps run as fast as good ones.
_MAX_NON_FINITE_STEPS = 5


def train(
    engine: Any, plan: RunPlan, training: TrainingConfig, batches: TokenBatches, log: StepLog, stop: StopSignal
) -> None:
    """Runs all steps of the plan.

    Args:
        engine: DeepSpeed's engine around the decoder.
        plan: number of steps and batch.
        training: schedule and log interval.
        batches: this rank's sequences.
        log: where measured steps go.
        stop: signals to this rank.

    Raises:
        NonFiniteLossError: the loss stays infinite or not a number.
        StoppedBySignalError: some rank got a signal; all ranks leave after the same step.
    """
    for step in range(1, plan.num_steps + 1):
        rate = learning_rate(
            step, plan.num_steps, training.warmup_steps, training.learning_rate, training.min_learning_rate
        )
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        loss = torch.zeros((), device=engine.device)
        data_time_s = 0.0
        for micro_step in range(plan.batch.gradient_accumulation_steps):
            data_start_s = time.perf_counter()
            ids, labels = (_to_device(part, engine.device) for part in batches.micro_batch(step, micro_step))
            data_time_s += time.perf_counter() - data_start_s
            micro_loss = engine(ids, labels)
            engine.backward(micro_loss)
            engine.step()
            loss += micro_loss.detach() / plan.batch.gradient_accumulation_steps
        log.end_step(
            step=step,
            learning_rate=rate,
            loss=loss,
            stop_requested=stop.received,
            grad_norm=engine.get_global_grad_norm(),
            skipped=not engine.was_step_applied(),
            data_time_s=data_time_s,
        )
        if log.stop_agreed or step % training.log_interval == 0 or step == plan.num_steps:
            last = log.flush()
            if batches.rank == 0:
                print(_report_line(last, plan.num_steps), flush=True)
            _check_finite(last, log.num_non_finite)
        if log.stop_agreed and step < plan.num_steps:
            raise StoppedBySignalError(
                f"stopped after step {step} of {plan.num_steps} by {stop.name or 'a signal to another rank'}"
            )


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


def _to_device(array: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """The array as a tensor; to a GPU by a copy that the host does not wait for."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
