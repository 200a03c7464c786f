"""What a node is, measured by one of its ranks with the standard library: processors, memory, GPUs, network."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import hpctrain

_NETWORK = "/sys/class/net"
_FABRIC = "/sys/class/infiniband"
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def node_facts() -> dict[str, Any]:
    """All facts of this node as plain values, named as in ``record.launch_check.NodeCheck``."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "node_cpus": os.cpu_count() or 0,
        "host_memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": gpus_by_driver(),
        "interfaces": interfaces_up(),
        "fabric": fabric_ports(),
        "python": f"{sys.executable} {sys.version.split()[0]}",
        "package": f"{os.path.dirname(os.path.abspath(hpctrain.__file__))} {hpctrain.__version__}",
    }


def gpus_shown(environment: Mapping[str, str]) -> int | None:
    """How many GPUs the variables show to this task; None: they say nothing.

    >>> gpus_shown({"CUDA_VISIBLE_DEVICES": "0,1"}), gpus_shown({"CUDA_VISIBLE_DEVICES": ""}), gpus_shown({})
    (2, 0, None)
    """
    for name in _GPU_VARIABLES:
        if name in environment:
            return len([part for part in environment[name].split(",") if part.strip()])
    return None


def gpus_of_node(shown_to_ranks: Iterable[int | None]) -> int | None:
    """GPUs of a node from what its ranks are shown: the same list to all, or one GPU to each.

    >>> gpus_of_node([8] * 8), gpus_of_node([1] * 8), gpus_of_node([None, None]), gpus_of_node([1])
    (8, 8, None, 1)
    """
    counts = [count for count in shown_to_ranks if count is not None]
    if not counts:
        return None
    return max(counts) if max(counts) > 1 else sum(counts)


def gpus_by_driver() -> list[str]:
    """Name and memory of each GPU that NVIDIA's driver shows; empty without driver or binding."""
    if not os.path.exists("/dev/nvidiactl"):
        return []
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            f"{pynvml.nvmlDeviceGetName(handle)} {pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.1f} GiB"
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        return [f"driver: {error}"]


def interfaces_up(folder: str = _NETWORK) -> list[str]:
    """Names of the network interfaces that are up, without the loopback."""
    names = []
    for _, name in socket.if_nameindex():
        state = _word(f"{folder}/{name}/operstate")
        # Tunnels and virtual interfaces that carry traffic say «unknown».
        if name != "lo" and state in ("up", "unknown"):
            names.append(name)
    return sorted(names)


def fabric_ports(folder: str = _FABRIC) -> list[str]:
    """Ports of InfiniBand and RoCE adapters, such as ``mlx5_0/1 ACTIVE 200 Gb/sec (4X HDR)``; empty where there are none."""
    if not os.path.isdir(folder):
        return []
    ports = []
    for device in sorted(os.listdir(folder)):
        for port in sorted(os.listdir(f"{folder}/{device}/ports")):
            place = f"{folder}/{device}/ports/{port}"
            state = _word(f"{place}/state").partition(": ")[2]
            ports.append(f"{device}/{port} {state} {_word(f'{place}/rate')}")
    return ports


def _word(path: str) -> str:
    """The file's text; empty where the kernel shows none."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""
