"""The GPU of a hardware file, held against the device table: a name that nobody knows, numbers above its own data sheet."""

from __future__ import annotations

import re

from hpctrain.config.schema import HardwareConfig
from hpctrain.errors import ConfigError, Problem, nearest_names
from hpctrain.plan.devices import DEVICES, FAMILIES, Device, find_device

MOST_OF_DATA_SHEET = 1.1
"""Times its data sheet's what a GPU is stated to do: room for rounding; with 2:4 sparsity a rate is twice, in both directions a
link."""
MOST_OF_MEMORY = 1.05
"""Times the figure in its name; the same in GB of 1e9 bytes would be 1.07."""
LEAST_OF_DATA_SHEET = 0.5
"""Times its data sheet's what a GPU does at a low power limit; less are the rates of another one."""
MOST_OF_HOST_LINK = 1.5
"""Times the table's, which is what is measured of PCIe; its peak is 1.3 times that, both directions together twice the peak."""
_SPARSITY = " (twice as much counts 2:4 sparsity)"
_BOTH_WAYS = " (twice as much counts both directions)"


def gpu_problems(hardware: HardwareConfig) -> list[Problem]:
    """A GPU of which nothing is known, and numbers that the stated one cannot have."""
    if hardware.device != "cuda":
        return []
    device = known_device(hardware)
    if device is None:
        return _unknown_problems(hardware)
    above = [row for row in _held_against(hardware, device) if row[1] > row[3] * row[2]]
    sheet = device.source.partition(";")[0]
    if len(above) > 1:
        told = ", ".join(f"hardware.{key}={value:g} above {limit:g}" for key, value, limit, *_ in above)
        rule = f"has less than is stated: {told} ({sheet})"
        meant = _gpu_of_numbers(hardware)
        named = f"nearest: hardware.gpu={meant}" if meant else "name the GPU that the numbers are of"
        return [Problem("hardware.gpu", hardware.gpu, rule, f"{named}, or state those of this one")]
    return [
        Problem(
            f"hardware.{key}",
            f"{value:g}",
            f"is above what hardware.gpu={hardware.gpu} has, {limit:g} by the {sheet}",
            f"nearest: {limit:g}{hint}; another GPU has a hardware.gpu of its own",
        )
        for key, value, limit, _, hint in above
    ]


def gpu_warnings(hardware: HardwareConfig) -> list[str]:
    """A GPU whose numbers nobody can hold against anything, that are far below its own, or that nobody uses."""
    if hardware.device != "cuda":
        if hardware.gpu_memory_gib is None:
            return []
        return [
            f"hardware.device=cpu: ranks run on the processor, and hardware.gpu_memory_gib={hardware.gpu_memory_gib:g} is not"
            " used; ranks on GPUs take hardware.device=cuda"
        ]
    device = known_device(hardware)
    if device is None:
        near = nearest_names(hardware.gpu, DEVICES)
        meant = f"; if it is a slip, the nearest: {', '.join(near)}" if near else ""
        return [
            f"hardware.gpu={hardware.gpu} is not in the device table: the numbers of hardware={hardware.name} count as stated"
            f" (peak: {_peak_source(hardware) or 'without a source'}){meant}"
        ]
    low = [
        (precision, peak, sheet)
        for precision, peak in hardware.peak_tflops.items()
        if (sheet := device.peak_tflops.get(precision)) and peak < LEAST_OF_DATA_SHEET * sheet
    ]
    warnings = [
        f"hardware.peak_tflops.{precision}={peak:g} is {peak / sheet:.2g} x the {sheet:g} of hardware.gpu={hardware.gpu}"
        f" ({device.source.partition(';')[0]}): are the rates another GPU's?"
        for precision, peak, sheet in low[:1]
    ]
    link, known = hardware.host_link_gb_per_s, device.host_link_gb_per_s
    if link is not None and link > MOST_OF_HOST_LINK * known:
        warnings.append(
            f"hardware.host_link_gb_per_s={link:g} is {link / known:.2g} x the {known:g} GB/s one way between"
            f" hardware.gpu={hardware.gpu} and its host; does it count both directions?"
        )
    return warnings


def known_device(hardware: HardwareConfig) -> Device | None:
    """The GPU of the table that is meant; of names without a memory the one with that of the hardware file."""
    for memory_gb in (hardware.gpu_memory_gib, None):
        try:
            return find_device(hardware.gpu, memory_gb)
        except ConfigError:
            continue
    return None


def _held_against(hardware: HardwareConfig, device: Device) -> list[tuple[str, float, float, float, str]]:
    """Key, stated value, the data sheet's, how many times that is the most, and a hint of what twice as much counts."""
    rows: list[tuple[str, float | None, float | None, float, str]] = [
        (f"peak_tflops.{precision}", peak, device.peak_tflops.get(precision), MOST_OF_DATA_SHEET, _SPARSITY)
        for precision, peak in hardware.peak_tflops.items()
    ]
    memory_rate, link = device.memory_gb_per_s, device.link_gb_per_s
    rows += [
        ("gpu_memory_gib", hardware.gpu_memory_gib, device.memory_gb, MOST_OF_MEMORY, ""),
        ("gpu_memory_gb_per_s", hardware.gpu_memory_gb_per_s, memory_rate, MOST_OF_DATA_SHEET, ""),
        ("intra_node_gb_per_s", hardware.intra_node_gb_per_s, link, MOST_OF_DATA_SHEET, _BOTH_WAYS),
    ]
    return [
        (key, value, limit, most, hint)
        for key, value, limit, most, hint in rows
        if value is not None and limit is not None
    ]


def _unknown_problems(hardware: HardwareConfig) -> list[Problem]:
    """Of a GPU that nobody knows the peak must be stated, and be its own: after a slip it is that of the GPU that was meant."""
    source, foreign = _peak_source(hardware), ""
    if source:
        foreign = next((word for word in re.findall(r"\w+", source) if word in FAMILIES), "")
    if hardware.peak_tflops and not foreign:
        return []
    rule = "is not in the device table, and "
    if foreign:
        rule += f"hardware.peak_tflops of hardware={hardware.name} is that of the {foreign}, by its source: {source}"
    else:
        rule += "hardware.peak_tflops, which says what it can do, is not stated"
    near = nearest_names(hardware.gpu, DEVICES)
    meant = next(iter(near), None) or _gpu_of_numbers(hardware)
    named = f"nearest: hardware.gpu={meant}" if meant else f"known: {', '.join(DEVICES)}"
    fix = f"{named}; of a new one state hardware.peak_tflops with its own source"
    # Without a peak speeds and rates are untold, and memory and layout stand; a foreign one contradicts itself.
    return [Problem("hardware.gpu", hardware.gpu, rule, fix, kind="config" if foreign else "rate")]


def _gpu_of_numbers(hardware: HardwareConfig) -> str | None:
    """Name of the GPU whose data sheet is the nearest to what is stated, and nowhere below; None: there is none."""
    distances: dict[str, float] = {}
    for device in DEVICES.values():
        rows = _held_against(hardware, device)
        if rows and all(value <= most * limit for _, value, limit, most, _ in rows):
            distances[device.name] = max(limit / value for _, value, limit, _, _ in rows)
    return min(distances, key=lambda name: distances[name], default=None)


def _peak_source(hardware: HardwareConfig) -> str:
    """What the hardware file says of where its peak is from, the first of them; empty: nothing."""
    keys = [f"peak_tflops.{precision}" for precision in hardware.peak_tflops]
    return next((hardware.sources[key] for key in (*keys, "peak_tflops") if key in hardware.sources), "")
