"""Forms of ZeRO that move or copy states: real ranks give the losses of plain PyTorch, and hold what the form says."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.schema import Config
from hpctrain.plan.memory.sub_groups import host_share, sub_groups
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import StepRecord
from tests.native_ops import COMPILED, CPU_ADAM, build_once
from tests.worker.reference import reference_losses
from tests.worker.run_folder import GPT, LLAMA, losses, make_config, make_run, start_ranks, step_records, train

pytestmark = pytest.mark.train

FP32_TOLERANCE = 1e-5
NUM_STEPS = 6
DEEP = GPT | {"num_layers": 4}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    build_once(CPU_ADAM)


def config_of(model: dict[str, Any] = DEEP, num_ranks: int = 2, training: Any = None, **parallelism: Any) -> Config:
    env = {"TORCH_EXTENSIONS_DIR": COMPILED}
    config = make_config(num_ranks, model, env, **{"num_steps": NUM_STEPS, **(training or {})})
    return dataclasses.replace(config, parallelism=dataclasses.replace(config.parallelism, **parallelism))


@cache
def reference() -> list[float]:
    return reference_losses(config_of())


def run_to_its_end(run: RunPaths, num_ranks: int, command: str, attempt: int = 1) -> list[dict[str, Any]]:
    """What each rank printed behind FOUND, as JSON."""
    changes = {rank: {"HPCTRAIN_ATTEMPT": str(attempt)} for rank in range(num_ranks)}
    with start_ranks(run, num_ranks, changes, command) as ranks:
        assert ranks.wait() == [0] * num_ranks, ranks.logs()
    logs = [ranks.log(rank).splitlines() for rank in range(num_ranks)]
    return [json.loads(line.removeprefix("FOUND ")) for log in logs for line in log if line.startswith("FOUND ")]


# The engine tells GPU and host apart by the name of the accelerator, which on CPU ranks is that of the host. With another name
# of the same device its own code for the GPU's sub-groups runs, on CPU tensors.
PARTLY_ON_THE_DEVICE = """
import json, sys
from deepspeed.accelerator import get_accelerator
from hpctrain.worker import training
from hpctrain.worker.job import run
build, train = training.build_engine, training.train
def building(*arguments):
    get_accelerator()._name = "cpu:0"
    return build(*arguments)
def looking(engine, *arguments, **named):
    train(engine, *arguments, **named)
    zero = engine.optimizer
    tensors = zero.fp32_partitioned_groups_flat
    found = {
        "places": [zero.subgroup_to_device[number] for number in range(len(tensors))],
        "elements": [tensor.numel() for tensor in tensors],
        "moments": [zero.optimizer.state[tensor]["exp_avg"].numel() for tensor in tensors],
        "steps": [int(zero.optimizer.state[tensor]["step"]) for tensor in tensors],
    }
    print("FOUND", json.dumps(found))
training.build_engine, training.train = building, looking
run(sys.argv[1])
"""


@pytest.mark.parametrize("ratio", [0.3, 0.5])
def test_the_ratio_decides_where_the_optimizer_works(ratio: float, tmp_path: Path) -> None:
    config = config_of(offload_optimizer="cpu", offload_ratio=ratio)
    run = make_run(tmp_path, config)
    found = run_to_its_end(run, 2, PARTLY_ON_THE_DEVICE)
    assert losses(step_records(run)) == pytest.approx(reference(), rel=FP32_TOLERANCE)
    plan = build_run_plan(config)
    parameters = rank_parameters(plan.model, plan.layout)
    size = plan.ds_config["zero_optimization"]["sub_group_size"]
    assert len(found) == 2
    for rank in found:
        assert rank["elements"] == rank["moments"] == sub_groups(parameters, 2, size)
        assert rank["steps"] == [NUM_STEPS] * len(rank["elements"])
        pairs = list(zip(rank["places"], rank["elements"], strict=True))
        on_host = sum(elements for place, elements in pairs if place == "cpu")
        on_device = sum(elements for place, elements in pairs if place == "cpu:0")
        assert on_host / (on_host + on_device) == host_share(parameters, 2, size, ratio)
        assert host_share(parameters, 2, size, ratio) == pytest.approx(ratio, abs=0.05)


def test_moments_on_the_device_are_in_checkpoints_too(tmp_path: Path) -> None:
    training = {"checkpoint_interval": 3, "checkpoint_at_end": True}
    config = config_of(training=training, offload_optimizer="cpu", offload_ratio=0.5)
    run = make_run(tmp_path, config)
    run_to_its_end(run, 2, PARTLY_ON_THE_DEVICE)
    shutil.rmtree(complete_checkpoints(run)[-1].folder)
    found = run_to_its_end(run, 2, PARTLY_ON_THE_DEVICE, attempt=2)
    assert [rank["steps"] for rank in found] == [[NUM_STEPS] * 3] * 2
    records = step_records(run)
    first, second = ([curve(record) for record in records if record.attempt == attempt] for attempt in (1, 2))
    assert len(first) == NUM_STEPS
    assert second == first[3:]


def curve(record: StepRecord) -> tuple[int, float | None, float | None]:
    return record.step, record.loss, record.grad_norm


# Counts gathers of parameters by the size of their group, and looks at the copy while it is there.
COUNTED_GATHERS = """
import json, sys
from collections import Counter
import torch.distributed as dist
from deepspeed.runtime.zero import partition_parameters
from hpctrain.worker import training
from hpctrain.worker.job import run
counts, copies, phase = Counter(), set(), ["elsewhere"]
gather, train = partition_parameters._dist_allgather_fn, training.train
def counted(input_tensor, output_tensor, group=None):
    counts[f"{phase[0]} {dist.get_world_size(group)}"] += 1
    return gather(input_tensor, output_tensor, group)
def watched(engine, *arguments, **named):
    backward = engine.backward
    def watched_backward(loss):
        copies.update(parameter.ds_secondary_tensor.numel() * 2 - parameter.ds_numel
                      for parameter in engine.module.blocks.parameters() if parameter.ds_secondary_tensor is not None)
        phase[0] = "backward"
        backward(loss)
        phase[0] = "elsewhere"
    engine.backward = watched_backward
    train(engine, *arguments, **named)
    print("FOUND", json.dumps({"gathers": counts, "padding": sorted(copies)}))
partition_parameters._dist_allgather_fn, training.train = counted, watched
run(sys.argv[1])
"""


@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_a_second_partition_is_gathered_from_fewer_ranks(offload: str, tmp_path: Path) -> None:
    config = config_of(num_ranks=4, hpz_partition_size=2, offload_optimizer=offload, offload_param=offload)
    run = make_run(tmp_path, config)
    found = run_to_its_end(run, 4, COUNTED_GATHERS)
    assert losses(step_records(run)) == pytest.approx(reference(), rel=FP32_TOLERANCE)
    assert len(found) == 4
    for rank in found:
        assert rank["gathers"]["backward 2"] > 0
        assert "backward 4" not in rank["gathers"]
        # Two ranks have a half of each parameter, up to a rounding to four equal parts.
        assert rank["padding"]
        assert 0 <= min(rank["padding"]) <= max(rank["padding"]) < 4


ACCUMULATION = {"gradient_accumulation_steps": 2, "micro_batch_size": 2}
DEEP_LLAMA = LLAMA | {"num_layers": 3}
ON_THE_HOST = {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "zero1": (DEEP_LLAMA, {}, {"zero_stage": 1}),
    "zero2, accumulation 2": (DEEP, ACCUMULATION, {"zero_stage": 2}),
    "zero3, bf16": (DEEP, {"precision": "bf16"}, {"zero_stage": 3}),
    "zero3, all on the host": (DEEP_LLAMA, {}, ON_THE_HOST),
}


@pytest.mark.parametrize("form", FORMS)
def test_block_inputs_on_the_host_change_no_bit(form: str, tmp_path: Path) -> None:
    model, more, parallelism = FORMS[form]
    curves = []
    for offload in (False, True):
        training = {"activation_checkpointing": "full", "offload_activations": offload, "num_steps": 3, **more}
        config = config_of(model, training=training, **parallelism)
        curves.append([curve(record) for record in train(tmp_path / str(offload), config)])
    assert curves[0] == curves[1]
    assert len(curves[0]) == 3
