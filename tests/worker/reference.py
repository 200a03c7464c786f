"""The same training without DeepSpeed, ranks and our loop: what the engine's losses are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.schema import StepRecord
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import load_corpus
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.schedule import learning_rate
from tests.worker.run_folder import GPT, LLAMA, make_config

MODELS: dict[str, Mapping[str, Any]] = {"gpt": GPT, "llama": LLAMA}
LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 3e-3}
NORM_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}


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
    corpus = load_corpus(config.data, plan.model.vocab_size, plan.batch.seq_len, training.seed)
    batches = [
        TokenBatches(corpus.tokens, plan.batch, training.seed, rank, plan.layout.world_size)
        for rank in range(plan.layout.world_size)
    ]
    steps = []
    for step in range(1, plan.num_steps + 1):
        rate = learning_rate(
            step, plan.num_steps, training.warmup_steps, training.learning_rate, training.min_learning_rate
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        parts = [
            part.micro_batch(step, micro_step)
            for part in batches
            for micro_step in range(plan.batch.gradient_accumulation_steps)
        ]
        ids = torch.cat([torch.from_numpy(part[0].copy()) for part in parts])
        labels = torch.cat([torch.from_numpy(part[1].copy()) for part in parts])
        loss = model(ids, labels)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        steps.append(ReferenceStep(float(loss.detach()), float(grad_norm)))
    return steps


@cache
def _steps_of(model: str) -> list[ReferenceStep]:
    return reference_steps(make_config(model=MODELS[model]))


def assert_steps_of_reference(found: Sequence[StepRecord], model: str, precision: str = "fp32") -> None:
    """Losses and gradient norms are those of one process with the same model and global batch."""
    expected = _steps_of(model)
    losses, norms = [step.loss for step in expected], [step.grad_norm for step in expected]
    assert [step.loss for step in found] == pytest.approx(losses, rel=LOSS_TOLERANCE[precision])
    assert [step.grad_norm for step in found] == pytest.approx(norms, rel=NORM_TOLERANCE[precision])
