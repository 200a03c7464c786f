"""One rank of a plan, rehearsed in this process: build the engine, run a few steps, keep the books."""

from __future__ import annotations

import gc
import importlib.metadata
import platform as python_platform
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from hpctrain import __version__
from hpctrain.record.schema import SCHEMA_VERSION
from hpctrain.rehearse.collectives import CollectiveBook
from hpctrain.rehearse.identities import adopt_engine, follow_gradients, largest_gathered_bytes, matrix_shapes
from hpctrain.rehearse.ledger import Ledger
from hpctrain.rehearse.owners import PlaceFinder
from hpctrain.rehearse.platforms import Platform, start_platform
from hpctrain.rehearse.progress import count_blocks
from hpctrain.rehearse.recorder import recorder
from hpctrain.rehearse.request import Request, plan_of_depth
from hpctrain.rehearse.result import CountedFlops, Rehearsal

Say = Callable[[str], None]


class Session:
    """The books of one rehearsal; ``phase`` of the ledger says how far it came, should it end early."""

    def __init__(self, request: Request) -> None:
        self.request, self.plan = request, plan_of_depth(request.plan, request.num_layers)
        self.ledger = Ledger("host" if request.device_way == "cpu" else "gpu", reported_step=request.steps)

    def run(self, say: Say) -> Rehearsal:
        """Rehearses, and returns what was found.

        Args:
            say: gets a line now and then.
        """
        start_s = time.perf_counter()
        request, plan, ledger = self.request, self.plan, self.ledger
        platform = start_platform(request.device_way, plan, ledger)
        # These import DeepSpeed, which must find the platform in place.
        import deepspeed

        from hpctrain.worker.engine import build_engine

        collectives = CollectiveBook(plan.layout.world_size)
        places = PlaceFinder(plan.zero_stage)
        seen = recorder(ledger, collectives, places, platform.gpu_device_type, platform.with_contents)
        with ExitStack() as stack:
            stack.enter_context(platform.tensors)
            stack.enter_context(seen)
            stack.enter_context(count_blocks(plan.model.num_layers, lambda: (ledger.step, ledger.phase), say))
            stack.enter_context(_before(deepspeed, "initialize", lambda: ledger.begin(0, "engine")))
            engine = build_engine(plan, request.weight_decay, request.seed, platform.device)
            gc.collect()
            adopt_engine(engine, ledger)
            hooks = follow_gradients(engine.module.parameters(), ledger)
            seen.gradient_shapes = matrix_shapes(engine.module.parameters())
            seen.num_tokens = plan.batch.micro_batch_size * plan.batch.seq_len // plan.layout.sequence_parallel_size
            for step in range(1, request.steps + 1):
                self._step(engine, step, platform)
                adopt_engine(engine, ledger)
            ledger.end_phase()
            for hook in hooks:
                hook.remove()
        margin = largest_gathered_bytes(engine.module.parameters())
        return self._found(platform, collectives, seen.flops, margin, time.perf_counter() - start_s)

    def _step(self, engine: Any, step: int, platform: Platform) -> None:
        """One optimizer step, as the worker's loop does it."""
        self.ledger.begin(step, "forward")
        micro_batches = self._micro_batches(platform.device)
        if self.plan.layout.pipeline_parallel_size > 1:
            from hpctrain.rehearse.pipeline_phases import train_batch

            train_batch(engine, micro_batches, lambda phase: self.ledger.begin(step, phase))
            return
        for ids, labels in micro_batches:
            self.ledger.begin(step, "forward")
            loss = engine(ids, labels)
            self.ledger.begin(step, "backward")
            engine.backward(loss)
            del loss
            self.ledger.begin(step, "optimizer")
            engine.step()

    def _micro_batches(self, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids and labels, each int64 (micro_batch, seq), made when they are asked for."""
        batch = self.plan.batch
        size = (batch.micro_batch_size, batch.seq_len)
        for _ in range(batch.gradient_accumulation_steps):
            ids = torch.zeros(size, dtype=torch.int64, device=device)
            yield ids, torch.zeros_like(ids)

    def _found(
        self, platform: Platform, collectives: CollectiveBook, flops: Any, margin_bytes: int, wall_s: float
    ) -> Rehearsal:
        request, plan, ledger = self.request, self.plan, self.ledger
        by_operator = {name: count for (step, name), count in sorted(flops.items()) if step == request.steps}
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
            simulated=platform.simulated,
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
        )


@contextmanager
def _before(module: Any, name: str, call: Callable[[], None]) -> Iterator[None]:
    """While it is entered, ``call`` runs before each call of the module's function."""
    original = getattr(module, name)

    def function(*arguments: Any, **named: Any) -> Any:
        call()
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
