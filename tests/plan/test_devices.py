"""The device table: every published spelling finds its GPU, and what is unknown is refused."""

from __future__ import annotations

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.errors import ConfigError
from hpctrain.plan.devices import DEVICES, find_device

SPELLINGS = [
    # As they stand in the published files, with the memory column beside them.
    ("A100", 80, "A100-SXM-80GB"),
    ("A100", 40, "A100-SXM-40GB"),
    ("A100 (AWS p4d, 400 Gb/s per node)", 40, "A100-SXM-40GB"),
    ("A100-40GB", 40, "A100-SXM-40GB"),
    ("A100-40GB (HCCPNV4h)", 40, "A100-SXM-40GB"),
    ("A100-80GB", 80, "A100-SXM-80GB"),
    ("A100-PCIE-40GB", 40, "A100-PCIE-40GB"),
    ("A100-SXM-80GB (ND A100 v4)", 80, "A100-SXM-80GB"),
    ("A100-SXM4-40GB", None, "A100-SXM-40GB"),
    ("H100-SXM-80GB", 80, "H100-SXM-80GB"),
    ("H100", 80, "H100-SXM-80GB"),
    ("V100 (DGX-2, 16 GPUs/node)", 32, "V100-SXM-32GB"),
    ("V100-SXM2-16GB", 16, "V100-SXM-16GB"),
    ("V100-SXM3-32GB (DGX-2)", 32, "V100-SXM-32GB"),
    # As torch and the vendors name them.
    ("8xA100 80GB", None, "A100-SXM-80GB"),
    ("8 x H100-SXM5-80GB", None, "H100-SXM-80GB"),
    ("A100", 79.15, "A100-SXM-80GB"),
    ("B200-192GB", None, "B200-SXM-180GB"),
    ("GB200 NVL72", 192, "GB200-186GB"),
    ("H200", 144, "H200-SXM-141GB"),
    ("NVIDIA GH200 120GB", None, "GH200-96GB"),
    ("Tesla T4", None, "T4-PCIE-16GB"),
    ("NVIDIA A100-SXM4-80GB", None, "A100-SXM-80GB"),
    ("NVIDIA A100 80GB PCIe", None, "A100-PCIE-80GB"),
    ("NVIDIA H100 80GB HBM3", None, "H100-SXM-80GB"),
    ("NVIDIA H100 PCIe", None, "H100-PCIE-80GB"),
    ("NVIDIA H100 NVL", None, "H100-NVL-94GB"),
    ("NVIDIA H200", None, "H200-SXM-141GB"),
    ("NVIDIA GH200 480GB", None, "GH200-96GB"),
    ("NVIDIA B200", None, "B200-SXM-180GB"),
    ("GB200", None, "GB200-186GB"),
    ("AMD Instinct MI300X OAM", None, "MI300X-192GB"),
    ("MI250X", None, "MI250X-128GB"),
    ("Intel(R) Data Center GPU Max 1550", None, "MAX-1550-128GB"),
    ("Max 1550 (one tile)", 64, "MAX-1550-TILE-64GB"),
    ("Max 1550 tile", None, "MAX-1550-TILE-64GB"),
    ("H100-SXM-96GB", 96, "H100-SXM-96GB"),
    ("Intel Max 1550", 64, "MAX-1550-TILE-64GB"),
    ("PVC tile", None, "MAX-1550-TILE-64GB"),
    # As users write them.
    ("H100", 94, "H100-SXM-96GB"),
    ("H100 NVL", 94, "H100-NVL-94GB"),
    ("GH200", 120, "GH200-96GB"),
    ("MI250X", 64, "MI250X-GCD-64GB"),
    ("A100-SXM-80GB Selene", None, "A100-SXM-80GB"),
    ("h100-sxm", None, "H100-SXM-80GB"),
    ("A100 80 GB SXM", None, "A100-SXM-80GB"),
    ("A100 (80GB, PCIe)", None, "A100-PCIE-80GB"),
    ("DGX A100", 40, "A100-SXM-40GB"),
    ("nvidia_a100-sxm4-80gb", 80, "A100-SXM-80GB"),
    ("A800 80G", 80, "A800-SXM-80GB"),
    ("A10G", 24, "A10G-24GB"),
    ("MI250X (one GCD)", None, "MI250X-GCD-64GB"),
    ("GB300 NVL72", None, "GB300-288GB"),
    ("NVIDIA GeForce RTX 4090", None, "RTX4090-24GB"),
    ("NVIDIA RTX 6000 Ada Generation", None, "RTX6000ADA-48GB"),
    ("NVIDIA RTX A6000", None, "A6000-48GB"),
    ("TITAN RTX", 24, "TITANRTX-24GB"),
]


@pytest.mark.parametrize(("spelling", "memory_gb", "name"), SPELLINGS, ids=[s[0] for s in SPELLINGS])
def test_spellings(spelling: str, memory_gb: float | None, name: str) -> None:
    assert find_device(spelling, memory_gb).name == name


def test_each_name_of_the_table_finds_itself() -> None:
    assert [find_device(name).name for name in DEVICES] == list(DEVICES)


@pytest.mark.parametrize(
    ("spelling", "memory_gb", "message"),
    [
        pytest.param("TITAN V", 12, r"gpu=TITAN V with 12 GB: is not in the device table; .*known: A10-", id="other"),
        pytest.param("A10X", None, "gpu=A10X: is not in the device table", id="alike"),
        pytest.param("H100-SXM-64GB", None, "gpu=H100-SXM-64GB: .*H100-SXM-80GB", id="memory"),
        pytest.param("A100", 64, "gpu=A100 with 64 GB: .*A100-SXM-40GB", id="memory-beside"),
        pytest.param("V100-NVL", None, "gpu=V100-NVL", id="form"),
        pytest.param("H100 or so", None, "gpu=H100 or so", id="further-words"),
        pytest.param("", None, "known: A10-24GB", id="nothing"),
    ],
)
def test_unknown_gpus(spelling: str, memory_gb: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_device(spelling, memory_gb)


def test_host_links() -> None:
    """A card of two dies has both of their links; PCIe doubles with each generation, and stays below its raw rate."""
    die, card = (DEVICES[name].host_link_gb_per_s for name in ("MI250X-GCD-64GB", "MI250X-128GB"))
    assert (die, card) == (36, 72)
    links = [DEVICES[f"{name}GB"].host_link_gb_per_s for name in ("V100-SXM-32", "A100-SXM-80", "H100-SXM-80")]
    assert links == [12, 25, 50]
    assert all(link < raw for link, raw in zip(links, (15.75, 31.5, 63.0), strict=True))


def test_measured_rates_stay_below_the_peaks_and_each_device_has_a_source() -> None:
    for device in DEVICES.values():
        assert device.source
        for data_type, rate in device.achievable_tflops.items():
            # 51 % (MI300X) to 87 % (A100) by published measurements.
            assert 0.5 * device.peak_tflops[data_type] < rate < 0.9 * device.peak_tflops[data_type], device.name


@pytest.mark.parametrize("name", ["dgx_h100", "hccpnv4h", "hgx_h200", "ndm_a100_v4"])
def test_hardware_files_agree_with_the_table(name: str) -> None:
    """Two places state a peak, since a site may own a GPU that the table lacks; the shipped ones must not differ."""
    (point,) = compose_points(["model=tiny", f"hardware={name}"], multirun=False)
    hardware = point.config.hardware
    device = find_device(hardware.gpu)
    assert hardware.peak_tflops == {key: device.peak_tflops[key] for key in hardware.peak_tflops}
    assert hardware.achievable_tflops == {key: device.achievable_tflops[key] for key in hardware.achievable_tflops}
    assert set(hardware.achievable_tflops) == {"bf16", "fp16"}
    assert hardware.intra_node_gb_per_s == device.link_gb_per_s
    assert hardware.host_link_gb_per_s == device.host_link_gb_per_s
    assert hardware.gpu_memory_gib is not None
    assert 0.98 < hardware.gpu_memory_gib / device.memory_gb < 1
    assert hardware.gpu_memory_gb_per_s == device.memory_gb_per_s
