"""Other processes on this node's GPUs when a rank starts: left-overs of an earlier job, or another job that shares them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpctrain.plan.job.own_variables import RUN_VARIABLE
from hpctrain.units import gib

_SMALL_BYTES = 2**30
"""What a GPU without any process may hold for its driver. A choice, above the reserve of today's GPUs (0.5 to 0.7 GiB)."""


def foreign_tenants(environment: Mapping[str, str], node: str) -> list[str]:
    """A warning for each process of another run that holds memory of a GPU which this task sees; empty: the GPUs are free.

    Args:
        environment: the task's variables; CUDA_VISIBLE_DEVICES says which GPUs are ours.
        node: this node.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return [f"node {node}: whether its GPUs are free is not known (nvidia-ml-py is not installed)"]
    try:
        pynvml.nvmlInit()
        found = [text for index, gpu in _visible_gpus(pynvml, environment) for text in _tenants(pynvml, index, gpu)]
    except pynvml.NVMLError as error:
        return [f"node {node}: whether its GPUs are free is not known ({error})"]
    return [f"node {node}: {text}" for text in found]


def _visible_gpus(nvml: Any, environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Name and handle of each GPU; by number in the order of the bus, which CUDA has where all GPUs are alike."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(nvml.nvmlDeviceGetCount()))) if visible is None else visible.split(",")
    for name in filter(None, map(str.strip, names)):
        if name.isdigit():
            yield name, nvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            yield name, nvml.nvmlDeviceGetHandleByUUID(name)


def _tenants(nvml: Any, index: str, gpu: Any) -> Iterator[str]:
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    for process in processes:
        if not _is_of_this_run(process.pid):
            # NVML does not tell the memory of processes in some drivers' containers and slices.
            memory = "an unknown part" if process.usedGpuMemory is None else gib(process.usedGpuMemory)
            yield f"GPU {index} is not free: {_described(process.pid)} holds {memory} of its memory"
    used = int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    if not processes and used > _SMALL_BYTES:
        yield f"GPU {index} is not free: {gib(used)} of its memory are held by no process that is seen from here"


def _is_of_this_run(pid: int) -> bool:
    """Another rank of this node may have been faster; its children and itself carry the run's name."""
    own = f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}".encode()
    try:
        return own in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _described(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return f"process {pid}"
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = str(owner)
    return f"process {pid} ({name}, of user {user})"
