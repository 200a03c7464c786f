"""The same training without DeepSpeed, ranks and our loop: what the engine's losses are held against."""

from __future__ import annotations

import torch

from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import load_corpus
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.schedule import learning_rate


def reference_losses(config: Config) -> list[float]:
    """Losses of one process with torch's AdamW on the whole global batch, fp32."""
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
    losses = []
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
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses
