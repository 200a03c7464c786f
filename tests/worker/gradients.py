"""Whole gradients of real ranks, by the name of the parameter, beside those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpctrain.config.schema import Config
from tests.worker.reference import reference_gradients
from tests.worker.run_folder import make_run, start_ranks

GRADIENT_TOLERANCE = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}
"""Largest difference of one element as a share of the parameter's largest element. fp32 differs in the order of sums; 16-bit
types round each activation and gradient, to 2^-11 and 2^-8 of itself."""

# Looks at the gradients after the last backward pass of the first step, averaged and before they are clipped.
_LOOKS_AT_GRADIENTS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from hpctrain.worker import training
from hpctrain.worker.job import run
from hpctrain.worker.loss_scale import loss_scale_of
train, path = training.train, Path(sys.argv[1]) / "gradients.pt"
def whole(engine, parameter):
    scale = loss_scale_of(engine)
    found = parameter.grad if engine.zero_optimization_stage() == 0 else safe_get_full_grad(parameter)
    return found.detach().float().cpu() / (1.0 if scale is None else scale.loss_scale)
def looking(engine, *arguments, **named):
    step = engine.step
    def stepping():
        if engine.is_gradient_accumulation_boundary() and engine.global_steps == 0:
            gradients = {name: whole(engine, parameter) for name, parameter in engine.module.named_parameters()}
            if dist.get_rank() == 0:
                torch.save(gradients, path)
        step()
    engine.step = stepping
    train(engine, *arguments, **named)
training.train = looking
run(sys.argv[1])
"""


def gradients_of_ranks(folder: Path, config: Config) -> dict[str, Tensor]:
    """Gradients of the first step by parameter name, fp32, whole, averaged over the global batch, not clipped.

    Args:
        folder: empty, for the run.
        config: of a run without tensor and pipeline parallelism, whose ranks hold parts of a parameter; its ranks run to its end.
    """
    run, num_ranks = make_run(folder, config), config.hardware.gpus_per_node
    with start_ranks(run, num_ranks, command=_LOOKS_AT_GRADIENTS) as ranks:
        assert ranks.wait() == [0] * num_ranks, ranks.logs()
    found: dict[str, Tensor] = torch.load(run.root / "gradients.pt", weights_only=True)
    return found


def gradient_differences(folder: Path, config: Config) -> dict[str, float]:
    """By parameter name: the largest difference from one process in fp32, as a share of the parameter's largest gradient there.

    Args:
        folder: empty, for the run.
        config: as for ``gradients_of_ranks``.
    """
    expected, found = reference_gradients(config), gradients_of_ranks(folder, config)
    assert found.keys() == expected.keys()
    return {name: _difference(found[name], gradient) for name, gradient in expected.items()}


def _difference(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    largest: Any = expected.abs().max()
    assert largest > 0
    return float((found - expected).abs().max() / largest)
