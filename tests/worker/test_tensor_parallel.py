"""Real ranks that split the matrices between them: losses and gradient norms of one process.

Measured here (torch 2.13, DeepSpeed 0.19.8, 20 steps): fp32 within 2e-7 of the reference (norms 3e-7),
bf16 within 6e-4 (norms 2e-3).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.reference import MODELS, assert_steps_of_reference
from tests.worker.run_folder import make_config, train

pytestmark = pytest.mark.train

CHUNKS: dict[str, Any] = {"loss_chunk_size": 60}
"""Tokens; the last chunk of a micro batch is a shorter one."""
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "2, zero1, loss in chunks": ("gpt", 2, {"zero_stage": 1} | CHUNKS),
    "2, zero1, bf16, selective, loss in chunks": (
        "llama",
        2,
        {"zero_stage": 1, "precision": "bf16", "activation_checkpointing": "selective"} | CHUNKS,
    ),
    "2, zero3, offloaded": ("gpt", 2, {"offload": True}),
    "2 x data 2, zero1, accumulation 2, recomputed": (
        "llama",
        4,
        {"zero_stage": 1, "micro_batch_size": 2, "activation_checkpointing": "full"},
    ),
    "2 x data 2, zero2, offloaded": ("gpt", 4, {"zero_stage": 2, "offload": True}),
    "2 x data 2, zero3, recomputed": ("llama", 4, {"activation_checkpointing": "full"}),
    "4, zero2": ("gpt", 4, {"zero_stage": 2, "degrees": {"tensor_parallel_size": 4}}),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_norms_are_those_of_plain_pytorch(case: str, tmp_path: Path) -> None:
    model, num_ranks, arguments = CASES[case]
    config = make_config(num_ranks, MODELS[model], **({"degrees": {"tensor_parallel_size": 2}} | arguments))
    assert_steps_of_reference(train(tmp_path, config), model, arguments.get("precision", "fp32"))
