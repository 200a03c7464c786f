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
        pytest.param("nvme_read_gb_per_s", 7_000, "from 0.01 to 2,000", id="MB/s, NVMe"),
        pytest.param("gpu_power_w", 0.4, "from 5 to 20,000; it is in W", id="kW"),
        pytest.param("node_power_w", 10.2, "from 20 to 500,000; it is in W", id="kW of a node"),
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
            {"achievable_tflops": {"bf16": 0.2712}, "peak_tflops": {"bf16": 0.312}},
            "hardware.peak_tflops.bf16=0.312: is below 1, which every GPU has; it is in 1e12 FLOP/s; if it is in 1e15: 312",
            id="1e15 FLOP/s",
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


def test_a_network_in_gbit_is_told() -> None:
    (warning,) = hardware_warnings(dataclasses.replace(NODE, inter_node_gb_per_s=1600.0))
    assert "hardware.inter_node_gb_per_s=1600 are 200 GB/s for each GPU" in warning
    assert warning.endswith("if it is in Gb/s: 200")
    # At the limit of 4 x 25 GB/s for each of 8 GPUs it may be meant.
    assert hardware_warnings(dataclasses.replace(NODE, inter_node_gb_per_s=800.0)) == []


def test_cpu_ranks_may_be_slow() -> None:
    node = dataclasses.replace(NODE, device="cpu", peak_tflops={"fp32": 0.5}, achievable_tflops={})
    assert hardware_problems(node) == []
