"""What DeepSpeed is told of NVMe: the sections of its configuration, and where the folder comes from."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpctrain.config.schema import HardwareConfig, ParallelismConfig
from hpctrain.plan.layout import Layout
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.nvme.tier import NvmeTier
from hpctrain.plan.rank_parameters import rank_parameters


def uses_nvme(parallelism: ParallelismConfig) -> bool:
    """Whether anything is moved there."""
    return "nvme" in (parallelism.offload_optimizer, parallelism.offload_param)


def with_nvme_path(parallelism: ParallelismConfig, hardware: HardwareConfig) -> ParallelismConfig:
    """The same with the hardware's folder where none is stated."""
    if not uses_nvme(parallelism) or parallelism.nvme_path is not None:
        return parallelism
    return dataclasses.replace(parallelism, nvme_path=hardware.nvme_path)


def with_nvme(
    ds_config: dict[str, Any], parallelism: ParallelismConfig, shape: ModelShape, layout: Layout, width: int
) -> dict[str, Any]:
    """DeepSpeed's configuration with the sections for NVMe; the ranks put their job's folder in the place of ``nvme_path``.

    Args:
        ds_config: the rest of it.
        parallelism: with its sub-group size and NVMe path.
        shape: the model.
        layout: the ranks.
        width: bytes of an element in the training type.
    """
    if not uses_nvme(parallelism) or parallelism.zero_stage != 3:
        return ds_config
    tier = NvmeTier(parallelism, rank_parameters(shape, layout), layout.zero_degree, width)
    zero = dict(ds_config["zero_optimization"])
    if parallelism.offload_optimizer == "nvme":
        zero["offload_optimizer"] = {
            **zero["offload_optimizer"],
            "device": "nvme",
            "nvme_path": parallelism.nvme_path,
            "buffer_count": tier.num_state_buffers,
            "pipeline_read": parallelism.pipeline_swaps,
            "pipeline_write": parallelism.pipeline_swaps,
        }
    if parallelism.offload_param == "nvme":
        zero["offload_param"] = {
            **zero["offload_param"],
            "device": "nvme",
            "nvme_path": parallelism.nvme_path,
            "buffer_count": tier.num_parameter_buffers,
            "buffer_size": tier.parameter_buffer_elements,
            # What is not swapped is a tensor of its own; the engine's middle tier for parameters would take whole sub-groups.
            "max_in_cpu": 0,
        }
    aio = parallelism.aio
    return {
        **ds_config,
        "zero_optimization": zero,
        "aio": {
            "block_size": aio.block_size,
            "queue_depth": aio.queue_depth,
            "intra_op_parallelism": aio.threads,
            "single_submit": aio.single_submit,
            "overlap_events": aio.overlap_events,
        },
    }
