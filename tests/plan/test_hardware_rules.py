"""Hardware files with a number in another unit, or two that contradict each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpctrain.config.schema import HardwareConfig
from hpctrain.config.strict_values import read_strictly
from hpctrain.errors import ConfigError
from hpctrain.plan.rules.hardware import hardware_problems, hardware_warnings

A100: dict[str, Any] = {
    "name": "site",
    "device": "cuda",
    "gpu": "A100-SXM4-80GB",
    "gpus_per_node": 8,
    "cpu": "any",
    "cpu_cores_per_node": 96,
    "host_memory_gib": 1583,
    "default_precision": "bf16",
    "gpu_memory_gib": 79.15,
    "peak_tflops": {"bf16": 312},
    "achievable_tflops": {"bf16": 271.2},
    "intra_node_gb_per_s": 300,
    "inter_node_gb_per_s": 200,
    "gpu_memory_gb_per_s": 2039,
    "host_link_gb_per_s": 25,
    "host_memory_gb_per_s": 409,
    "nvme_read_gb_per_s": 25,
    "gpu_power_w": 400,
}
NODE = read_strictly(HardwareConfig, A100)


@pytest.mark.parametrize(
    ("key", "value", "unit"),
    [
        pytest.param("gpu_memory_gib", 81_050, "from 0 to 2,048; it is in GiB of one GPU", id="MiB of a GPU"),
        pytest.param("gpu_memory_gib", 85e9, "GiB of one GPU", id="bytes of a GPU"),
        pytest.param("gpu_memory_gib", 1e300, "GiB of one GPU", id="beyond every number"),
        pytest.param("gpu_memory_gib", "80GB", "must be a number; it is in GiB of one GPU", id="with its unit"),
        pytest.param("host_memory_gib", 1_620_992, "from 0 to 65,536; it is in GiB of one node", id="MiB of a node"),
        pytest.param("host_memory_gib", 1.7e12, "GiB of one node", id="bytes of a node"),
        pytest.param("peak_tflops", {"bf16": 3.12e14}, "from 0.001 to 10,000; it is in 1e12 FLOP/s", id="FLOP/s"),
        pytest.param("peak_tflops", {"bf16": 312_000}, "1e12 FLOP/s of one GPU, dense", id="GFLOP/s"),
        pytest.param("achievable_tflops", {"bf16": 2.7e14}, "1e12 FLOP/s", id="FLOP/s, achieved"),
        pytest.param("gpu_memory_gb_per_s", 2.039e12, "from 20 to 40,000; it is in GB/s", id="bytes a second"),
        pytest.param("gpu_memory_gb_per_s", 2.039, "it is in GB/s (1e9 bytes a second) of one GPU", id="TB/s"),
        pytest.param(
            "intra_node_gb_per_s", 3e11, "it is in GB/s (1e9 bytes a second) one way", id="bytes a second, link"
        ),
        pytest.param("intra_node_gb_per_s", 0.3, "from 0.5 to 5,000", id="TB/s, link"),
        pytest.param("inter_node_gb_per_s", 2e11, "of a node: 8 x 200 Gb/s are 200", id="bytes a second, network"),
        pytest.param("inter_node_gb_per_s", 200_000, "from 0.05 to 20,000", id="MB/s, network"),
        pytest.param("host_link_gb_per_s", 25_000, "GB/s (1e9 bytes a second)", id="MB/s, host link"),
        pytest.param("host_memory_gb_per_s", 409_000, "of a node, such as 409", id="MB/s, host memory"),
        pytest.param("nvme_read_gb_per_s", 7_000, "from 0.1 to 2,000", id="MB/s, NVMe"),
        pytest.param("gpu_power_w", 0.4, "from 5 to 20,000; it is in W", id="kW"),
        pytest.param("node_power_w", 10.2, "from 20 to 500,000; it is in W", id="kW of a node"),
        pytest.param("nvme_gib_per_node", 6.4, "from 16 to 4,194,304", id="TB of NVMe"),
        pytest.param(
            "cpu_cores_per_node", 96_000, "must be less than or equal to 16384; nearest: 16384", id="cores of all nodes"
        ),
        pytest.param("price_per_gpu_hour", 2e9, "hardware.price_currency for one GPU and one hour", id="price"),
        pytest.param("node_mtbf_hours", 1.8e7, "hours of one node: published are 3,692 to 6,335", id="seconds"),
        pytest.param("gpus_per_node", 100_000, "must be less than or equal to 1024", id="GPUs of the machine"),
    ],
)
def test_a_value_in_another_unit_is_refused_with_its_own(key: str, value: Any, unit: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_strictly(HardwareConfig, A100 | {key: value})
    (problem,) = refused.value.problems
    assert problem.key.startswith(key)
    assert unit in str(problem)


@pytest.mark.parametrize("key", [key for key, value in A100.items() if isinstance(value, float | int)])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_nothing_is_zero_negative_or_endless(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        read_strictly(HardwareConfig, A100 | {key: value})


def test_the_shipped_numbers_of_such_a_node_pass() -> None:
    assert hardware_problems(NODE) == []
    assert hardware_warnings(NODE) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"achievable_tflops": {"bf16": 312.0}, "peak_tflops": {"bf16": 271.2}},
            "hardware.achievable_tflops.bf16=312: is above hardware.peak_tflops.bf16=271.2",
            id="peak below achieved",
        ),
        pytest.param(
            {"achievable_tflops": {}, "peak_tflops": {"bf16": 0.312}},
            "hardware.peak_tflops.bf16=0.312: is below 1, which every GPU has; it is in 1e12 FLOP/s; if it is in 1e15: 312",
            id="1e15 FLOP/s",
        ),
        pytest.param(
            {"achievable_tflops": {"bf16": 0.2712}},
            "hardware.achievable_tflops.bf16=0.2712: is below 1, which every GPU has; it is in 1e12 FLOP/s; if it is in",
            id="1e15 FLOP/s measured",
        ),
        pytest.param(
            {"achievable_tflops": {"bf16": 27.12}},
            "hardware.achievable_tflops.bf16=27.12: is below 0.1 x hardware.peak_tflops.bf16=312, and large products reach half",
            id="a tenth of what is measured",
        ),
        pytest.param(
            {"intra_node_gb_per_s": 2400.0},
            "hardware.intra_node_gb_per_s=2400: is above 0.5 x hardware.gpu_memory_gb_per_s=2039, and a link between GPUs is far"
            " slower than their memory; if it is in Gb/s: 300",
            id="Gb/s between GPUs",
        ),
        pytest.param(
            {"host_link_gb_per_s": 3000.0},
            "hardware.host_link_gb_per_s=3000: is above hardware.gpu_memory_gb_per_s=2039, out of which it is fed",
            id="host link above memory",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], expected: str) -> None:
    (problem,) = hardware_problems(dataclasses.replace(NODE, **changes))
    assert str(problem).startswith(expected)


def test_a_network_in_gbit_is_refused() -> None:
    (problem,) = hardware_problems(dataclasses.replace(NODE, inter_node_gb_per_s=1600.0))
    assert str(problem).startswith("hardware.inter_node_gb_per_s=1600: is more than 4 x hardware.host_link_gb_per_s=25")
    assert problem.fix == "if it is in Gb/s: 200"
    # At the limit of 4 x 25 GB/s for each of 8 GPUs it may be meant.
    assert hardware_problems(dataclasses.replace(NODE, inter_node_gb_per_s=800.0)) == []
    # The network of eight GPUs stays possible where one of them is planned.
    alone = dataclasses.replace(NODE, inter_node_gb_per_s=200.0, gpus_per_node=1)
    assert hardware_problems(alone) == []
    (warning,) = hardware_warnings(alone)
    assert warning.startswith("hardware.inter_node_gb_per_s=200 are 200 GB/s for each GPU")


def test_a_network_in_terabytes_is_told() -> None:
    (warning,) = hardware_warnings(dataclasses.replace(NODE, inter_node_gb_per_s=0.2))
    assert warning.startswith("hardware.inter_node_gb_per_s=0.2 is 1.6 Gb/s for a node of 8 GPUs")
    assert warning.endswith("if it is in TB/s: 200")
    assert hardware_warnings(dataclasses.replace(NODE, inter_node_gb_per_s=1.25)) == []  # Ethernet of 10 Gb/s


def test_host_memory_in_tebibytes_is_told() -> None:
    (warning,) = hardware_warnings(dataclasses.replace(NODE, host_memory_gib=1.5))
    assert warning == "hardware.host_memory_gib=1.5 is little for a node of 8 GPUs; if it is in TiB: 1536"
    assert hardware_warnings(dataclasses.replace(NODE, host_memory_gib=8)) == []
    assert hardware_warnings(dataclasses.replace(NODE, host_memory_gib=None)) == []


def test_cpu_ranks_may_be_slow() -> None:
    node = dataclasses.replace(NODE, device="cpu", peak_tflops={"fp32": 0.5}, achievable_tflops={})
    assert hardware_problems(node) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"peak_tflops": {"bf16": 624.0}},
            "hardware.peak_tflops.bf16=624: is above what hardware.gpu=A100-SXM4-80GB has, 312 by the NVIDIA A100 data sheet;"
            " nearest: 312 (twice as much counts 2:4 sparsity)",
            id="sparsity",
        ),
        pytest.param(
            {"intra_node_gb_per_s": 600.0}, "nearest: 300 (twice as much counts both directions)", id="both directions"
        ),
        pytest.param({"gpu_memory_gb_per_s": 16_312.0}, "hardware.gpu_memory_gb_per_s=16312: is above", id="Gb/s"),
        pytest.param({"gpu_memory_gib": 85.9}, "hardware.gpu_memory_gib=85.9: is above", id="GB of 1e9 bytes"),
        pytest.param({"gpu": "A100", "gpu_memory_gib": 160.0}, "nearest: 80", id="memory that no such GPU has"),
        pytest.param(
            {"gpu": "H1O0-SXM5-80GB", "sources": {"peak_tflops.bf16": "NVIDIA H100 data sheet, dense"}},
            "hardware.gpu=H1O0-SXM5-80GB: is not in the device table, and hardware.peak_tflops of hardware=site is that of the"
            " H100, by its source: NVIDIA H100 data sheet, dense; nearest: hardware.gpu=H100-SXM-80GB;",
            id="a slip",
        ),
        pytest.param(
            {"gpu": "V100-SXM2-32GB", "peak_tflops": {"fp16": 312.0}},
            "hardware.gpu=V100-SXM2-32GB: has less than is stated: hardware.peak_tflops.fp16=312 above 125,"
            " hardware.gpu_memory_gib=79.15 above 32, hardware.gpu_memory_gb_per_s=2039 above 900,"
            " hardware.intra_node_gb_per_s=300 above 150 (NVIDIA V100 data sheet, NVLink form); nearest:"
            " hardware.gpu=A100-SXM-80GB,",
            id="another GPU's numbers",
        ),
        pytest.param(
            {"gpu": "X9000", "peak_tflops": {}},
            "and hardware.peak_tflops, which says what it can do, is not stated",
            id="nothing is known",
        ),
    ],
)
def test_a_gpu_is_held_against_the_device_table(changes: dict[str, Any], expected: str) -> None:
    (problem,) = hardware_problems(dataclasses.replace(NODE, **({"achievable_tflops": {}} | changes)))
    assert expected in str(problem)


def test_a_new_gpu_with_numbers_of_its_own_is_taken_and_told_with_the_nearest_names() -> None:
    source = {"peak_tflops.bf16": "data sheet of 2027"}
    new = dataclasses.replace(NODE, gpu="H1O0-SXM5-80GB", peak_tflops={"bf16": 1000.0}, sources=source)
    assert hardware_problems(new) == []
    (warning,) = hardware_warnings(new)
    assert "(peak: data sheet of 2027); if it is a slip, the nearest: H100-SXM-80GB" in warning
    # Nothing is near: nothing is offered.
    (warning,) = hardware_warnings(dataclasses.replace(new, gpu="zzz", sources={}))
    assert warning.endswith("(peak: without a source)")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"gpu": "H100-SXM5-80GB"}, "=312 is 0.32 x the 989 of hardware.gpu=H100-SXM5-80GB", id="name alone"
        ),
        pytest.param({"host_link_gb_per_s": 64.0}, "is 2.6 x the 25 GB/s", id="host link both ways"),
    ],
)
def test_rates_of_another_gpu_are_told(changes: dict[str, Any], expected: str) -> None:
    node = dataclasses.replace(NODE, **changes)
    assert hardware_problems(node) == []
    (warning,) = hardware_warnings(node)
    assert expected in warning


def test_a_name_without_a_memory_means_the_card_of_the_stated_one() -> None:
    die: dict[str, Any] = {
        "gpu": "MI250X",
        "gpu_memory_gib": 64.0,
        "peak_tflops": {"bf16": 191.5},
        "achievable_tflops": {},
    }
    rates: dict[str, Any] = {"intra_node_gb_per_s": 200.0, "gpu_memory_gb_per_s": 1638.0}
    node = dataclasses.replace(NODE, **die, **rates)
    assert (hardware_problems(node), hardware_warnings(node)) == ([], [])


def test_gpus_that_nobody_uses_are_told() -> None:
    (warning,) = hardware_warnings(dataclasses.replace(NODE, device="cpu"))
    assert warning.startswith("hardware.device=cpu: ranks run on the processor")


def test_cpu_ranks_have_no_gpu() -> None:
    node = dataclasses.replace(NODE, device="cpu", gpu="none", gpu_memory_gib=None)
    assert (hardware_problems(node), hardware_warnings(node)) == ([], [])
