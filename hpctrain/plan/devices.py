"""The GPUs that the planner knows, by name: dense peaks, best measured matmul rate, memory and links.

Rates are 1e12 FLOP/s of one GPU as its data sheet counts it; links are GB/s in one direction. Half of a printed figure is
taken where the data sheet gives the rate with 2:4 sparsity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpctrain.errors import ConfigError, Problem, known_names_hint

ALLOCATABLE_SHARE = 0.99
"""Of the memory in a GPU's name, by public out-of-memory reports."""


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

    @property
    def allocatable_gib(self) -> float:
        """What a process can allocate."""
        return ALLOCATABLE_SHARE * self.memory_gb

    @property
    def family(self) -> str:
        """What all forms and memories of a chip have in common, such as A100."""
        return self.name.split("-")[0]


_MAMF = "best measured matmul: stas00/ml-engineering, compute/accelerator"
_PCIE3, _PCIE4, _PCIE5 = 12.0, 25.0, 50.0
"""x16, one direction, pinned memory, GB/s.

Source: third generation ZeRO-Infinity (arXiv 2104.07857), about 12 of 15.75; fourth nvbandwidth on 8 A100-SXM, 24.8 to 25 (NVIDIA
developer forum, topic 352186); fifth twice the fourth, an assumption."""
_MI250X_GEMM = {"fp16": 125.0, "bf16": 125.0}
"""Of one die. Source: best matmul that the authors of AxoNN measured on Frontier (arXiv 2502.08145, section 6)."""
_MAX_GEMM = {"fp16": 263.0, "bf16": 273.0}
"""Of one stack. Source: ALCF user guide, Aurora node performance overview, HGEMM and BF16GEMM."""
_MI250X_HOST = 36.0
"""Of one die, peak. Source: OLCF, Frontier user guide, Infinity Fabric CPU to GPU, 36 GB/s a direction."""
_A100 = {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0}
_V100 = {"fp32": 15.7, "fp16": 125.0}
_HOPPER = {"fp32": 67.0, "tf32": 494.5, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}


def _half(fp32: float, half: float, fp8: float | None = None) -> dict[str, float]:
    """Peaks of a card whose two 16-bit types are equally fast."""
    return {"fp32": fp32, "fp16": half, "bf16": half, **({} if fp8 is None else {"fp8": fp8})}


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
        {name: 2 * rate for name, rate in _MI250X_GEMM.items()},
    ),
    Device(
        "MI250X-GCD-64GB",
        64,
        {"fp32": 47.9, "fp16": 191.5, "bf16": 191.5},
        1638,
        200,
        _MI250X_HOST,
        "AMD Instinct MI250X data sheet, one of the two dies",
        _MI250X_GEMM,
    ),
    Device(
        "MAX-1550-128GB",
        128,
        {"fp32": 52.4, "tf32": 419.0, "fp16": 839.0, "bf16": 839.0},
        3277,
        400,
        _PCIE5,
        "Intel Data Center GPU Max 1550 specification, both stacks of a card together; vector units for fp32",
        {name: 2 * rate for name, rate in _MAX_GEMM.items()},
    ),
    Device(
        "MAX-1550-TILE-64GB",
        64,
        {"fp32": 26.2, "tf32": 209.5, "fp16": 419.5, "bf16": 419.5},
        1638,
        200,
        _PCIE5 / 2,
        "Intel Data Center GPU Max 1550 specification, one of the two stacks, which share the card's links",
        _MAX_GEMM,
    ),
    # Made for export: the same chips with fewer links, or with fewer units (H20).
    Device("A800-SXM-80GB", 80, _A100, 2039, 200, _PCIE4, f"NVIDIA A800 data sheet; {_MAMF} (A100)", _A100_RATE),
    Device("H800-SXM-80GB", 80, _HOPPER, 3350, 200, _PCIE5, f"NVIDIA H800 data sheet; {_MAMF} (H100)", _HOPPER_RATE),
    Device("H20-SXM-96GB", 96, _half(44.0, 148.0, 296.0), 4000, 450, _PCIE5, "NVIDIA H20 data sheet"),
    Device("A800-PCIE-80GB", 80, _A100, 1935, None, _PCIE4, "NVIDIA A800 data sheet, PCIe form"),
    Device(
        *("B300-SXM-288GB", 288, _half(75.0, 2250.0, 4500.0), 8000, 900, _PCIE5),
        f"NVIDIA HGX B300 data sheet; {_MAMF}",
        {"fp16": 1769.0, "bf16": 1769.0},
    ),
    Device(
        *("GB300-288GB", 288, _half(80.0, 2500.0, 5000.0), 8000, 900, 225),
        "NVIDIA GB300 NVL72 data sheet; host as GB200",
    ),
    # Cards without NVLink, or with a bridge for two. Rates with sums in fp32, which is half of the printed one on GeForce.
    Device("A40-48GB", 48, _half(37.4, 149.7), 696, None, _PCIE4, "NVIDIA A40 data sheet"),
    Device("A30-24GB", 24, _half(10.3, 165.0), 933, None, _PCIE4, "NVIDIA A30 data sheet"),
    Device("A10-24GB", 24, _half(31.2, 125.0), 600, None, _PCIE4, "NVIDIA A10 data sheet"),
    Device("A10G-24GB", 24, _half(31.5, 70.0), 600, None, _PCIE4, "NVIDIA A10G data sheet"),
    Device("A6000-48GB", 48, _half(38.7, 154.8), 768, None, _PCIE4, "NVIDIA RTX A6000 data sheet"),
    Device("L4-24GB", 24, _half(30.3, 121.0, 242.5), 300, None, _PCIE4, "NVIDIA L4 data sheet"),
    Device("L40-48GB", 48, _half(90.5, 181.0, 362.0), 864, None, _PCIE4, "NVIDIA L40 data sheet"),
    Device("L40S-48GB", 48, _half(91.6, 362.0, 733.0), 864, None, _PCIE4, "NVIDIA L40S data sheet"),
    Device("RTX6000ADA-48GB", 48, _half(91.1, 364.2, 728.5), 960, None, _PCIE4, "NVIDIA RTX 6000 Ada data sheet"),
    Device("TITANRTX-24GB", 24, {"fp32": 16.3, "fp16": 65.2}, 672, None, _PCIE3, "NVIDIA Turing white paper, table 4"),
    Device("RTX3090-24GB", 24, _half(35.6, 71.0), 936, None, _PCIE4, "NVIDIA GA102 white paper, table 2"),
    Device("RTX4090-24GB", 24, _half(82.6, 165.2, 330.3), 1008, None, _PCIE4, "NVIDIA Ada white paper, table 2"),
    Device("RTX5090-32GB", 32, _half(104.8, 209.5, 419.0), 1792, None, _PCIE5, "NVIDIA RTX Blackwell white paper"),
    Device("MI210-64GB", 64, _half(22.6, 181.0), 1638, None, _PCIE4, "AMD Instinct MI210 data sheet"),
    Device(
        "MI250-128GB", 128, _half(90.5, 362.1), 3277, 250, 2 * _MI250X_HOST, "AMD Instinct MI250 data sheet, both dies"
    ),
    Device(
        "MI300A-128GB",
        128,
        _half(122.6, 980.6, 1961.2),
        5300,
        192,
        192,
        "AMD Instinct MI300A data sheet; host in one memory",
    ),
    Device("MI325X-256GB", 256, _half(163.4, 1307.4, 2614.9), 6000, 448, _PCIE5, "AMD Instinct MI325X data sheet"),
    Device("MI350X-288GB", 288, _half(144.2, 2306.9, 4613.7), 8000, 537, _PCIE5, "AMD Instinct MI350X data sheet"),
    Device("MI355X-288GB", 288, _half(157.3, 2516.6, 5033.2), 8000, 537, _PCIE5, "AMD Instinct MI355X data sheet"),
)
DEVICES: dict[str, Device] = {device.name: device for device in _TABLE}

FAMILIES = frozenset(device.family for device in _TABLE)
_WORDS_BESIDE = set(
    "nvidia tesla geforce quadro amd instinct intel r data center gpu gpus hbm2 hbm2e hbm3 hbm3e dgx hgx oam ac corporation"
    " grace hopper ampere superchip nvlink nvswitch generation ada node nodes selene eos azure aws gcp p4d p4de p5 frontier lumi"
    " aurora polaris alps perlmutter juwels jupiter booster".split()
)
"""Of vendors, boards and systems: people write them beside a GPU's name, and they change nothing of what it is."""
_NUMBERS_BESIDE = (("MAX", "1550"), ("GB200", "nvl72"), ("GB300", "nvl72"))
"""The same of one family alone."""
_TWO_WORDS = (
    (re.compile(r"\b(?:rtx )?6000 ada\b"), "rtx6000ada"),
    (re.compile(r"\b(rtx|titan) (?=(?:\d|rtx))"), r"\1"),
    (re.compile(r"\brtx (?=a6000)"), ""),
    (re.compile(r"\b(\d+) ?g(?:i?b)?\b(?! ?/ ?s)"), r"\1gb"),
)
"""Names of two words as the table writes them, and a memory that stands apart from its unit; a rate of a network is none."""
_FORMS = {"sxm": "SXM", "pcie": "PCIE", "nvl": "NVL", "gcd": "GCD", "tile": "TILE", "stack": "TILE"}
_GRACE_MEMORY = {"480": "96", "120": "96"}
"""torch names the GH200 by the memory of its CPU."""
_ALMOST = 0.07
"""Between what a data sheet and what a machine say of one memory: 192 and 180 GB of a B200, 80 and 79.15 GiB of an A100."""


def find_device(name: str, memory_gb: float | None = None) -> Device:
    """The GPU that a text means: a name of the table, torch's, a data sheet's, or a spelling of the published files.

    What stands in brackets is a remark on the node, a count in front how many there are. Without a form it is the SXM one or the
    whole card, unless only another has the memory; without a memory the largest that fits ``name``.

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
        memory = _GRACE_MEMORY.get(memory, memory) if family == "GH200" else memory
    matches = [device for device in DEVICES.values() if device.family == family]
    of_form = [device for device in matches if form is None or f"-{form}-" in device.name]
    plain = [device for device in of_form if form is not None or device.name.count("-") == 1 or "-SXM-" in device.name]
    of_memory = _of_memory(plain, memory) or _of_memory(of_form, memory)
    if unknown or not of_memory:
        given = f"{name} with {memory} GB" if memory and f"{memory}g" not in name.lower() else name
        raise ConfigError([Problem("gpu", given, "is not in the device table", known_names_hint(name, DEVICES))])
    return of_memory[0]


def _of_memory(devices: list[Device], memory: str | None) -> list[Device]:
    """Those of that memory, or of nearly that; all, where it is not known."""
    exact = [device for device in devices if memory is None or str(device.memory_gb) == memory]
    if exact or memory is None:
        return exact
    near = [device for device in devices if abs(int(memory) / device.memory_gb - 1) <= _ALMOST]
    return sorted(near, key=lambda device: abs(int(memory) - device.memory_gb))


def _read_name(name: str) -> tuple[str, str | None, str | None, list[str]]:
    """Family, form, memory in GB, and the words that mean nothing here.

    Brackets hold remarks: a form or a memory counts where the name itself has none, other words do not.
    """
    text = re.sub(r"^\s*\d+ ?x ?", " ", re.sub(r"[-_,;]+", " ", name.lower()))
    for words, meant in _TWO_WORDS:
        text = words.sub(meant, text)
    family, form, memory, unknown = _read_words(re.sub(r"\(.*?\)", " ", text))
    _, remarked_form, remarked_memory, _ = _read_words(" ".join(re.findall(r"\((.*?)\)", text)))
    return family, form or remarked_form, memory or remarked_memory, unknown


def _read_words(text: str) -> tuple[str, str | None, str | None, list[str]]:
    family, form, memory, unknown = "", None, None, []
    for word in re.findall(r"[a-z0-9]+", text):
        if word.upper() in FAMILIES or word == "pvc":
            family = "MAX" if word == "pvc" else word.upper()
        elif word.rstrip("2345") in _FORMS:
            form = _FORMS[word.rstrip("2345")]
        elif match := re.fullmatch(r"(\d+)gb", word):
            memory = _GRACE_MEMORY.get(match[1], match[1]) if family == "GH200" else match[1]
        elif word not in _WORDS_BESIDE and (family, word) not in _NUMBERS_BESIDE:
            unknown.append(word)
    return family, form, memory, unknown
