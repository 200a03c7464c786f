"""The same training without DeepSpeed, ranks and our loop: what the engine's losses are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.schema import StepRecord
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import load_corpus
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.schedule import learning_rate
from tests.worker.run_folder import GPT, LLAMA, make_config

MODELS: dict[str, Mapping[str, Any]] = {"gpt": GPT, "llama": LLAMA}
LOSS_TOLERANCE = {"fp32": 1e-5, "fp16": 3e-4, "bf16": 3e-3}
NORM_TOLERANCE = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}


@dataclass(frozen=True)
class ReferenceStep:
    """What one step of the reference gives."""

    loss: float
    grad_norm: float
    """Before clipping."""


def reference_losses(config: Config) -> list[float]:
    return [step.loss for step in reference_steps(config)]


def reference_steps(config: Config) -> list[ReferenceStep]:
    """Steps of one process with torch's AdamW on the whole global batch, fp32."""
    return _trained(config)[0]


def reference_validation_loss(config: Config) -> float:
    """After the last step, over the first held-out sequences in their order."""
    plan, training = build_run_plan(config), config.training
    corpus = load_corpus(config.data, plan.model.vocab_size, plan.batch.seq_len, training.seed)
    assert corpus.validation is not None
    samples = np.arange(training.validation_batches * plan.batch.global_batch_size)
    ids, labels = corpus.validation.read(samples)
    _, model = _trained(config)
    with torch.no_grad():
        return float(model(torch.from_numpy(ids), torch.from_numpy(labels)))


def _trained(config: Config) -> tuple[list[ReferenceStep], Decoder]:
    """The steps, and the model after the last one."""
    plan, training = build_run_plan(config), config.training
    model = Decoder(plan.model, "none", training.seed)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": training.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(training.beta1, training.beta2),
        eps=training.eps,
    )
    batch_of = _global_batches(config, plan)
    steps = []
    for step in range(1, plan.num_steps + 1):
        rate = learning_rate(
            step,
            plan.num_steps,
            training.warmup_steps,
            training.learning_rate,
            training.min_learning_rate,
            training.decay,
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(*batch_of(step))
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        steps.append(ReferenceStep(float(loss.detach()), float(grad_norm)))
    return steps, model


def reference_gradients(config: Config) -> dict[str, Tensor]:
    """Gradients of the first step of one process, fp32, not clipped, by the name of the parameter."""
    plan = build_run_plan(config)
    model = Decoder(plan.model, "none", config.training.seed)
    model(*_global_batches(config, plan)(1)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _global_batches(config: Config, plan: RunPlan) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Ids and labels of a step, each int64 (global batch, seq), from all data-parallel ranks of the plan together."""
    corpus = load_corpus(config.data, plan.model.vocab_size, plan.batch.seq_len, config.training.seed)
    degree = plan.layout.data_parallel_degree
    batches = [TokenBatches(corpus.training, plan.batch, place, degree) for place in range(degree)]

    def batch_of(step: int) -> tuple[Tensor, Tensor]:
        micro_steps = range(plan.batch.accumulation_of(step))
        parts = [part.micro_batch(step, micro_step) for part in batches for micro_step in micro_steps]
        ids = torch.cat([torch.from_numpy(part[0].copy()) for part in parts])
        return ids, torch.cat([torch.from_numpy(part[1].copy()) for part in parts])

    return batch_of


@cache
def _steps_of(model: str) -> list[ReferenceStep]:
    return reference_steps(make_config(model=MODELS[model]))


def assert_steps_of_reference(found: Sequence[StepRecord], model: str, precision: str = "fp32") -> None:
    """Losses and gradient norms are those of one process with the same model and global batch."""
    expected = _steps_of(model)
    losses, norms = [step.loss for step in expected], [step.grad_norm for step in expected]
    assert [step.loss for step in found] == pytest.approx(losses, rel=LOSS_TOLERANCE[precision])
    assert [step.grad_norm for step in found] == pytest.approx(norms, rel=NORM_TOLERANCE[precision])
