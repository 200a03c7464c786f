"""Whether this rank's device computes in the run's data type."""

from __future__ import annotations

import torch
from deepspeed.accelerator import get_accelerator

from hpctrain.config.schema import Precision
from hpctrain.worker.end_reasons import RankEnvironmentError

_BF16_CAPABILITY = (8, 0)
"""Source: NVIDIA, CUDA C++ programming guide, compute capabilities: __nv_bfloat16 on tensor cores from 8.0 on."""


def check_data_type(precision: Precision, device: torch.device) -> None:
    """Returns where the device can; the plan knows GPUs by their name alone, and a site may have named another.

    torch itself takes bf16 on any GPU and emulates it, and DeepSpeed takes fp16 on a CPU only if oneDNN has fast kernels for it,
    where torch's own, slow ones are as right.

    Raises:
        RankEnvironmentError: the GPU has no units for the type.
    """
    if device.type == "cpu" and precision == "fp16":
        get_accelerator().is_fp16_supported = lambda: True
    if device.type == "cuda" and precision == "bf16" and torch.version.hip is None:
        found = torch.cuda.get_device_capability(device)
        if found < _BF16_CAPABILITY:
            raise RankEnvironmentError(
                f"training.precision=bf16: {torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}, and"
                f" bf16 needs {_BF16_CAPABILITY[0]}.{_BF16_CAPABILITY[1]}; nearest: training.precision=fp16"
            )
