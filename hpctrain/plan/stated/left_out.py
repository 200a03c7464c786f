"""What a row leaves out and its other cells all but say: how many GPUs its nodes hold, the ZeRO stage of an offload."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpctrain.plan.devices import Device

_USUAL_GPUS_PER_NODE = {"GH200": 4, "MI250X": 4, "GB200": 4, "GB300": 4, "MI300A": 4, "MAX": 6}
"""Where it is not 8. Source: user guides of Alps (GH200), Frontier, Aurora and El Capitan (MI300A); GB200 NVL72's compute tray.
A die or a stack that is a GPU of its own makes twice as many."""

ZERO_OFFLOAD_STAGE = 2
"""Where the optimizer alone is offloaded, as ZeRO-Offload has it. Source: arXiv 2101.06840, section 4."""


def usual_gpus_per_node(device: Device) -> int:
    """GPUs of a node of this kind where nobody states them."""
    usual = _USUAL_GPUS_PER_NODE.get(device.family, 8)
    return 2 * usual if {"GCD", "TILE"} & set(device.name.split("-")) else usual


def stage_of_offload(row: Mapping[str, str | float | None]) -> int | None:
    """The ZeRO stage without which what a row offloads cannot be; None: the row states its stage, or offloads nothing.

    Parameters and what is on NVMe are offloaded in stage 3 alone; for the optimizer alone stages 1 and 3 do as well.

    >>> stage_of_offload({"offload_param": "cpu"}), stage_of_offload({"offload_optimizer": "cpu"})
    (3, 2)
    >>> stage_of_offload({"offload_param": "cpu", "zero_stage": 1.0}), stage_of_offload({"offload_param": "none"})
    (None, None)
    """
    moved = [name for name in ("offload_param", "offload_optimizer") if row.get(name) in ("cpu", "nvme")]
    if row.get("zero_stage") is not None or not moved:
        return None
    return 3 if "offload_param" in moved or "nvme" in (row[name] for name in moved) else ZERO_OFFLOAD_STAGE


def gpus_of_row(row: Mapping[str, str | float | None], device: Device | None) -> tuple[int, str] | None:
    """GPUs where they are not stated, and whence: of nodes as full as usual, else of the degrees; None: there is neither.

    Nodes count where the data-parallel degree is not stated and they hold whole replicas.

    >>> gpus_of_row({"tp": 4.0, "pp": 2.0}, None)
    (8, '8 GPUs from the degrees')
    """
    degrees = [row.get(name) for name in ("tp", "pp", "cp_sp", "dp")]
    replica = math.prod(int(degree or 1) for degree in degrees)
    nodes = row.get("nodes")
    if nodes is not None and device is not None and row.get("dp") is None:
        per_node = usual_gpus_per_node(device)
        if int(nodes) * per_node % replica == 0:
            return int(nodes) * per_node, f"{per_node} GPUs a node"
    if not any(row.get(name) for name in ("tp", "pp", "dp")):
        return None
    return replica, f"{replica} GPUs from the degrees"
