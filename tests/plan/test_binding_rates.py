"""What each part of a step waits for, by doubling the rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.plan.speed.binding_rates import FIXED, binding_rates
from hpctrain.plan.speed.nvme_parts import NvmeTraffic
from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import Machine, Setup, step_parts
from hpctrain.plan.stated.plain_shape import plain_shape

SHAPE = plain_shape(32, 4096, 32000, num_heads=32)
MACHINE = Machine(8, 271.2, 2039, 300, 200, 25, 409, 20, 10)


def rates_of(machine: Machine = MACHINE, software: str = "deepspeed_leaf_blocks", **changes: Any) -> dict[str, str]:
    setup = Setup(SHAPE, **{"seq_len": 2048, "micro_batch_size": 4, "num_micro_steps": 8, "num_gpus": 64, **changes})
    return binding_rates(setup, machine, SOFTWARE[software], step_parts(setup, machine, SOFTWARE[software]))


@pytest.mark.parametrize(
    ("changes", "part", "rate"),
    [
        ({}, "matrix work", "matmul rate"),
        ({}, "element-wise work", "GPU memory"),
        ({}, "optimizer", "GPU memory"),
        ({}, "gradient reduction", "network"),
        ({"num_gpus": 8}, "gradient reduction", "links in the node"),
        ({"zero_stage": 3}, "parameter gathers", "network"),
        ({"zero_stage": 3, "num_gpus": 8}, "parameter gathers", "links in the node"),
        ({"zero_stage": 3, "shard_within_node": True}, "parameter gathers", "links in the node"),
        ({"tensor_degree": 8}, "tensor-parallel all-reduce", "links in the node"),
        ({"sequence_degree": 8}, "sequence-parallel exchange", "links in the node"),
        ({"pipeline_degree": 8}, "pipeline sends", "network"),
        ({"pipeline_degree": 8}, "pipeline bubble", "matmul rate"),
        ({"zero_stage": 2, "offload_optimizer": True, "micro_batch_size": 1}, "host link", "host link"),
        ({"zero_stage": 2, "offload_optimizer": True}, "optimizer on the CPU", "host memory"),
        ({"nvme": NvmeTraffic(10**10, 10**9, 0, False), "zero_stage": 3}, "NVMe in the optimizer", "NVMe"),
    ],
)
def test_each_part_waits_for_its_rate(changes: dict[str, Any], part: str, rate: str) -> None:
    assert rates_of(**changes)[part] == rate


def test_what_no_rate_shortens_is_fixed() -> None:
    assert rates_of(software="megatron_2021")["blocking launches"] == FIXED
    assert rates_of(software="deepspeed", micro_batch_size=1, seq_len=128)["host behind the GPU"] == FIXED
    # 4,096 ranks: 4,095 hops of 11.6 us for each gather outlast its bytes.
    assert rates_of(zero_stage=3, num_gpus=4096)["parameter gathers"] == FIXED


def test_the_slower_link_binds() -> None:
    narrow = replace(MACHINE, network_gb_per_s=50)
    assert rates_of(narrow, tensor_degree=16)["tensor-parallel all-reduce"] == "network"
    assert rates_of(replace(MACHINE, link_gb_per_s=20), zero_stage=3)["parameter gathers"] == "links in the node"
    assert rates_of(replace(MACHINE, network_gb_per_s=None), zero_stage=3, num_gpus=8)["parameter gathers"] == (
        "links in the node"
    )
