"""Measured steps to records, in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hpctrain.record.schema import StepRecord
from hpctrain.record.writer import StepWriter
from hpctrain.worker.step_log import StepLog
from hpctrain.worker.step_parts import StepParts
from tests.worker.run_folder import read_steps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def note(
    log: StepLog,
    step: int,
    loss: float = 2.0,
    stop: bool = False,
    grad_norm: torch.Tensor | float | None = 1.5,
    skipped: bool = False,
    parts: StepParts | None = None,
) -> None:
    log.end_step(
        step=step,
        learning_rate=0.1,
        loss=torch.tensor(loss),
        stop_requested=stop,
        grad_norm=grad_norm,
        skipped=skipped,
        data_time_s=0.01,
        tokens=64 * step,
        parts=parts,
    )


def test_every_step_gets_its_line_at_the_flush(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(StepWriter(path), attempt=2, device=CPU)
    for step, grad_norm in enumerate((torch.tensor(0.5), 0.25, None, math.inf), start=1):
        time.sleep(0.02)
        note(log, step, loss=float(step), grad_norm=grad_norm)
        assert not path.exists()
    last = log.flush()
    records = read_steps(path)
    assert records[-1] == last
    assert [record.loss for record in records] == [1.0, 2.0, 3.0, 4.0]
    assert [record.grad_norm for record in records] == [0.5, 0.25, None, None]
    assert all(0.02 <= record.step_time_s < 2 for record in records)
    assert records[3].time_s - records[0].time_s == pytest.approx(sum(r.step_time_s for r in records[1:]), abs=1e-5)
    assert abs(last.time_s - time.time()) < 1
    assert last == StepRecord(
        schema_version=2,
        attempt=2,
        step=4,
        time_s=last.time_s,
        loss=4.0,
        learning_rate=0.1,
        grad_norm=None,
        skipped=False,
        step_time_s=last.step_time_s,
        data_time_s=0.01,
        tokens=256,
        peak_memory_bytes=last.peak_memory_bytes,
    )


def test_the_parts_of_a_step_add_up_over_its_micro_steps() -> None:
    log = StepLog(None, attempt=1, device=CPU)
    parts = StepParts(CPU)
    for _ in range(2):
        for part, seconds in (("data", 0.0), ("forward", 0.01), ("backward", 0.03), ("optimizer", 0.02)):
            parts.begin(part)  # type: ignore[arg-type]
            time.sleep(seconds)
    parts.end()
    note(log, 1, parts=parts)
    record = log.flush()
    assert record.forward_time_s is not None and record.forward_time_s >= 0.02
    assert record.backward_time_s is not None and record.backward_time_s >= 0.06
    assert record.optimizer_time_s is not None and record.optimizer_time_s >= 0.04
    found = record.forward_time_s + record.backward_time_s + record.optimizer_time_s
    assert 0.12 <= found <= record.step_time_s


def test_losses_that_are_not_finite_are_counted_in_a_row() -> None:
    log = StepLog(None, attempt=1, device=CPU)
    for step, loss in enumerate((math.nan, 1.0, math.inf, math.nan), start=1):
        note(log, step, loss)
    assert log.flush().loss is None
    assert log.num_non_finite == 2
    note(log, 5, math.nan)
    log.flush()
    assert log.num_non_finite == 3
    note(log, 6, 1.0)
    log.flush()
    assert log.num_non_finite == 0


def test_a_skipped_step_has_no_gradient_norm() -> None:
    log = StepLog(None, attempt=1, device=CPU)
    note(log, 1, grad_norm=3.0, skipped=True)
    record = log.flush()
    assert (record.skipped, record.grad_norm) == (True, None)


def test_a_stop_request_is_noticed_one_step_late() -> None:
    log = StepLog(None, attempt=1, device=CPU)
    noticed = []
    for step in range(1, 5):
        note(log, step, stop=step >= 2)
        noticed.append(log.stop_agreed)
        assert log.last_step == step - 1
    assert noticed == [False, False, True, True]


def test_a_stop_request_is_noticed_at_a_flush() -> None:
    log = StepLog(None, attempt=1, device=CPU)
    note(log, 1, stop=True)
    assert not log.stop_agreed
    assert log.last_step == 0
    log.flush()
    assert log.stop_agreed
    assert log.last_step == 1
