"""Runs that go on with other ranks, stages or parallelism: with the same state to the bit, and then the same losses."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hpctrain.cli import run as run_words
from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.checkpoints import Checkpoint, complete_checkpoints
from hpctrain.record.files import write_text
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import StepRecord
from hpctrain.worker.end_reasons import EXIT_CODES
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.state.saved_state import SavedState
from hpctrain.worker.state.source import MOMENTS
from tests.native_ops import ASYNC_IO, build_once
from tests.worker import reference
from tests.worker.reference import LOSS_TOLERANCE, NORM_TOLERANCE, reference_steps
from tests.worker.run_folder import GPT, LLAMA, make_config, make_run, start_ranks, step_records, train
from tests.worker.test_nvme import ALL_ON_NVME, config_of

pytestmark = pytest.mark.train

SAVES_WHAT_IT_HAS_LOADED = """
import sys
from hpctrain.worker import training
from hpctrain.worker.job import run
train = training.train
def saving(engine, plan, settings, data, log, stop, saver, first_step, *rest):
    saver.save(first_step - 1, 1.0, stop)
    log.resume_clock()
    train(engine, plan, settings, data, log, stop, saver, first_step, *rest)
training.train = saving
run(sys.argv[1])
"""
SOURCES: dict[str, dict[str, Any]] = {
    "zero2": {"zero_stage": 2},
    "zero3, llama, bf16": {"model": LLAMA, "precision": "bf16"},
    "zero1, tensor parallel, llama": {"zero_stage": 1, "model": LLAMA, "degrees": {"tensor_parallel_size": 2}},
    "zero2, fp16": {"zero_stage": 2, "precision": "fp16"},
    "zero0": {"zero_stage": 0},
    "zero3, sequence parallel": {"degrees": {"sequence_parallel_size": 2}},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "zero2, 2 ranks: 4 ranks": ("zero2", {"zero_stage": 2, "num_ranks": 4}),
    "zero2, 2 ranks: 1 rank, zero3, offloaded": ("zero2", {"zero_stage": 3, "num_ranks": 1, "offload": True}),
    "zero3, llama, bf16, 2 ranks: 1 rank, zero1": (
        "zero3, llama, bf16",
        {"zero_stage": 1, "num_ranks": 1, "model": LLAMA, "precision": "bf16"},
    ),
    "zero1, tensor parallel: pipeline": (
        "zero1, tensor parallel, llama",
        {"zero_stage": 1, "model": LLAMA, "degrees": {"pipeline_parallel_size": 2}},
    ),
    "zero2, 2 ranks: zero0": ("zero2", {"zero_stage": 0}),
    "zero0: zero3": ("zero0", {"zero_stage": 3}),
    "zero2, fp16, 2 ranks: 4 ranks, zero3": ("zero2, fp16", {"num_ranks": 4, "precision": "fp16"}),
    "zero3, sequence parallel: zero1, tensor parallel": (
        "zero3, sequence parallel",
        {"zero_stage": 1, "degrees": {"tensor_parallel_size": 2}},
    ),
}
TOLERANCE = {"fp32": 1e-6, "bf16": LOSS_TOLERANCE["bf16"], "fp16": 1e-3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunPaths]:
    """Runs of two ranks by source, each trained for eight steps when it is asked for first, and kept at four and eight."""

    class Trained(dict[str, RunPaths]):
        def __missing__(self, source: str) -> RunPaths:
            config = make_config(num_steps=8, checkpoint_interval=4, log_interval=1, **SOURCES[source])
            folder = tmp_path_factory.mktemp("trained")
            train(folder, config)
            self[source] = RunPaths(folder / "a run $x")
            return self[source]

    return Trained()


def go_on(run: RunPaths, folder: Path, config: Config, num_ranks: int) -> tuple[list[int], RunPaths, str]:
    """The copy of a run with another configuration, from step 4; exit codes and the log of rank 0."""
    copy = RunPaths(folder / "a run [1-2]* $x")
    shutil.copytree(run.root, copy.root)
    shutil.rmtree(copy.checkpoints / "step-00000008")
    write_text(copy.config, config_text(config))
    write_text(copy.plan, build_run_plan(config).to_json())
    changes = {rank: {"HPCTRAIN_ATTEMPT": "2"} for rank in range(num_ranks)}
    with start_ranks(copy, num_ranks, changes, SAVES_WHAT_IT_HAS_LOADED) as ranks:
        return ranks.wait(), copy, ranks.log()


def saved_state(checkpoint: Checkpoint) -> SavedState:
    return SavedState(checkpoint.folder, checkpoint.record)


def of_attempt(run: RunPaths, attempt: int) -> list[StepRecord]:
    return [record for record in step_records(run) if record.attempt == attempt]


def assert_goes_on_alike(before: RunPaths, after: RunPaths, log: str) -> None:
    """The state of step 4 to the bit, and then the losses of the run that was not interrupted."""
    assert "it is cut anew" in log
    saved, loaded = (saved_state(checkpoint) for checkpoint in complete_checkpoints(after) if checkpoint.step == 4)
    assert loaded.record.attempt == 2
    assert (saved.adam_step, saved.engine_counts["global_steps"]) == (loaded.adam_step, 4)
    for parameter in saved.parameters:
        for kind in ("fp32", *MOMENTS):
            here, there = saved.whole(kind, parameter), loaded.whole(kind, parameter)
            assert here is not None
            assert there is not None
            assert torch.equal(here, there), (kind, parameter.name)
    precision = saved.record.precision
    uninterrupted, resumed = of_attempt(before, 1)[4:], of_attempt(after, 2)
    assert [record.step for record in resumed] == [5, 6, 7, 8]
    expected = [record.loss for record in uninterrupted]
    assert [record.loss for record in resumed] == pytest.approx(expected, rel=TOLERANCE[precision])
    norms = [record.grad_norm for record in uninterrupted]
    assert [record.grad_norm for record in resumed] == pytest.approx(norms, rel=NORM_TOLERANCE.get(precision, 1e-2))
    assert [record.loss_scale for record in resumed] == [record.loss_scale for record in uninterrupted]


@pytest.mark.parametrize("case", CASES)
def test_the_state_stays_to_the_bit_and_the_losses_follow(
    case: str, trained: dict[str, RunPaths], tmp_path: Path
) -> None:
    source, changes = CASES[case]
    config = make_config(num_steps=8, log_interval=1, **changes)
    codes, run, log = go_on(trained[source], tmp_path, config, config.hardware.gpus_per_node)
    assert set(codes) == {0}, log
    assert_goes_on_alike(trained[source], run, log)


TIERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NVMe: none": (ALL_ON_NVME | {"sub_group_size": 200_000}, {"zero_stage": 2}),
    "none: NVMe": ({"zero_stage": 2}, ALL_ON_NVME | {"sub_group_size": 200_000}),
    "half on the host: half on NVMe": (
        {"offload_optimizer": "cpu", "offload_ratio": 0.5, "sub_group_size": 200_000},
        {"offload_optimizer": "nvme", "nvme_ratio": 0.5, "sub_group_size": 300_000},
    ),
}


@pytest.mark.parametrize("case", TIERS)
def test_states_move_between_tiers(case: str, tmp_path: Path) -> None:
    build_once(ASYNC_IO)
    training = {"num_steps": 8, "log_interval": 1}
    before, after = (wide_config(tmp_path / "nvme", training, changes) for changes in TIERS[case])
    saving = dataclasses.replace(before.training, checkpoint_interval=4)
    train(tmp_path, dataclasses.replace(before, training=saving))
    run = RunPaths(tmp_path / "a run $x")
    codes, copy, log = go_on(run, tmp_path, after, 2)
    assert codes == [0, 0], log
    assert_goes_on_alike(run, copy, log)


def wide_config(folder: Path, training: dict[str, Any], changes: dict[str, Any]) -> Config:
    """Of a model some of whose matrices are large enough for NVMe."""
    config = config_of(folder, training, **changes)
    if "offload_optimizer" in changes and changes["offload_optimizer"] == "nvme":
        return config
    return dataclasses.replace(config, parallelism=dataclasses.replace(config.parallelism, nvme_path=None))


def test_a_damaged_file_of_another_cut_is_named_by_all(trained: dict[str, RunPaths], tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "damaged")
    shutil.copytree(trained["zero2"].root, run.root)
    path = run.checkpoints / "step-00000004" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    config = make_config(num_steps=8, zero_stage=1, num_ranks=1)
    codes, _, log = go_on(run, tmp_path, config, 1)
    assert codes == [EXIT_CODES["bad_checkpoint"]], log
    assert "step-00000004 cannot be loaded: rank 0: " in log
    assert "has another checksum than when it was saved" in log


def test_an_exported_model_trains_on_as_in_plain_pytorch(
    trained: dict[str, RunPaths], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained["zero1, tensor parallel, llama"]
    out = tmp_path / "out"
    assert run_words(["export", str(run.root), "--out", str(out), "--dtype", "fp32"]) == 0
    saved = saved_state(complete_checkpoints(run)[-1])

    def with_its_weights(*arguments: Any) -> Decoder:
        decoder = Decoder(*arguments)
        weights = {parameter.name: saved.whole("fp32", parameter) for parameter in saved.parameters}
        decoder.load_state_dict(weights)
        return decoder

    monkeypatch.setattr(reference, "Decoder", with_its_weights)
    config = make_config(
        num_steps=3, log_interval=1, model=LLAMA, init_from=str(out), degrees={"tensor_parallel_size": 2}
    )
    found = train(tmp_path, config)
    expected = reference_steps(make_config(num_steps=3, model=LLAMA))
    assert [step.loss for step in found] == pytest.approx([step.loss for step in expected], rel=LOSS_TOLERANCE["fp32"])
    # The next step of the run that was exported sees other sequences; on the same ones it is at this loss.
    assert found[0].loss == pytest.approx(of_attempt(run, 1)[-1].loss, rel=0.1)


def test_a_folder_of_another_shape_is_refused_before_the_first_step(tmp_path: Path) -> None:
    config = make_config(num_ranks=1, zero_stage=1, model=GPT, init_from=str(tmp_path / "nowhere"))
    run = make_run(tmp_path, config)
    with start_ranks(run, 1) as ranks:
        assert ranks.wait() == [EXIT_CODES["bad_checkpoint"]], ranks.logs()
        assert f"training.init_from={tmp_path / 'nowhere'}: " in ranks.log()
        assert "config.json: No such file or directory" in ranks.log()
    assert not run.steps.exists()
