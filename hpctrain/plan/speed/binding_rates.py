"""Which rate of the machine each part of the step waits for: a link, a memory, the matmul rate, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpctrain.plan.speed.software import Software
from hpctrain.plan.speed.step_parts import Machine, Setup, step_parts

FIXED = "fixed costs"
"""Of a part that no rate shortens: latency of messages, launches, host work of each block."""
_FIELDS: dict[str, tuple[str, ...]] = {
    "matmul rate": ("achievable_tflops",),
    "GPU memory": ("memory_gb_per_s",),
    "links in the node": ("link_gb_per_s",),
    "network": ("network_gb_per_s",),
    "host link": ("host_link_gb_per_s",),
    "host memory": ("host_memory_gb_per_s",),
    "NVMe": ("nvme_read_gb_per_s", "nvme_write_gb_per_s"),
}


def binding_rates(setup: Setup, machine: Machine, software: Software, parts_s: Mapping[str, float]) -> dict[str, str]:
    """By part, the rate that has the largest share of its time; ``FIXED`` where what no rate shortens has.

    A rate is doubled, all else kept: time that is bytes or FLOPs over it is halved, so its share is twice what is saved. No rule
    of a part stands here a second time.

    Args:
        setup: of one run; no arrays.
        machine: rates that are None stay so, their parts are not there.
        software: generation of the prediction.
        parts_s: of ``step_parts`` for the same.

    >>> from hpctrain.plan.stated.plain_shape import plain_shape
    >>> from hpctrain.plan.speed.software import SOFTWARE
    >>> setup = Setup(plain_shape(24, 2048, 50304), 2048, 1, 1, 64, zero_stage=3)
    >>> fast, slow = Machine(8, 271.2, 2039, 100, 200), Machine(8, 271.2, 2039, 100, 10)
    >>> for machine in fast, slow:
    ...     parts = step_parts(setup, machine, SOFTWARE["fsdp"])
    ...     binding_rates(setup, machine, SOFTWARE["fsdp"], parts)["parameter gathers"]
    'links in the node'
    'network'
    """
    shares: dict[str, dict[str, float]] = {name: {} for name in parts_s}
    for rate, fields in _FIELDS.items():
        stated: dict[str, Any] = {name: getattr(machine, name) for name in fields}
        if any(value is None for value in stated.values()):
            continue
        faster = step_parts(setup, replace(machine, **{name: 2 * value for name, value in stated.items()}), software)
        for part, seconds in parts_s.items():
            shares[part][rate] = 2 * (1 - faster.get(part, 0.0) / seconds)
    return {part: _largest(of_part) for part, of_part in shares.items()}


def _largest(shares: Mapping[str, float]) -> str:
    fixed = 1 - sum(max(0.0, share) for share in shares.values())
    rate = max(shares, key=lambda name: shares[name])
    return rate if shares[rate] > fixed else FIXED
