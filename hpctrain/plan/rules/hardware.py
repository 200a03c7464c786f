"""Rules that join numbers of one hardware file: what contradicts itself is in a wrong unit, or was mixed up."""

from __future__ import annotations

from hpctrain.config.schema import HardwareConfig
from hpctrain.errors import Problem
from hpctrain.plan.rules.gpu import gpu_problems, gpu_warnings

MOST_LINK_SHARE = 0.5
"""Of its memory's rate what a GPU sends to a peer. Of the GPUs that are sold it is a tenth to a sixth (A100 300 of 2,039 GB/s,
B200 900 of 8,000, V100 150 of 900); the link in Gb/s would come to 0.9 to 1.3."""
MOST_NETWORK_SHARE = 4.0
"""Times its link to the host what a GPU gets of the network, whose adapters hang on links as fast; in Gb/s it would be 8 times
as much."""
_MOST_GPUS = 8
"""Of a node, whose network a file may state though its node is planned with fewer."""

LEAST_GPU_TFLOPS = 1.0
"""Of a GPU; one of 2014 had 4 in fp32. Less is in 1e15 FLOP/s."""
LEAST_OF_PEAK = 0.1
"""What large products reach of the peak, at the least; of the GPUs that are measured it is half (MI300X) to 0.87 (A100)."""
LEAST_NETWORK_GB_PER_S = 1.0
"""Of a node of GPUs: 8 Gb/s. Slower is an office's network, or in TB/s."""
LEAST_HOST_GIB = 4.5
"""Of a node of GPUs; a small workstation has 8. Nodes that are sold have 0.1 to 4 TiB."""


def hardware_problems(hardware: HardwareConfig) -> list[Problem]:
    """Numbers that no machine can have together, each told once."""
    problems = [*_rate_problems(hardware), *_link_problems(hardware)]
    told = {problem.key for problem in problems}
    return [*problems, *(problem for problem in gpu_problems(hardware) if problem.key not in told)]


def _rate_problems(hardware: HardwareConfig) -> list[Problem]:
    """Peaks and what is measured of them, in another unit or exchanged."""
    problems = []
    for name in ("peak_tflops", "achievable_tflops"):
        rates = getattr(hardware, name)
        low = {precision: rate for precision, rate in rates.items() if rate < LEAST_GPU_TFLOPS}
        if hardware.device == "cuda" and low:
            precision, rate = next(iter(low.items()))
            rule = f"is below {LEAST_GPU_TFLOPS:g}, which every GPU has; it is in 1e12 FLOP/s"
            problems.append(
                Problem(f"hardware.{name}.{precision}", f"{rate:g}", rule, f"if it is in 1e15: {1000 * rate:g}")
            )
    if problems:
        return problems
    for precision, achievable in hardware.achievable_tflops.items():
        peak = hardware.peak_tflops.get(precision, achievable)
        if LEAST_OF_PEAK * peak <= achievable <= peak:
            continue
        rule = f"is above hardware.peak_tflops.{precision}={peak:g}, the most that a product can reach"
        fix = "exchange the two, or state both in 1e12 FLOP/s, dense"
        if achievable < peak:
            rule = f"is below {LEAST_OF_PEAK:g} x hardware.peak_tflops.{precision}={peak:g}, and large products reach half of it"
            fix = "state both in 1e12 FLOP/s, dense"
        problems.append(Problem(f"hardware.achievable_tflops.{precision}", f"{achievable:g}", rule, fix))
    return problems


def _link_problems(hardware: HardwareConfig) -> list[Problem]:
    """Links faster than the memory at their ends, or than those behind them."""
    problems = []
    link, memory = hardware.intra_node_gb_per_s, hardware.gpu_memory_gb_per_s
    if link is not None and memory is not None and link > MOST_LINK_SHARE * memory:
        problems.append(
            Problem(
                "hardware.intra_node_gb_per_s",
                f"{link:g}",
                f"is above {MOST_LINK_SHARE:g} x hardware.gpu_memory_gb_per_s={memory:g}, and a link between GPUs is far slower"
                " than their memory",
                f"if it is in Gb/s: {link / 8:g}",
            )
        )
    to_host = hardware.host_link_gb_per_s
    if to_host is not None and memory is not None and to_host > memory:
        rule = f"is above hardware.gpu_memory_gb_per_s={memory:g}, out of which it is fed"
        problems.append(
            Problem("hardware.host_link_gb_per_s", f"{to_host:g}", rule, f"if it is in Gb/s: {to_host / 8:g}")
        )
    network = hardware.inter_node_gb_per_s
    if network is not None and to_host is not None and network > _MOST_GPUS * MOST_NETWORK_SHARE * to_host:
        rule = (
            f"is more than {MOST_NETWORK_SHARE:g} x hardware.host_link_gb_per_s={to_host:g} for each of {_MOST_GPUS} GPUs, and"
            " adapters hang on links as fast"
        )
        problems.append(
            Problem("hardware.inter_node_gb_per_s", f"{network:g}", rule, f"if it is in Gb/s: {network / 8:g}")
        )
    return problems


def hardware_warnings(hardware: HardwareConfig) -> list[str]:
    """What is possible and most often a wrong unit."""
    warnings = gpu_warnings(hardware)
    network, link, gpus = hardware.inter_node_gb_per_s, hardware.host_link_gb_per_s, hardware.gpus_per_node
    most = None if link is None else MOST_NETWORK_SHARE * link
    if network is not None and most is not None and most * gpus < network <= most * _MOST_GPUS:
        warnings.append(
            f"hardware.inter_node_gb_per_s={network:g} are {network / gpus:g} GB/s for each GPU, more than"
            f" {MOST_NETWORK_SHARE:g} x hardware.host_link_gb_per_s={link:g}; if it is in Gb/s: {network / 8:g}"
        )
    if network is not None and hardware.device == "cuda" and network < LEAST_NETWORK_GB_PER_S:
        warnings.append(
            f"hardware.inter_node_gb_per_s={network:g} is {8 * network:g} Gb/s for a node of {hardware.gpus_per_node} GPUs: a"
            f" network of an office; if it is in TB/s: {1000 * network:g}"
        )
    memory = hardware.host_memory_gib
    if memory is not None and hardware.device == "cuda" and memory < LEAST_HOST_GIB:
        warnings.append(
            f"hardware.host_memory_gib={memory:g} is little for a node of {hardware.gpus_per_node} GPUs; if it is in TiB:"
            f" {1024 * memory:g}"
        )
    return warnings
