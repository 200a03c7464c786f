"""Seconds of one step that states and block inputs in host memory add to it, and those of the optimizer.

What a search passes as arrays goes through ``elementwise``, as in ``step_parts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.plan.elementwise import larger
from hpctrain.plan.speed.software import (
    BOUNDARY_GRADIENT_BYTES,
    GPU_MEMORY_SHARE,
    HOST_ADAM_BYTES_PER_PARAMETER,
    OFFLOADED_GRADIENT_BYTES,
    Software,
)
from hpctrain.units import GIGA

if TYPE_CHECKING:
    from hpctrain.plan.speed.step_parts import Machine, Setup


def host_parts(setup: Setup, machine: Machine, software: Software, micro_step_s: float) -> dict[str, float]:
    """Traffic between GPU and host memory that compute does not hide.

    A parameter comes for each of the two passes; gradients go as ``software`` counts them; an updated parameter comes back in the
    step, when nothing else runs. Block inputs go in the forward and come in the backward pass: from pinned memory beside compute,
    or in copies that block (DeepSpeed until 2025, runtime/activation_checkpointing/checkpointing.py, copy_to_device).
    """
    if not (setup.offload_optimizer or setup.offload_param or setup.offload_activations):
        return {}
    assert machine.host_link_gb_per_s is not None, "callers check that an offload has a link to the host"
    rate, steps = machine.host_link_gb_per_s * GIGA, setup.num_micro_steps
    shard, size = setup.held_parameters, setup.bytes_per_element
    beside = once = blocking_s = 0.0
    if setup.offload_param:
        beside += 2 * shard * size * steps
    if setup.offload_activations:
        inputs = setup.shape.num_layers / setup.pipeline_degree * setup.tokens_per_micro_step * setup.shape.hidden_size
        traffic = 2 * inputs * size * steps / (setup.tensor_degree if setup.split_block_inputs else 1)
        if software.input_copy_gb_per_s is None:
            beside += traffic
        else:
            blocking_s = traffic / (software.input_copy_gb_per_s * GIGA)
    if setup.offload_optimizer:
        moved = shard * setup.offload_ratio
        beside += moved * (OFFLOADED_GRADIENT_BYTES * steps + BOUNDARY_GRADIENT_BYTES)
        once = moved * size
    exposed = larger(0.0, beside / rate - software.host_overlap * micro_step_s * steps)
    return {"host link": exposed + once / rate + blocking_s}


def optimizer_parts(setup: Setup, machine: Machine, software: Software) -> dict[str, float]:
    """Adam is bound by memory: on the GPU by its own, on the host by that of the node, shared by its ranks.

    Where a part is on the host, one is stepped after the other (DeepSpeed 0.19.8, runtime/zero/stage3.py step).
    """
    on_host = setup.held_parameters * setup.offload_ratio if setup.offload_optimizer else 0.0
    on_gpu = (setup.held_parameters - on_host) * software.adam_bytes
    parts = {"optimizer": on_gpu / (machine.memory_gb_per_s * GIGA * GPU_MEMORY_SHARE)}
    if setup.offload_optimizer:
        assert machine.host_memory_gb_per_s is not None, (
            "callers check that an optimizer on the CPU has its memory's rate"
        )
        ranks = min(machine.gpus_per_node, setup.num_gpus)
        rate = machine.host_memory_gb_per_s * GIGA * software.host_memory_share * machine.host_adam
        parts["optimizer on the CPU"] = on_host * HOST_ADAM_BYTES_PER_PARAMETER * ranks / rate
    return parts
