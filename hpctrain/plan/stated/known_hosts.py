"""Memory bandwidth of the hosts that GPUs stand in, where a row says nothing of its processors."""

from __future__ import annotations

_USUAL_GB_PER_S = {
    "V100": 256.0,
    "A100": 409.0,
    **dict.fromkeys(("H100", "H200", "H800", "H20"), 614.0),
    **dict.fromkeys(("B200", "B300"), 717.0),
    "MI250X": 205.0,
}
"""By family. Two sockets: six channels of DDR4-2666, eight of DDR4-3200, eight of DDR5-4800, eight of DDR5-5600 (DGX B200, Xeon
8570); one socket of eight channels of DDR4-3200 (Frontier)."""


def host_memory_gb_per_s(family: str) -> float:
    """Of a node, GB/s; of families that nobody has looked up that of an A100's, an assumption.

    >>> host_memory_gb_per_s("H200"), host_memory_gb_per_s("L40S")
    (614.0, 409.0)
    """
    return _USUAL_GB_PER_S.get(family, _USUAL_GB_PER_S["A100"])
