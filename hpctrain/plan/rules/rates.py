"""Bandwidths that the time of a planned step depends on and its hardware file does not state."""

from __future__ import annotations

from hpctrain.config.schema import HardwareConfig
from hpctrain.errors import Problem
from hpctrain.plan.devices import find_device
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.rules.gpu import known_device
from hpctrain.plan.speed.step_time import missing_rates
from hpctrain.units import counted

_ASKED = {
    "gpu_memory_gb_per_s": ("every step reads and writes that memory", "of one GPU"),
    "intra_node_gb_per_s": ("the {gpus} of a node exchange data over it", "of one GPU, one direction"),
    "inter_node_gb_per_s": ("{nodes} exchange data over it", "of a node, all adapters together, one direction"),
    "host_link_gb_per_s": ("what is offloaded passes over it", "of one GPU, one direction"),
    "host_memory_gb_per_s": ("the optimizer on the CPU reads and writes it", "of a node, all sockets together"),
}
"""By key: what in the plan depends on it, and of what it is stated. Data sheets have all of them."""
_EXAMPLE_GPU = "A100-SXM-80GB"
"""Where nothing is known of the stated one."""
_ADAPTER_GB_PER_S = 25
"""An InfiniBand HDR adapter, 200 Gb/s; in the example of a network, one a GPU."""
_EXAMPLE_HOST = (409, "two sockets of eight channels of DDR4-3200")


def rate_problems(work: RankWork) -> list[Problem]:
    """One for each bandwidth that is missing.

    What else may be missing, a matmul rate that nobody measured or the rates of drives, which vendors do not publish, leaves the
    plan without a time and is told there (``prediction_gap``). Memory and layout stand all the same, so that ``--force`` submits.

    Args:
        work: of one rank.
    """
    hardware, layout = work.hardware, work.layout
    gpus, nodes = counted(layout.gpus_per_node, "GPU"), counted(layout.num_nodes)
    problems = []
    for name in missing_rates(work):
        if name not in _ASKED:
            continue
        why, of_what = _ASKED[name]
        value, what_has_it = _example(name, hardware)
        rule = f"is not stated by hardware={hardware.name}, and {why.format(gpus=gpus, nodes=nodes)}"
        fix = f"state it there or here, GB/s {of_what}, such as hardware.{name}={value:g} ({what_has_it})"
        problems.append(Problem(f"hardware.{name}", "null", rule, fix, kind="rate"))
    return problems


def _example(name: str, hardware: HardwareConfig) -> tuple[float, str]:
    """A value and what has it: where it is known the stated GPU."""
    if name == "inter_node_gb_per_s":
        adapters = counted(hardware.gpus_per_node, "adapter")
        return hardware.gpus_per_node * _ADAPTER_GB_PER_S, f"{adapters} of {8 * _ADAPTER_GB_PER_S} Gb/s"
    if name == "host_memory_gb_per_s":
        return _EXAMPLE_HOST
    device = known_device(hardware) or find_device(_EXAMPLE_GPU)
    links = {"intra_node_gb_per_s": device.link_gb_per_s, "gpu_memory_gb_per_s": device.memory_gb_per_s}
    return links.get(name) or device.host_link_gb_per_s, device.name
