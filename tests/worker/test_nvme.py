"""ZeRO-Infinity on real ranks: states and parameters pass through libaio, and losses stay those of plain PyTorch."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.schema import Config
from hpctrain.plan.nvme.tier import tiered_sub_groups
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import StepRecord
from hpctrain.worker.end_reasons import EXIT_CODES
from tests.native_ops import ASYNC_IO, COMPILED, build_once
from tests.worker.reference import LOSS_TOLERANCE, NORM_TOLERANCE, reference_steps
from tests.worker.run_folder import GPT, RANK_COMMAND, make_config, make_run, start_ranks, step_records

pytestmark = pytest.mark.train

NUM_STEPS = 20
WIDE = GPT | {"hidden_size": 384}
"""Of two ranks' shares in fp32 those of the feed-forward are above 1 MiB, below which nothing is moved, and others not."""
ALL_ON_NVME: dict[str, Any] = {"offload_optimizer": "nvme", "offload_param": "nvme"}


@pytest.fixture(scope="module")
def compiled() -> None:
    build_once(ASYNC_IO)


def config_of(folder: Path, training: dict[str, Any] | None = None, **parallelism: Any) -> Config:
    folder.mkdir(exist_ok=True)
    env = {"TORCH_EXTENSIONS_DIR": COMPILED}
    more = {"num_steps": NUM_STEPS, "learning_rate": 1e-3, **(training or {})}
    config = make_config(2, WIDE, env, **more)
    stated: dict[str, Any] = {"nvme_path": str(folder), "sub_group_size": 400_000} | parallelism
    return dataclasses.replace(config, parallelism=dataclasses.replace(config.parallelism, **stated))


def run_to_its_end(run: RunPaths, attempt: int = 1, command: str = RANK_COMMAND) -> str:
    """Log of rank 0."""
    changes = {rank: {"HPCTRAIN_ATTEMPT": str(attempt)} for rank in range(2)}
    with start_ranks(run, 2, changes, command) as ranks:
        assert ranks.wait() == [0, 0], ranks.logs()
        return ranks.log()


def steps_of(run: RunPaths, attempt: int) -> list[tuple[int, float | None, float | None]]:
    return [(step.step, step.loss, step.grad_norm) for step in step_records(run) if step.attempt == attempt]


def assert_like_the_reference(found: list[StepRecord], config: Config, precision: str = "fp32") -> None:
    expected = reference_steps(config)
    assert [step.loss for step in found] == pytest.approx([e.loss for e in expected], rel=LOSS_TOLERANCE[precision])
    norms = [step.grad_norm for step in expected]
    assert [step.grad_norm for step in found] == pytest.approx(norms, rel=NORM_TOLERANCE[precision])


# What is on NVMe after the last step: file sizes by rank, and what the swapper says of each sub-group.
FILES_AT_THE_END = """
import os, sys
from hpctrain.worker import training
from hpctrain.worker.job import run
train = training.train
def looking(engine, *arguments, **named):
    train(engine, *arguments, **named)
    folder = engine._config.zero_config
    path = (folder.offload_optimizer or folder.offload_param).nvme_path or folder.offload_param.nvme_path
    sizes = [os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(path) for name in names]
    print("ON NVME", sum(sizes))
training.train = looking
run(sys.argv[1])
"""
IN_PYTHON = "from tests.async_io_files import install; install()\n"
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all": (ALL_ON_NVME, {}),
    "optimizer, one after another, accumulation": (
        {"offload_optimizer": "nvme", "pipeline_swaps": False},
        {"gradient_accumulation_steps": 2, "micro_batch_size": 2},
    ),
    "parameters": ({"offload_param": "nvme"}, {}),
    "parameters, optimizer on the host": ({"offload_param": "nvme", "offload_optimizer": "cpu"}, {}),
    "half of the optimizer": ({"offload_optimizer": "nvme", "nvme_ratio": 0.5, "sub_group_size": 300_000}, {}),
}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("form", FORMS)
def test_losses_are_those_of_plain_pytorch_and_nothing_is_left(form: str, tmp_path: Path) -> None:
    parallelism, training = FORMS[form]
    folder = tmp_path / "nvme"
    config = config_of(folder, training, **parallelism)
    run = make_run(tmp_path, config)
    log = run_to_its_end(run, command=FILES_AT_THE_END)
    assert_like_the_reference(step_records(run), config)
    need = build_run_plan(config).nvme
    assert need is not None
    (line,) = [line for line in log.splitlines() if line.startswith("ON NVME")]
    assert int(line.split()[2]) == need.bytes_per_rank > 0
    assert list(folder.iterdir()) == []


def test_without_its_library_files_move_as_with_it(tmp_path: Path) -> None:
    """What is ours of states on NVMe, in every test run: the others wait for three minutes of compiling, see conftest."""
    training = {"num_steps": 6, "checkpoint_interval": 3, "checkpoint_at_end": True}
    folder = tmp_path / "nvme"
    config = config_of(folder, training, **ALL_ON_NVME)
    run = make_run(tmp_path, config)
    log = run_to_its_end(run, command=IN_PYTHON + FILES_AT_THE_END)
    assert_like_the_reference(step_records(run), config)
    need = build_run_plan(config).nvme
    assert need is not None
    assert f"ON NVME {need.bytes_per_rank}" in log.splitlines()
    newest = complete_checkpoints(run)[-1]
    assert any(file.name.startswith("swapped") for file in newest.record.files)
    shutil.rmtree(newest.folder)
    run_to_its_end(run, attempt=2, command=IN_PYTHON + RANK_COMMAND)
    assert steps_of(run, 2) == steps_of(run, 1)[3:]
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("compiled")
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path: Path) -> None:
    training = {"precision": "bf16", "num_steps": 6, "checkpoint_interval": 3, "checkpoint_at_end": True}
    # One matrix a sub-group: of the 16-bit matrices those of the feed-forward alone are on NVMe.
    config = config_of(tmp_path / "nvme", training, **ALL_ON_NVME, sub_group_size=200_000)
    run = make_run(tmp_path, config)
    run_to_its_end(run)
    kept = tiered_sub_groups(
        config.parallelism, rank_parameters(build_run_plan(config).model, build_run_plan(config).layout), 2
    )
    assert {group.tier for group in kept} == {"host", "nvme"}
    newest = complete_checkpoints(run)[-1]
    assert len([file for file in newest.record.files if file.name.startswith("swapped")]) == 2 * sum(
        group.tier == "nvme" for group in kept
    )
    shutil.rmtree(newest.folder)
    run_to_its_end(run, attempt=2)
    assert steps_of(run, 2) == steps_of(run, 1)[3:]
    assert len(steps_of(run, 2)) == 3


@pytest.mark.usefixtures("compiled")
def test_a_killed_ranks_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    run = make_run(tmp_path, config_of(folder, {"num_steps": 1000}, **ALL_ON_NVME))
    with start_ranks(run) as ranks:
        ranks.wait_for_steps(1)
        assert len(list(folder.iterdir())) == 2
        for process in ranks.processes:
            os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while list(folder.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert list(folder.iterdir()) == []


def test_without_libaio_the_ranks_end_at_once(tmp_path: Path) -> None:
    config = config_of(tmp_path / "nvme", **ALL_ON_NVME)
    # Of a compiler that finds no library nothing can be linked against libaio.
    run = make_run(tmp_path, dataclasses.replace(config, env={**config.env, "CC": "/bin/false"}))
    with start_ranks(run) as ranks:
        assert set(ranks.wait()) == {EXIT_CODES["bad_environment"]}, ranks.logs()
        assert "libaio's headers are missing" in ranks.log()
    assert list((tmp_path / "nvme").iterdir()) == []
