"""What a rank says of a device that does not compute in the run's data type, before the first step."""

from __future__ import annotations

import pytest
import torch
from deepspeed.accelerator import get_accelerator

from hpctrain.worker.data_type import check_data_type
from hpctrain.worker.end_reasons import EXIT_CODES, RankEnvironmentError

GPU = torch.device("cuda", 0)


def with_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def test_a_gpu_without_bf16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, "Tesla V100-SXM2-32GB", (7, 0))
    expected = (
        r"precision=bf16: Tesla V100-SXM2-32GB has compute capability 7\.0, and bf16 needs 8\.0; .*precision=fp16"
    )
    with pytest.raises(RankEnvironmentError, match=expected) as caught:
        check_data_type("bf16", GPU)
    assert EXIT_CODES[caught.value.reason] == 11
    check_data_type("fp16", GPU)
    check_data_type("fp32", GPU)


def test_newer_gpus_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, "NVIDIA H200", (9, 0))
    check_data_type("bf16", GPU)


def test_deepspeed_is_told_that_a_processor_computes_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = get_accelerator()
    monkeypatch.setattr(accelerator, "is_fp16_supported", lambda: None)
    check_data_type("fp16", torch.device("cpu"))
    assert accelerator.is_fp16_supported()
    # It is true: torch has kernels of its own.
    product = torch.full((2, 2), 0.5, dtype=torch.float16) @ torch.full((2, 2), 3.0, dtype=torch.float16)
    assert product.tolist() == [[3.0, 3.0], [3.0, 3.0]]
