"""A rank that measures beside its training: gradients of the first step, parameters, FLOPs, and the bytes of all storages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # under zero.Init its import, which a dispatch mode asks for, would trip over the patched tensors
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hpctrain.plan.parameters import Parameter, decoder_parameters, stage_names
from hpctrain.plan.run_plan import RunPlan
from hpctrain.worker import job, loop, training
from hpctrain.worker.loss_scale import loss_scale_of
from tests.rehearse.storage_counter import StorageCounter

GRADIENTS = "reference_gradients.pt"
"""In the run folder: of one process, by name."""
MEMORY_STEP, FLOP_STEP = 3, 5
"""From the second step on all steps are alike; torch's counter of FLOPs knows attention as matrix products alone."""


def run(root: str) -> None:
    """In place of ``job.run``; leaves ``found-<rank>.json`` in the run folder."""
    counter = StorageCounter()
    build, train = (getattr(training, name) for name in ("build_engine", "train"))

    def building(*arguments: Any) -> Any:
        counter.begin("engine")
        with counter:
            return build(*arguments)

    def watching(engine: Any, plan: RunPlan, *arguments: Any, **named: Any) -> None:
        watch = Watch(engine, plan, counter, torch.load(Path(root) / GRADIENTS, weights_only=True))
        with ExitStack() as stack:
            stack.enter_context(counter)
            stack.enter_context(patch.object(loop, "_run_step", watch.around(loop._run_step)))
            stack.enter_context(patch.object(engine, "_take_model_step", watch.before(engine._take_model_step)))
            train(engine, plan, *arguments, **named)
        (Path(root) / f"found-{dist.get_rank()}.json").write_text(json.dumps(watch.found))

    with patch.object(training, "build_engine", building), patch.object(training, "train", watching):
        job.run(root)


class Watch:
    """What one rank sees of its steps."""

    def __init__(self, engine: Any, plan: RunPlan, counter: StorageCounter, expected: dict[str, Tensor]) -> None:
        self._engine, self._counter, self._expected = engine, counter, expected
        place = plan.layout.place(dist.get_rank())
        self._tensor_rank, self._tensor_size = place.tensor, plan.layout.tensor_parallel_size
        by_name = {parameter.name: parameter for parameter in decoder_parameters(plan.model)}
        names = stage_names(plan.model, plan.layout.pipeline_parallel_size, place.pipeline)
        self._own = {local: by_name[name] for local, name in names.items()}
        self.found: dict[str, Any] = {"parameters": self._whole_sizes()}

    def around(self, run_step: Callable[..., None]) -> Callable[..., None]:
        """A step with its bytes and FLOPs counted."""

        def counted(*arguments: Any) -> None:
            step = arguments[-1]
            self._counter.begin(f"step {step}")
            if step != FLOP_STEP:
                run_step(*arguments)
            else:
                with FlopCounterMode(display=False) as flops, sdpa_kernel(SDPBackend.MATH):
                    run_step(*arguments)
                self.found["flops"] = flops.get_total_flops()
            if step == MEMORY_STEP:
                rows = self._counter.rows
                self.found["bytes"] = max(rows["engine"][0], rows[f"step {step}"][0])

        return counted

    def before(self, take_step: Callable[..., None]) -> Callable[..., None]:
        """The optimizer's step, before the first of which the gradients are compared."""

        def compared(*arguments: Any) -> None:
            if self._engine.global_steps == 0:
                differences = {name: self._difference(name, value) for name, value in self._named()}
                self.found["gradients"] = max(differences.values())
                self._expected = {}  # or its storages would be counted with the engine's
            take_step(*arguments)

        return compared

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self._engine.module.named_parameters())

    def _whole_sizes(self) -> dict[str, int]:
        """Elements of the whole parameters of which this rank's engine has a piece, by the decoder's names."""
        found = {}
        for name, value in self._named():
            whole = self._own[name]
            pieces = 1 if whole.split_dim is None else self._tensor_size
            found[whole.name] = pieces * math.prod(getattr(value, "ds_shape", value.shape))
        return found

    def _difference(self, name: str, value: torch.nn.Parameter) -> float:
        """Norm of the difference, as a share of the norm of the parameter's gradient in one process."""
        whole = self._own[name]
        expected = self._piece(whole, self._expected[whole.name])
        found = value.grad if self._engine.zero_optimization_stage() == 0 else safe_get_full_grad(value)
        scale = loss_scale_of(self._engine)
        assert found is not None, name
        found = found.detach().float().cpu() / (1.0 if scale is None else scale.loss_scale)
        assert found.shape == expected.shape, name
        return float((found - expected).norm() / self._expected[whole.name].norm())

    def _piece(self, parameter: Parameter, whole: Tensor) -> Tensor:
        """This rank's of the whole: of each part an even share."""
        if parameter.split_dim is None or self._tensor_size == 1:
            return whole
        parts = torch.split(whole, list(parameter.parts), dim=parameter.split_dim)
        own = [part.chunk(self._tensor_size, dim=parameter.split_dim)[self._tensor_rank] for part in parts]
        return torch.cat(own, dim=parameter.split_dim)
