"""Gradients of real ranks: those of one process, element by element, in every stage of ZeRO.

Measured here (torch 2.13, DeepSpeed 0.19.8): see ``GRADIENT_TOLERANCE``; fp32 within 8e-7, fp16 within 2e-3, bf16 within 2.4e-2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.gradients import GRADIENT_TOLERANCE, gradient_differences
from tests.worker.reference import MODELS
from tests.worker.run_folder import make_config

pytestmark = pytest.mark.train

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("gpt", {"zero_stage": 0}),
    "zero1, accumulation 2": ("gpt", {"zero_stage": 1, "gradient_accumulation_steps": 2, "micro_batch_size": 2}),
    "zero2, llama": ("llama", {"zero_stage": 2}),
    "zero3": ("gpt", {"zero_stage": 3}),
    "ddp, fp16, llama": ("llama", {"zero_stage": 0, "precision": "fp16"}),
    "zero3, bf16": ("gpt", {"zero_stage": 3, "precision": "bf16"}),
    "zero2, fp16": ("gpt", {"zero_stage": 2, "precision": "fp16"}),
    "ddp, bf16, accumulation 2, recomputed": (
        "gpt",
        {
            "zero_stage": 0,
            "precision": "bf16",
            "activation_checkpointing": "full",
            "gradient_accumulation_steps": 2,
            "micro_batch_size": 2,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_one_process(case: str, tmp_path: Path) -> None:
    model, arguments = CASES[case]
    config = make_config(model=MODELS[model], num_steps=1, **arguments)
    differences = gradient_differences(tmp_path, config)
    tolerance = GRADIENT_TOLERANCE[arguments.get("precision", "fp32")]
    assert {name: value for name, value in differences.items() if value > tolerance} == {}
