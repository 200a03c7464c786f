"""GPUs of a node by the driver (NVML): memory, use and power for all processes together, without a CUDA context on them.

Never run on a GPU so far: its tests put a library of ours in the place of the driver's, below NVIDIA's Python binding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from hpctrain.record.schema import GpuSample


def gpu_names(uuid: str, cuda_index: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """NVML's names of a rank's GPU, the first that NVML knows is the right one.

    NVML counts all GPUs of the node and ignores CUDA_VISIBLE_DEVICES, so a CUDA index says nothing to it; the UUID does.
    For a slice of a GPU (MIG), which CUDA only sees when it is named in CUDA_VISIBLE_DEVICES, that name is taken.

    Args:
        uuid: as torch gives it, without prefix.
        cuda_index: the rank's GPU among those it sees.
        environment: with CUDA_VISIBLE_DEVICES, if that is set.

    >>> gpu_names("0a1b", 1, {"CUDA_VISIBLE_DEVICES": "2,3"})
    ('GPU-0a1b', 'MIG-0a1b')
    >>> gpu_names("0a1b", 0, {"CUDA_VISIBLE_DEVICES": "MIG-77ee"})
    ('MIG-77ee',)
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if cuda_index < len(visible) and visible[cuda_index].strip().startswith("MIG-"):
        return (visible[cuda_index].strip(),)
    return (f"GPU-{uuid}", f"MIG-{uuid}")


class NodeGpus:
    """The GPUs of a node's ranks, in the order of their local ranks."""

    def __init__(self, names_by_local_rank: Sequence[tuple[str, ...]]) -> None:
        """Finds the GPUs.

        Args:
            names_by_local_rank: what ``gpu_names`` gave to each rank of the node.

        Raises:
            pynvml.NVMLError: no driver, or it refuses.
        """
        import pynvml  # type: ignore[import-untyped]

        self._nvml: ModuleType = pynvml
        pynvml.nvmlInit()
        self._handles = [_handle(pynvml, names) for names in names_by_local_rank]

    @property
    def unseen(self) -> tuple[int, ...]:
        """Local ranks whose GPU this process may not look at, as when Slurm binds one GPU to each task."""
        return tuple(local_rank for local_rank, handle in enumerate(self._handles) if handle is None)

    def samples(self) -> tuple[GpuSample, ...]:
        """One sample of each GPU seen; ``index`` is the local rank.

        Raises:
            pynvml.NVMLError: the driver refuses, or a GPU is lost.
        """
        return tuple(
            _sample(self._nvml, local_rank, handle)
            for local_rank, handle in enumerate(self._handles)
            if handle is not None
        )


def _handle(nvml: Any, names: tuple[str, ...]) -> Any | None:
    for name in names:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NoPermission):
            continue
    return None


def _sample(nvml: Any, local_rank: int, handle: Any) -> GpuSample:
    # The first version of the call counts what the driver keeps for itself as used, so that used + free = total.
    # Source: NVML API reference, nvmlMemory_t, nvmlDeviceGetUtilizationRates (percent), nvmlDeviceGetPowerUsage (milliwatts).
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    rates = _if_supported(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _if_supported(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuSample(
        index=local_rank,
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        utilisation=None if rates is None else rates.gpu / 100,
        power_w=None if milliwatts is None else milliwatts / 1e3,
    )


def _if_supported(nvml: Any, call: Any, handle: Any) -> Any | None:
    """What the driver says; None where it says nothing of the kind, as of the use and power of a MIG slice."""
    try:
        return call(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NoPermission):
        return None
