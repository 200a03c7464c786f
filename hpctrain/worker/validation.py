"""The loss on held-out data at intervals: the same sequences each time, without gradients, in no step's time."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpctrain.config.schema import TrainingConfig
from hpctrain.plan.run_plan import RunPlan
from hpctrain.record.schema import SCHEMA_VERSION, ValidationRecord
from hpctrain.record.writer import ValidationFile
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.sequences import Sequences
from hpctrain.worker.end_reasons import DataError
from hpctrain.worker.pipeline import evaluate_batch
from hpctrain.worker.stop_signal import StopSignal


class Validation:
    """Evaluates the engine on the first global batches of the held-out data; every method is one of all ranks."""

    def __init__(
        self,
        sequences: Sequences,
        plan: RunPlan,
        training: TrainingConfig,
        rank: int,
        attempt: int,
        writer: ValidationFile | None,
    ) -> None:
        """Evaluates nothing yet.

        Args:
            sequences: the held-out ones.
            plan: with layout and batch.
            training: with ``validation_interval``, which is set, and ``validation_batches``.
            rank: this one, of the whole world.
            attempt: for the records.
            writer: of rank 0; None on the others.

        Raises:
            DataError: less than one global batch is held out.
        """
        self._batch = dataclasses.replace(plan.batch, ramp=())
        layout, size = plan.layout, self._batch.global_batch_size
        self.num_batches = min(training.validation_batches, sequences.num_windows // size)
        """Global batches of one validation."""
        if self.num_batches == 0:
            unit = self._batch.micro_batch_size * layout.data_parallel_degree
            largest = sequences.num_windows // unit * unit
            raise DataError(
                f"training.validation_interval={training.validation_interval}: {sequences.num_windows:,} sequences of"
                f" {self._batch.seq_len:,} tokens are held out, and a validation takes a global batch of {size:,}; hold out more"
                " (data.validation_fraction or data.validation_path)"
                + (f", or set training.global_batch_size={largest}" if largest else "")
            )
        self._batches = TokenBatches(sequences, self._batch, layout.place(rank).data, layout.data_parallel_degree)
        self._is_pipeline = layout.pipeline_parallel_size > 1
        self._training, self._num_steps = training, plan.num_steps
        self._attempt, self._writer = attempt, writer

    def is_due(self, step: int) -> bool:
        """Whether a validation comes after this step: at the interval, and after the last step."""
        interval = self._training.validation_interval
        return interval is not None and (step % interval == 0 or step == self._num_steps)

    def run(self, engine: Any, step: int, stop: StopSignal) -> bool:
        """Evaluates, and writes the record; returns whether some rank was asked to stop, for which a validation is given up.

        Args:
            engine: DeepSpeed's, between two steps.
            step: the last finished one.
            stop: looked at after each global batch.
        """
        started_s = time.monotonic()
        loss = 0.0
        engine.eval()
        try:
            for number in range(1, self.num_batches + 1):
                totals = torch.stack((self._loss_of(engine, number), torch.zeros((), device=engine.device)))
                totals[1] += float(stop.received)
                dist.all_reduce(totals)
                of_batch, stops = totals.tolist()
                if stops > 0:
                    return True
                loss += of_batch / dist.get_world_size() / self.num_batches
        finally:
            engine.train()
        num_sequences = self.num_batches * self._batch.global_batch_size
        record = ValidationRecord(
            schema_version=SCHEMA_VERSION,
            attempt=self._attempt,
            step=step,
            time_s=time.time(),
            loss=loss if math.isfinite(loss) else None,
            num_sequences=num_sequences,
            tokens=num_sequences * self._batch.seq_len,
            validation_time_s=time.monotonic() - started_s,
        )
        if self._writer is not None:
            self._writer.append(record)
            print(_line(record, self._num_steps), flush=True)
        return False

    def _loss_of(self, engine: Any, number: int) -> Tensor:
        """This rank's mean loss over its share of a global batch, a scalar in fp32."""
        count = self._batch.gradient_accumulation_steps
        micro_batches = self._micro_batches(number, engine.device)
        if self._is_pipeline:
            # Broadcast among the stages it has one dimension.
            return evaluate_batch(engine, micro_batches, count).float().reshape(())
        loss = torch.zeros((), device=engine.device)
        with torch.no_grad():
            for ids, labels in micro_batches:
                loss += engine(ids, labels).float() / count
        return loss

    def _micro_batches(self, number: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Of global batch ``number``, from 1."""
        for micro_step in range(self._batch.gradient_accumulation_steps):
            ids, labels = self._batches.micro_batch(number, micro_step)
            yield torch.from_numpy(ids).to(device), torch.from_numpy(labels).to(device)


def _line(record: ValidationRecord, num_steps: int) -> str:
    """A line for people."""
    loss = "not finite" if record.loss is None else f"{record.loss:.4f}"
    return (
        f"step {record.step}/{num_steps}: validation loss {loss} over {record.num_sequences:,} sequences,"
        f" {record.validation_time_s:.3f} s"
    )
