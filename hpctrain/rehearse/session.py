"""One rank of a plan, rehearsed in this process: build the engine, run a few steps, keep the books."""

from __future__ import annotations

import gc
import importlib.metadata
import platform as python_platform
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hpctrain import __version__
from hpctrain.record.schema import SCHEMA_VERSION
from hpctrain.rehearse.accumulation import extended, micro_batches_of_steps, plan_of_micro_batches, shortened
from hpctrain.rehearse.collectives import CollectiveBook
from hpctrain.rehearse.identities import adopt_engine, follow_gradients, largest_gathered_bytes, matrix_shapes
from hpctrain.rehearse.ledger import Ledger
from hpctrain.rehearse.owners import PlaceFinder
from hpctrain.rehearse.platforms import Platform, start_platform
from hpctrain.rehearse.progress import count_blocks
from hpctrain.rehearse.real_device import (
    MeasuredSteps,
    Meter,
    is_out_of_memory,
    out_of_memory_text,
    tame_padding,
    with_measurements,
)
from hpctrain.rehearse.recorder import recorder
from hpctrain.rehearse.request import Request, plan_of_depth
from hpctrain.rehearse.result import CPU_WAYS, REAL_WAYS, CountedFlops, Phase, Rehearsal, Tier
from hpctrain.worker.nvme_folder import with_folder

Say = Callable[[str], None]

_EAGER = "compiled blocks: they run eagerly, an upper bound for what compiled ones keep"


class Session:
    """The books of one rehearsal."""

    def __init__(self, request: Request) -> None:
        self.request, self.plan = request, plan_of_depth(request.plan, request.num_layers)
        planned = self.plan.batch.gradient_accumulation_steps
        self._first = planned if request.all_micro_batches else shortened(self.plan, request.rank, request.steps)
        self._micro_batches_of_steps = micro_batches_of_steps(self._first, request.steps, self._first < planned)
        self.step = 0
        """How far it came, with ``phase``, should it end early."""
        self.phase: Phase = "model"
        self.device = torch.device("cpu")
        self.ledger = Ledger("host" if request.device_way in CPU_WAYS else "gpu", reported_step=request.steps)

    def run(self, say: Say) -> Rehearsal:
        """Rehearses, and returns what was found.

        Args:
            say: gets a line now and then.
        """
        start_s = time.perf_counter()
        request, plan, ledger = self.request, self.plan, self.ledger
        platform = start_platform(request.device_way, plan, ledger)
        self.device = platform.device
        meter = Meter(platform.device)
        # These import DeepSpeed, which must find the platform in place.
        import deepspeed

        from hpctrain.worker.engine import build_engine

        collectives = CollectiveBook(plan.layout.world_size)
        places = PlaceFinder(plan.zero_stage)
        seen = recorder(ledger, collectives, places, platform.gpu_device_type, platform.with_contents)
        with ExitStack() as stack:
            stack.enter_context(platform.tensors)
            stack.enter_context(seen)
            blocks = plan.model.num_layers // plan.layout.pipeline_parallel_size
            stack.enter_context(count_blocks(blocks, lambda: (ledger.step, ledger.phase), say))
            stack.enter_context(_before(deepspeed, "initialize", partial(self._begin_engine, meter)))
            meter.begin("model")
            short = plan_of_micro_batches(plan, self._first)
            # Of NVMe the engine makes folders, and no files: beside the answer, with which the asking process removes them.
            placed = with_folder(short, Path(request.answer).parent)
            engine = build_engine(placed, request.weight_decay, request.seed, platform.device)
            meter.end()
            gc.collect()
            adopt_engine(engine, ledger)
            hooks = follow_gradients(engine.module.parameters(), ledger)
            seen.gradient_shapes = matrix_shapes(engine.module.parameters())
            seen.num_tokens = plan.batch.micro_batch_size * plan.batch.seq_len // plan.layout.sequence_parallel_size
            for step, num_micro_batches in enumerate(self._micro_batches_of_steps, start=1):
                self._set_micro_batches(engine, step, num_micro_batches)
                self._step(engine, num_micro_batches, platform, partial(self._begin, step))
                adopt_engine(engine, ledger)
            ledger.end_phase()
            for hook in hooks:
                hook.remove()
        margin = largest_gathered_bytes(engine.module.parameters())
        found = self._found(platform, collectives, seen.flops, margin, time.perf_counter() - start_s)
        if self._first != plan.batch.gradient_accumulation_steps:
            last = range(request.steps, len(self._micro_batches_of_steps) + 1)
            flops = [_by_operator(seen.flops, step) for step in last]
            found = extended(found, plan.batch.gradient_accumulation_steps, self._first, flops)
        return self._measured(found, engine, platform, meter) if platform.with_contents else found

    def shortage(self, error: BaseException) -> str:
        """What a real device held when it had no more memory; empty: that is not what went wrong."""
        if self.request.device_way not in REAL_WAYS or not is_out_of_memory(error):
            return ""
        tier: Tier = "host" if self.request.device_way in CPU_WAYS else "gpu"
        peaks = self.request.plan.memory.phases
        planned = max((peak.host_bytes if tier == "host" else peak.gpu_bytes for peak in peaks), default=0)
        return out_of_memory_text(error, self.device, self.step, self.ledger.live_bytes(tier), planned)

    def _measured(self, found: Rehearsal, engine: Any, platform: Platform, building: Meter) -> Rehearsal:
        """The same with what the device took, in further steps like the last one."""
        count, step = self._micro_batches_of_steps[-1], len(self._micro_batches_of_steps) + 1
        measured = MeasuredSteps(self.device)

        def run_step() -> None:
            self._step(engine, count, platform, lambda phase: self._note(step, phase, measured.meter))

        measured.run(run_step)
        return with_measurements(found, self.request.plan, engine, (building, measured), count)

    def _begin(self, step: int, phase: Phase, meter: Meter | None = None) -> None:
        """A phase that the books have."""
        self.ledger.begin(step, phase)
        self._note(step, phase, meter)

    def _begin_engine(self, meter: Meter, model: torch.nn.Module) -> None:
        if self.request.device_way in REAL_WAYS:
            tame_padding(model.parameters())
        self._begin(0, "engine", meter)

    def _note(self, step: int, phase: Phase, meter: Meter | None) -> None:
        self.step, self.phase = step, phase
        if meter is not None:
            meter.begin(phase)

    def _set_micro_batches(self, engine: Any, step: int, count: int) -> None:
        """Tells the engine how many there are in a step, where it is another number than in the step before."""
        if step > 1 and count != self._micro_batches_of_steps[step - 2]:
            engine.set_train_batch_size(count * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
            engine.micro_steps = 0  # the engine takes every so many of them for the last one of a step

    def _step(self, engine: Any, num_micro_batches: int, platform: Platform, begin: Callable[[Phase], None]) -> None:
        """One optimizer step, as the worker's loop does it; ``begin`` is told of each phase as it begins."""
        begin("forward")
        micro_batches = self._micro_batches(num_micro_batches, platform)
        if self.plan.layout.pipeline_parallel_size > 1:
            from hpctrain.rehearse.pipeline_phases import train_batch

            train_batch(engine, micro_batches, begin)
            return
        for ids, labels in micro_batches:
            begin("forward")
            loss = engine(ids, labels)
            begin("backward")
            engine.backward(loss)
            del loss
            begin("optimizer")
            engine.step()

    def _micro_batches(self, count: int, platform: Platform) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids and labels, each int64 (micro_batch, seq), made when they are asked for."""
        batch = self.plan.batch
        size = (batch.micro_batch_size, batch.seq_len)
        for _ in range(count):
            ids = torch.zeros(size, dtype=torch.int64, device=platform.device)
            if platform.with_contents:
                ids.random_(self.plan.model.vocab_size)
            yield ids, ids.clone()

    def _found(
        self, platform: Platform, collectives: CollectiveBook, flops: Any, margin_bytes: int, wall_s: float
    ) -> Rehearsal:
        request, plan, ledger = self.request, self.plan, self.ledger
        by_operator = _by_operator(flops, request.steps)
        return Rehearsal(
            schema_version=SCHEMA_VERSION,
            plan_name=plan.name,
            model_name=plan.model.name,
            num_layers=plan.model.num_layers,
            num_parameters=plan.model.num_parameters,
            world_size=plan.layout.world_size,
            rank=request.rank,
            zero_stage=plan.zero_stage,
            device_way=request.device_way,
            way="whole",
            steps=request.steps,
            reported_step=request.steps,
            simulated=(*platform.simulated, *((_EAGER,) if plan.compile else ())),
            versions=_versions(),
            memory=ledger.memory(),
            collectives=collectives.rows(),
            flops=CountedFlops(
                counted=sum(by_operator.values()),
                by_operator=by_operator,
                planned=plan.flops_per_step.hardware_flops / plan.layout.world_size,
            ),
            largest=ledger.largest(request.num_largest),
            timeline=ledger.track.timeline(ledger.marked_peaks(), plan.model.num_layers),
            late_free_margin_bytes=margin_bytes,
            wall_s=wall_s,
            process_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            gpu_capacity_bytes=plan.memory.gpu_capacity_bytes,
            planned_memory=tuple((term.name, term.tier, term.num_bytes) for term in request.plan.memory.terms),
            stage=plan.layout.place(request.rank).pipeline,
            num_stages=plan.layout.pipeline_parallel_size,
        )


def _by_operator(flops: Mapping[tuple[int, str], int], step: int) -> dict[str, int]:
    return {name: count for (of, name), count in sorted(flops.items()) if of == step}


@contextmanager
def _before(module: Any, name: str, call: Callable[[torch.nn.Module], None]) -> Iterator[None]:
    """While it is entered, ``call`` gets the ``model`` of each call of the module's function, before it."""
    original = getattr(module, name)

    def function(*arguments: Any, **named: Any) -> Any:
        call(named["model"])
        return original(*arguments, **named)

    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, original)


def _versions() -> dict[str, str]:
    packages: Iterable[str] = ("torch", "deepspeed")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"hpctrain": __version__, "python": python_platform.python_version()} | found
