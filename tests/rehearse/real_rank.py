"""One real rank: gloo, real tensors, DeepSpeed's CPU accelerator, the worker's engine; every storage is counted.

The counter is not the rehearsal's ledger: what the two agree on has two sources.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.rehearse.pipeline_phases import train_batch
from hpctrain.worker.engine import build_engine
from hpctrain.worker.nvme_folder import with_folder
from tests.rehearse.storage_counter import StorageCounter
from tests.rehearse.truth_cases import STEPS, Case, Measured

SETTLING_S = 0.1
"""After a step a thread of gloo may hold its last tensor a moment longer."""


def measure(case: Case) -> Measured:
    """Trains as the rank that the environment names, and counts."""
    dist.init_process_group("gloo")
    config = case.config()
    plan = build_run_plan(config)
    device = torch.device("cpu")
    counter = StorageCounter()
    with TemporaryDirectory(prefix="hpctrain-") as nvme, counter:
        counter.begin("0/model")
        with _watched_initialize(counter):
            engine = build_engine(with_folder(plan, nvme), config.training.weight_decay, config.training.seed, device)
        gc.collect()
        time.sleep(SETTLING_S)
        for step in range(1, STEPS + 1):
            _step(engine, plan, step, counter)
            time.sleep(SETTLING_S)
        counter.end()
    dist.barrier()
    return {"memory": counter.rows, "collectives": counter.collectives}


def _step(engine: Any, plan: RunPlan, step: int, counter: StorageCounter) -> None:
    """One optimizer step, as the worker's loop does it."""
    counter.begin(f"{step}/forward")
    micro_batches = _micro_batches(plan, step)
    if plan.layout.pipeline_parallel_size > 1:
        train_batch(engine, micro_batches, lambda phase: counter.begin(f"{step}/{phase}"))
        return
    for ids, labels in micro_batches:
        counter.begin(f"{step}/forward")
        loss = engine(ids, labels)
        counter.begin(f"{step}/backward")
        engine.backward(loss)
        del loss
        counter.begin(f"{step}/optimizer")
        engine.step()


def _micro_batches(plan: RunPlan, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random ids and labels, each int64 (micro_batch, seq), alike on all ranks of a replica."""
    generator = torch.Generator().manual_seed(1000 * step + plan.layout.place(dist.get_rank()).data)
    size = (plan.batch.micro_batch_size, plan.batch.seq_len)
    for _ in range(plan.batch.gradient_accumulation_steps):
        ids = torch.randint(0, plan.model.vocab_size, size, generator=generator)
        yield ids, ids.clone()


@contextlib.contextmanager
def _watched_initialize(counter: StorageCounter) -> Iterator[None]:
    """Tells the counter where the model is complete and DeepSpeed begins with its engine."""
    initialize = deepspeed.initialize

    def watched(*arguments: Any, **named: Any) -> Any:
        counter.begin("0/engine")
        return initialize(*arguments, **named)

    deepspeed.initialize = watched
    try:
        yield
    finally:
        deepspeed.initialize = initialize
