"""What a job has of a GPU and of a node: as stated, by the device table, or as much as it asks Slurm for."""

from __future__ import annotations

import dataclasses

from hpctrain.config.schema import ClusterConfig, Config, HardwareConfig
from hpctrain.errors import Problem
from hpctrain.plan.devices import Device, find_device
from hpctrain.plan.rules.gpu import known_device
from hpctrain.plan.site.need import size_in_mib

_EXAMPLE_GPU = "A100-SXM-80GB"


def counted_hardware(config: Config) -> HardwareConfig:
    """The hardware with the memory that a plan is held against: of the GPU's table where the file states none, of a node no more
    than the job asks Slurm for.
    """
    hardware = config.hardware
    gpu, host, asked = hardware.gpu_memory_gib, hardware.host_memory_gib, _asked_gib(config.cluster)
    if (device := _device_of_table(hardware)) is not None:
        gpu = device.allocatable_gib
    if asked is not None:
        host = asked if host is None else min(host, asked)
    if (gpu, host) == (hardware.gpu_memory_gib, hardware.host_memory_gib):
        return hardware
    return dataclasses.replace(hardware, gpu_memory_gib=gpu, host_memory_gib=host)


def may_use_host(config: Config) -> bool:
    """Whether what nobody stated may be put into a node's memory: on GPUs only where its size is known."""
    return config.hardware.device == "cpu" or counted_hardware(config).host_memory_gib is not None


def asked_memory(config: Config) -> str:
    """What of a job gives it less than a node has, as key and value; empty: it gets all of a node, or that is not known."""
    asked, whole = _asked_gib(config.cluster), config.hardware.host_memory_gib
    if asked is None or (whole is not None and whole <= asked):
        return ""
    return f"cluster.memory_per_node={config.cluster.memory_per_node}"


def capacity_notes(hardware: HardwareConfig) -> tuple[str, ...]:
    """What is taken from the device table."""
    device = _device_of_table(hardware)
    if device is None:
        return ()
    return (
        f"hardware.gpu_memory_gib not stated: {device.allocatable_gib:g}, what a process can allocate of the"
        f" {device.memory_gb} GiB of {device.name}",
    )


def capacity_problems(hardware: HardwareConfig) -> tuple[Problem, ...]:
    """A GPU that nobody knows and whose memory is not stated: nothing can be held against it."""
    if hardware.device != "cuda" or hardware.gpu_memory_gib is not None or known_device(hardware) is not None:
        return ()
    example = find_device(_EXAMPLE_GPU)
    rule = (
        f"is not stated by hardware={hardware.name}, and hardware.gpu={hardware.gpu} is not in the device table: nobody knows"
        " what fits"
    )
    fix = (
        "state it there or here, GiB of one GPU that a process can allocate, such as"
        f" hardware.gpu_memory_gib={example.allocatable_gib:g} ({example.name})"
    )
    return (Problem("hardware.gpu_memory_gib", "null", rule, fix, kind="rate"),)


def _device_of_table(hardware: HardwareConfig) -> Device | None:
    """Where its memory is not stated."""
    is_open = hardware.device == "cuda" and hardware.gpu_memory_gib is None
    return known_device(hardware) if is_open else None


def _asked_gib(cluster: ClusterConfig) -> float | None:
    """Of a node; None: nothing is asked for, or all of it, which is 0 (sbatch(1), --mem)."""
    if cluster.kind != "slurm" or cluster.memory_per_node is None:
        return None
    return (size_in_mib(cluster.memory_per_node) or 0) / 1024 or None
