"""Seconds of one step that reads and writes of NVMe add to it."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.plan.elementwise import larger
from hpctrain.units import GIGA


@dataclass(frozen=True)
class NvmeTraffic:
    """Bytes of one rank on NVMe, each of which passes once in each direction that is named."""

    state_bytes: int
    """Optimizer states: read and written in the step."""
    gradient_bytes: int
    """fp32 gradients: written in the last backward pass of a step, read in the step."""
    parameter_bytes: int
    """Read in each forward and in each backward pass, written in the step."""
    is_pipelined: bool
    """Sub-groups are read ahead and written behind while one is stepped."""


def nvme_parts(
    traffic: NvmeTraffic,
    ranks_per_node: int,
    rates: tuple[float | None, float | None],
    num_micro_steps: int,
    hidden_s: float,
    cpu_s: float,
) -> dict[str, float]:
    """Exposed seconds by part.

    In the passes reads and writes are hidden as far as traffic to host memory is. In the step a pipeline of three (read,
    Adam on the CPU, write) takes as long as its slowest part; one after another, as all of them. Left out: a pipeline's first
    read and last write.
    Source: Rajbhandari et al. 2021 (arXiv 2104.07857); DeepSpeed 0.19.8, runtime/swap_tensor/pipelined_optimizer_swapper.py.

    Args:
        traffic: of one rank.
        ranks_per_node: they share the node's NVMe.
        rates: reads and writes of a node, GB/s.
        num_micro_steps: forward and backward passes of a step.
        hidden_s: seconds of all passes that hide traffic.
        cpu_s: seconds of Adam on the CPU, which are counted elsewhere.

    >>> traffic = NvmeTraffic(12 * 10**9, 4 * 10**9, 0, is_pipelined=True)
    >>> nvme_parts(traffic, 8, (16.0, 8.0), 1, 100.0, 5.0)
    {'NVMe in the passes': 0.0, 'NVMe in the optimizer': 7.0}
    """
    read, write = rates
    assert read is not None, "callers check that NVMe has its rates"
    assert write is not None, "callers check that NVMe has its rates"
    read_rate, write_rate = read * GIGA / ranks_per_node, write * GIGA / ranks_per_node
    in_passes = 2 * num_micro_steps * traffic.parameter_bytes / read_rate + traffic.gradient_bytes / write_rate
    reading = (traffic.state_bytes + traffic.gradient_bytes) / read_rate
    writing = (traffic.state_bytes + traffic.parameter_bytes) / write_rate
    slowest = larger(max(reading, writing), cpu_s)
    in_step = slowest - cpu_s if traffic.is_pipelined else reading + writing
    return {"NVMe in the passes": larger(0.0, in_passes - hidden_s), "NVMe in the optimizer": in_step}
