"""Data types: which GPU computes in which, and the loss scale of fp16."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.test_run_plan import plan_of

ON_GPUS = ("model=1.3b", "hardware=ndm_a100_v4", "training.micro_batch_size=1")
FP16 = "training.precision=fp16"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            ["hardware.gpu=Tesla V100-SXM2-32GB"],
            [
                "training.precision=bf16",
                "V100-SXM-32GB",
                "fp32 15.7, fp16 125 TFLOP/s",
                "nearest: training.precision=fp16",
            ],
            id="no-bf16",
        ),
        pytest.param(
            ["hardware.gpu=Tesla T4"],
            [
                "T4-PCIE-16GB",
                "fp32 8.1, fp16 65 TFLOP/s",
                "nearest: training.precision=fp16 or training.precision=fp32",
            ],
            id="no-bf16-on-a-t4",
        ),
        pytest.param(
            ["training.loss_scale=128"], ["training.loss_scale=128", "this run is in bf16", "precision=fp16"], id="bf16"
        ),
        pytest.param(
            ["training.hysteresis=1", "training.precision=fp32"], ["hysteresis=1", "this run is in fp32"], id="fp32"
        ),
        pytest.param(
            [FP16, "training.loss_scale=128", "training.loss_scale_window=5"],
            ["loss_scale_window=5", "loss_scale=128 is a fixed one", "training.loss_scale=null"],
            id="fixed",
        ),
        pytest.param(
            [FP16, "training.initial_scale_power=4", "training.min_loss_scale=32"],
            ["min_loss_scale=32", "2^4 = 16", "nearest: 16"],
            id="above-the-first",
        ),
    ],
)
def test_problems_of_data_types(words: list[str], expected: list[str]) -> None:
    # The GPU of these words is another one than the numbers of the file are of, which is told too.
    (problem,) = (each for each in plan_of(*ON_GPUS, *words).problems if each.key != "hardware.gpu")
    assert all(text in str(problem) for text in expected), str(problem)


@pytest.mark.parametrize(
    ("words", "section"),
    [
        pytest.param(
            [],
            {
                "enabled": True,
                "loss_scale": 0,
                "initial_scale_power": 16,
                "loss_scale_window": 1000,
                "min_loss_scale": 1,
                "hysteresis": 2,
            },
            id="dynamic",
        ),
        pytest.param(["training.loss_scale=128"], {"enabled": True, "loss_scale": 128.0}, id="fixed"),
    ],
)
def test_the_loss_scale_is_handed_on(words: list[str], section: dict[str, Any]) -> None:
    plan = plan_of(*ON_GPUS, FP16, *words)
    assert plan.problems == ()
    assert plan.ds_config["fp16"] == section
    assert "bf16" not in plan.ds_config


def test_fp16_takes_what_bf16_does_and_has_its_own_peak() -> None:
    fp16, bf16 = (plan_of(*ON_GPUS, f"training.precision={name}") for name in ("fp16", "bf16"))
    assert fp16.memory.terms == bf16.memory.terms
    assert (fp16.peak_tflops_per_gpu, fp16.achievable_tflops_per_gpu) == (312, 271.2)
    assert fp16.prediction == bf16.prediction


def test_fp16_on_a_processor_is_told_to_be_slow() -> None:
    plan = plan_of("model=tiny", "cluster=local", FP16)
    assert plan.problems == ()
    assert any("many times slower" in warning for warning in plan.warnings)


def test_a_gpu_that_the_table_lacks_may_compute_in_anything() -> None:
    assert plan_of(*ON_GPUS, "hardware.gpu=some-new-gpu", "~hardware.sources").problems == ()
