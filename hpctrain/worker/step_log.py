"""Measured steps: kept on the device, made records every few steps, so that nobody waits for the GPU or for another rank."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from hpctrain.record.schema import STEP_SCHEMA_VERSION, StepRecord
from hpctrain.record.writer import StepWriter
from hpctrain.worker.step_parts import StepParts
from hpctrain.worker.timing import Mark, mark, peak_memory_bytes, seconds_between


@dataclass(frozen=True)
class MeasuredStep:
    """A step whose numbers may still be under way."""

    step: int
    learning_rate: float
    totals: torch.Tensor
    """On the host, valid after ``wait``: loss and stop requests, each summed over ranks."""
    summing: dist.Work | None
    """The sum under way between CPU ranks; on a GPU it is queued before ``end``."""
    grad_norm: torch.Tensor | float | None
    skipped: bool
    data_time_s: float
    loss_scale: float | None
    tokens: int
    parts: StepParts | None
    end: Mark

    def wait(self) -> None:
        """Returns when the step has ended on the device and ``totals`` are there."""
        if self.summing is not None:
            self.summing.wait()
        self.end.wait()


class StepLog:
    """Collects the steps of one rank; rank 0 appends them to ``steps.jsonl``."""

    def __init__(self, writer: StepWriter | None, attempt: int, device: torch.device) -> None:
        self._writer = writer
        self._attempt = attempt
        self._device = device
        self._pending: list[MeasuredStep] = []
        self._last_end = mark(device)
        self.last_step = 0
        """The last step known to have ended on the device; read by the telemetry's thread."""
        self.num_non_finite = 0
        """Steps in a row, up to the last flush, whose loss was not finite."""
        self.stop_agreed = False
        """Whether some rank has asked to stop; turns true after the same step on all ranks, one step late or at a flush."""

    def end_step(
        self,
        step: int,
        learning_rate: float,
        loss: torch.Tensor,
        stop_requested: bool,
        grad_norm: torch.Tensor | float | None,
        skipped: bool,
        data_time_s: float,
        tokens: int,
        loss_scale: float | None = None,
        parts: StepParts | None = None,
    ) -> None:
        """Notes a step; one small sum over ranks carries its loss and the stop requests.

        Args:
            step: optimizer step, from 1.
            learning_rate: of this step.
            loss: this rank's mean, a scalar on the device.
            stop_requested: this rank got a signal.
            grad_norm: before clipping, where it is known.
            skipped: the optimizer did not update.
            data_time_s: seconds that the host waited for data.
            tokens: of all ranks.
            loss_scale: of fp16.
            parts: marks between the parts of the step; None: they are not apart.
        """
        totals = torch.stack((loss, torch.full_like(loss, float(stop_requested))))
        summing = dist.all_reduce(totals, async_op=True)
        if self._device.type == "cuda":
            summing.wait()  # the queue waits, not the host
            summing = None
        # From a GPU this is a copy into pinned memory behind the queued work.
        host_totals = totals.to("cpu", non_blocking=True)
        self._pending.append(
            MeasuredStep(
                step=step,
                learning_rate=learning_rate,
                totals=host_totals,
                summing=summing,
                grad_norm=grad_norm,
                skipped=skipped,
                data_time_s=data_time_s,
                loss_scale=loss_scale,
                tokens=tokens,
                parts=parts,
                end=mark(self._device),
            )
        )
        # One step behind, so that nobody waits for work that is not done, or for a rank that is a little later.
        if len(self._pending) > 1:
            known = self._pending[-2]
            known.wait()
            self.last_step = known.step
            self.stop_agreed |= bool(known.totals[1] > 0)

    def flush(self) -> StepRecord:
        """Turns all pending steps into records, writes them (rank 0), and returns the last; there must be one."""
        for measured in self._pending:
            measured.wait()
        last_end = self._pending[-1].end
        now_s = time.time()
        peak_bytes = peak_memory_bytes(self._device)
        records = []
        for measured in self._pending:
            record = self._record(measured, now_s - seconds_between(measured.end, last_end), peak_bytes)
            self._last_end = measured.end
            self.stop_agreed |= bool(measured.totals[1] > 0)
            self.num_non_finite = 0 if record.loss is not None else self.num_non_finite + 1
            records.append(record)
        self.last_step = self._pending[-1].step
        self._pending = []
        if self._writer is not None:
            self._writer.append(records)
        return records[-1]

    def resume_clock(self) -> None:
        """Begins the next step's time now: what came since the last step, which must be flushed, was no step."""
        self._last_end = mark(self._device)

    def _record(self, measured: MeasuredStep, time_s: float, peak_bytes: int) -> StepRecord:
        parts = measured.parts.seconds() if measured.parts is not None else {}
        return StepRecord(
            schema_version=STEP_SCHEMA_VERSION,
            attempt=self._attempt,
            step=measured.step,
            time_s=time_s,
            loss=_finite(measured.totals[0] / dist.get_world_size()),
            learning_rate=measured.learning_rate,
            # A skipped step leaves the norm of an earlier one behind.
            grad_norm=None if measured.skipped else _finite(measured.grad_norm),
            skipped=measured.skipped,
            step_time_s=seconds_between(self._last_end, measured.end),
            data_time_s=measured.data_time_s,
            tokens=measured.tokens,
            peak_memory_bytes=peak_bytes,
            forward_time_s=parts.get("forward"),
            backward_time_s=parts.get("backward"),
            optimizer_time_s=parts.get("optimizer"),
            loss_scale=measured.loss_scale,
        )


def _finite(value: torch.Tensor | float | None) -> float | None:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None
