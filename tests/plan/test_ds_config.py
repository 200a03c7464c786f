"""Keys of the DeepSpeed configuration that a form needs; the rest is held by whole runs in tests/worker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.test_run_plan import plan_of

ON_GPUS = ("model=13b", "nodes=2", "hardware=ndm_a100_v4", "training.micro_batch_size=1")
ON_CPUS = ("model=tiny", "hardware=cpu", "training.micro_batch_size=1")
CPU_ADAM = {"torch_adam": False, "forced": True}
TORCH_ADAM = {"torch_adam": True, "forced": False}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        pytest.param((*ON_GPUS, "parallelism.offload_optimizer=cpu"), CPU_ADAM, id="gpu"),
        pytest.param((*ON_CPUS, "parallelism.offload_optimizer=cpu"), TORCH_ADAM, id="cpu-needs-no-compiler"),
        # The engine: «Hybrid Optimizer Only Supports DeepSpeedCPUAdam».
        pytest.param(
            (*ON_CPUS, "parallelism.offload_optimizer=cpu", "parallelism.offload_ratio=0.5"), CPU_ADAM, id="cpu-partly"
        ),
        pytest.param(
            (*ON_GPUS, "parallelism.offload_optimizer=cpu", "parallelism.offload_ratio=0.5"), CPU_ADAM, id="gpu-partly"
        ),
    ],
)
def test_which_adam_works_on_the_host(words: tuple[str, ...], wanted: dict[str, bool]) -> None:
    config = plan_of(*words).ds_config
    kernel = config["optimizer"]["params"]
    assert {"torch_adam": "torch_adam" in kernel, "forced": config["zero_force_ds_cpu_optimizer"]} == wanted


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        pytest.param(("parallelism=zeropp",), {"zero_hpz_partition_size": 8}, id="hpz"),
        pytest.param(
            ("parallelism.quantized_weights=true", "parallelism.quantized_gradients=true"),
            {"zero_quantized_weights": True, "zero_quantized_gradients": True},
            id="quantized",
        ),
        pytest.param(
            ("parallelism.offload_optimizer=cpu", "parallelism.offload_ratio=0.25"),
            {"offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.25}},
            id="ratio",
        ),
    ],
)
def test_keys_of_a_form(words: tuple[str, ...], keys: dict[str, Any]) -> None:
    zero = plan_of(*ON_GPUS, *words).ds_config["zero_optimization"]
    assert {name: zero[name] for name in keys} == keys
    plain = plan_of(*ON_GPUS).ds_config["zero_optimization"]
    # What is not asked for is left out: the engine would test for kernels that it then does not use.
    assert not [name for name in keys if name in plain]


@pytest.mark.parametrize(
    ("words", "overlaps"),
    [
        pytest.param((*ON_GPUS, "parallelism=zero1"), True, id="gpu"),
        pytest.param((*ON_GPUS, "parallelism=zero1", "parallelism.overlap_comm=false"), False, id="gpu, turned off"),
        pytest.param((*ON_CPUS, "parallelism=zero1"), False, id="a cpu has no second stream"),
    ],
)
def test_what_is_reduced_beside_the_backward_pass(words: tuple[str, ...], overlaps: bool) -> None:
    assert plan_of(*words).ds_config["zero_optimization"]["overlap_comm"] is overlaps


@pytest.mark.parametrize(
    ("stage", "wanted"), [(0, (None, None)), (1, (False, True)), (2, (False, True)), (3, (None, None))]
)
def test_below_stage_3_a_bucket_is_reduced_where_it_is(stage: int, wanted: tuple[bool | None, bool | None]) -> None:
    config = plan_of(*ON_GPUS, f"parallelism.zero_stage={stage}").ds_config
    assert (config["zero_optimization"].get("reduce_scatter"), config.get("prescale_gradients")) == wanted
