"""The GPUs that the planner knows, by name: dense peaks, best measured matmul rate, memory and links.

Rates are 1e12 FLOP/s of one GPU as its data sheet counts it; links are GB/s in one direction. Half of a printed figure is
taken where the data sheet gives the rate with 2:4 sparsity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpctrain.errors import ConfigError, Problem, known_names_hint


@dataclass(frozen=True)
class Device:
    """One kind of GPU."""

    name: str
    memory_gb: int
    """As the name says it, in units of 2^30 bytes; what a process can allocate is about 1 % less."""
    peak_tflops: dict[str, float]
    """Dense peak by data type (fp32 without TF32, tf32, fp16, bf16, fp8)."""
    memory_gb_per_s: float
    link_gb_per_s: float | None
    """GPU to GPU inside a node; None: PCIe or a board of two, see the node."""
    host_link_gb_per_s: float
    source: str
    achievable_tflops: dict[str, float] = field(default_factory=dict)
    """Best measured matmul rate by data type; empty: nobody has published one."""


_MAMF = "best measured matmul: stas00/ml-engineering, compute/accelerator"
_PCIE3, _PCIE4, _PCIE5 = 12.0, 25.0, 50.0
"""x16, one direction, pinned memory, GB/s.

Source: third generation ZeRO-Infinity (arXiv 2104.07857), about 12 of 15.75; fourth nvbandwidth on 8 A100-SXM, 24.8 to 25 (NVIDIA
developer forum, topic 352186); fifth twice the fourth, an assumption."""
_MI250X_HOST = 36.0
"""Of one die, peak. Source: OLCF, Frontier user guide, Infinity Fabric CPU to GPU, 36 GB/s a direction."""
_A100 = {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0}
_V100 = {"fp32": 15.7, "fp16": 125.0}
_HOPPER = {"fp32": 67.0, "tf32": 494.5, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}
_A100_RATE = {"fp16": 271.2, "bf16": 271.2}
_HOPPER_RATE = {"fp16": 794.5, "bf16": 794.5, "fp8": 1453.0}

_TABLE = (
    Device("A100-SXM-80GB", 80, _A100, 2039, 300, _PCIE4, f"NVIDIA A100 data sheet; {_MAMF}", _A100_RATE),
    Device("A100-SXM-40GB", 40, _A100, 1555, 300, _PCIE4, f"NVIDIA A100 data sheet; {_MAMF}", _A100_RATE),
    Device(
        *("A100-PCIE-80GB", 80, _A100, 1935, None, _PCIE4, f"NVIDIA A100 data sheet; {_MAMF} (40 GB card)"),
        {"fp16": 252.9, "bf16": 252.9},
    ),
    Device(
        *("A100-PCIE-40GB", 40, _A100, 1555, None, _PCIE4, f"NVIDIA A100 data sheet; {_MAMF}"),
        {"fp16": 252.9, "bf16": 252.9},
    ),
    Device("V100-SXM-32GB", 32, _V100, 900, 150, _PCIE3, "NVIDIA V100 data sheet, NVLink form"),
    Device("V100-SXM-16GB", 16, _V100, 900, 150, _PCIE3, "NVIDIA V100 data sheet, NVLink form"),
    Device("V100-PCIE-32GB", 32, {"fp32": 14.0, "fp16": 112.0}, 900, None, _PCIE3, "NVIDIA V100 data sheet, PCIe form"),
    Device("V100-PCIE-16GB", 16, {"fp32": 14.0, "fp16": 112.0}, 900, None, _PCIE3, "NVIDIA V100 data sheet, PCIe form"),
    Device("T4-PCIE-16GB", 16, {"fp32": 8.1, "fp16": 65.0}, 320, None, _PCIE3, "NVIDIA T4 data sheet of 2019"),
    Device("H100-SXM-80GB", 80, _HOPPER, 3350, 450, _PCIE5, f"NVIDIA H100 data sheet, SXM; {_MAMF}", _HOPPER_RATE),
    Device(
        *("H100-SXM-96GB", 96, _HOPPER, 2400, 450, _PCIE5, f"torchtitan, benchmarks/ of 2024-12, HBM2e; {_MAMF}"),
        _HOPPER_RATE,
    ),
    Device(
        "H100-PCIE-80GB",
        80,
        {"fp32": 51.0, "tf32": 378.0, "fp16": 756.0, "bf16": 756.0, "fp8": 1513.0},
        2000,
        None,
        _PCIE5,
        "NVIDIA H100 data sheet of 2022, PCIe",
    ),
    Device(
        "H100-NVL-94GB",
        94,
        {"fp32": 60.0, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5, "fp8": 1670.5},
        3900,
        300,
        _PCIE5,
        "NVIDIA H100 data sheet of 2024, NVL; its bridge joins two to four cards",
    ),
    Device("H200-SXM-141GB", 141, _HOPPER, 4800, 450, _PCIE5, f"NVIDIA H200 data sheet; {_MAMF}", _HOPPER_RATE),
    Device(
        *("GH200-96GB", 96, _HOPPER, 4000, 450, 450, f"NVIDIA GH200 data sheet, NVLink-C2C to the host; {_MAMF}"),
        {"fp16": 828.6, "bf16": 828.6},
    ),
    Device(
        *("GH200-144GB", 144, _HOPPER, 4900, 450, 450, f"NVIDIA GH200 data sheet, HBM3e; {_MAMF} (96 GB card)"),
        {"fp16": 828.6, "bf16": 828.6},
    ),
    Device(
        "B200-SXM-180GB",
        180,
        {"fp32": 75.0, "tf32": 1125.0, "fp16": 2250.0, "bf16": 2250.0, "fp8": 4500.0},
        7700,
        900,
        _PCIE5,
        f"NVIDIA HGX B200 data sheet; {_MAMF}",
        {"fp16": 1745.0, "bf16": 1745.0, "fp8": 3432.0},
    ),
    Device(
        "GB200-186GB",
        186,
        {"fp32": 80.0, "tf32": 1250.0, "fp16": 2500.0, "bf16": 2500.0, "fp8": 5000.0},
        8000,
        900,
        225,
        f"NVIDIA GB200 NVL72 data sheet, half of NVLink-C2C's 450 GB/s a direction for each of two GPUs; {_MAMF}",
        {"fp16": 1822.0, "bf16": 1822.0},
    ),
    Device(
        "MI300X-192GB",
        192,
        {"fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9},
        5300,
        448,
        _PCIE5,
        f"AMD Instinct MI300X data sheet, seven links of 64 GB/s; {_MAMF}",
        {"fp16": 668.0, "bf16": 668.0},
    ),
    Device(
        "MI250X-128GB",
        128,
        {"fp32": 95.7, "fp16": 383.0, "bf16": 383.0},
        3277,
        250,
        2 * _MI250X_HOST,
        "AMD Instinct MI250X data sheet, both dies of a card together; a job sees two GPUs of half that",
    ),
    Device(
        "MI250X-GCD-64GB",
        64,
        {"fp32": 47.9, "fp16": 191.5, "bf16": 191.5},
        1638,
        200,
        _MI250X_HOST,
        "AMD Instinct MI250X data sheet, one of the two dies",
    ),
    Device(
        "MAX-1550-128GB",
        128,
        {"fp32": 52.4, "tf32": 419.0, "fp16": 839.0, "bf16": 839.0},
        3277,
        400,
        _PCIE5,
        "Intel Data Center GPU Max 1550 specification, both stacks of a card together; vector units for fp32",
    ),
    Device(
        "MAX-1550-TILE-64GB",
        64,
        {"fp32": 26.2, "tf32": 209.5, "fp16": 419.5, "bf16": 419.5},
        1638,
        200,
        _PCIE5 / 2,
        "Intel Data Center GPU Max 1550 specification, one of the two stacks, which share the card's links",
    ),
)
DEVICES: dict[str, Device] = {device.name: device for device in _TABLE}

_FAMILIES = {name.split("-")[0] for name in DEVICES}
_VENDOR_WORDS = set(
    "nvidia tesla amd instinct intel r data center gpu hbm2 hbm2e hbm3 hbm3e dgx hgx oam ac corporation".split()
)
_FORMS = {"sxm": "SXM", "pcie": "PCIE", "nvl": "NVL", "gcd": "GCD", "tile": "TILE", "stack": "TILE"}
_GRACE_MEMORY = {"480": "96", "120": "96"}
"""torch names the GH200 by the memory of its CPU."""
_ALMOST = 0.07
"""Between what a data sheet and what a machine say of one memory: 192 and 180 GB of a B200, 80 and 79.15 GiB of an A100."""


def find_device(name: str, memory_gb: float | None = None) -> Device:
    """The GPU that a text means: a name of the table, torch's, a data sheet's, or a spelling of the published files.

    What stands in brackets is a remark on the node, a count in front how many there are. Without a form it is the SXM one,
    without a memory the largest that fits ``name``.

    Args:
        name: such as ``A100-SXM4-80GB``, ``NVIDIA H100 80GB HBM3`` or ``A100-40GB (DGX)``.
        memory_gb: memory of one GPU where it is known otherwise; the name's own figure wins.

    Raises:
        ConfigError: no GPU of the table is meant; the message lists the known ones.

    >>> find_device("Tesla V100-SXM2-16GB").name, find_device("A100", memory_gb=40).name
    ('V100-SXM-16GB', 'A100-SXM-40GB')
    """
    family, form, memory, unknown = _read_name(name)
    if memory is None and memory_gb is not None:
        memory = str(round(memory_gb))
    matches = [device for device in DEVICES.values() if device.name.split("-")[0] == family]
    of_form = [device for device in matches if form is None or f"-{form}-" in device.name]
    of_memory = [device for device in of_form if memory is None or str(device.memory_gb) == memory]
    if memory and not of_memory:
        near = [device for device in of_form if abs(int(memory) / device.memory_gb - 1) <= _ALMOST]
        of_memory = sorted(near, key=lambda device: abs(int(memory) - device.memory_gb))
    if unknown or not of_memory:
        given = f"{name} with {memory} GB" if memory and f"{memory}g" not in name.lower() else name
        raise ConfigError([Problem("gpu", given, "is not in the device table", known_names_hint(name, DEVICES))])
    return of_memory[0]


def _read_name(name: str) -> tuple[str, str | None, str | None, list[str]]:
    """Family, form, memory in GB, and the words that mean nothing here."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)|^\s*\d+ ?x ?", " ", name.lower()))
    family, form, memory, unknown = "", None, None, []
    for word in words:
        if word.upper() in _FAMILIES or word == "pvc":
            family = "MAX" if word == "pvc" else word.upper()
        elif word.rstrip("2345") in _FORMS:
            form = _FORMS[word.rstrip("2345")]
        elif match := re.fullmatch(r"(\d+)gb?", word):
            memory = _GRACE_MEMORY.get(match[1], match[1]) if family == "GH200" else match[1]
        elif word not in _VENDOR_WORDS and (family, word) not in (("MAX", "1550"), ("GB200", "nvl72")):
            unknown.append(word)
    return family, form, memory, unknown
