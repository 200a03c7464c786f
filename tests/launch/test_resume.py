"""A run handed over once more, and a new run like an old one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.open_keys import NEUTRAL
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, LaunchError, Problem
from hpctrain.launch.point_plans import plan_points
from hpctrain.launch.rerun import rerun_point
from hpctrain.launch.resume import (
    FormerRecords,
    ResumeRequest,
    check_from_step,
    check_is_over,
    checkpoint_to_go_on_from,
    failed_nodes,
    has_checkpoint,
    locked,
    refused_as_resumed,
    resumed_config,
    start_note,
)
from hpctrain.launch.status.rows import RunStatus
from hpctrain.plan.run_plan import build_run_plan
from hpctrain.record.checkpoints import complete_checkpoints
from hpctrain.record.files import write_record
from hpctrain.record.frozen_config import config_text
from hpctrain.record.paths import RunPaths
from hpctrain.record.reader import StepsFile, read_attempts, read_config, read_plan, read_submission
from hpctrain.record.schema import SubmissionRecord
from tests.cli.test_cli import hpctrain
from tests.launch.test_chain import save_checkpoint
from tests.launch.test_local import only_run
from tests.plan.test_calibration import CALIBRATION
from tests.record.test_files import attempt

WORDS = (
    *("model=tiny", "parallelism=zero3", "cluster=sandbox", "nodes=2"),
    *("training.num_steps=20", "training.warmup_steps=2"),
)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "a b'c $d" / "run=1")
    paths.attempts.mkdir(parents=True)
    (point,) = compose_points(WORDS, multirun=False)
    paths.config.write_text(config_text(point.config), encoding="utf-8")
    paths.overrides.write_text(json.dumps(list(point.overrides)), encoding="utf-8")
    paths.plan.write_text(build_run_plan(point.config).to_json(), encoding="utf-8")
    paths.code.write_text("{}", encoding="utf-8")
    return paths


def changed(run: RunPaths, *words: str) -> tuple[Config, str]:
    changes = resumed_config(run, read_config(run), ResumeRequest(words))
    return changes.config, "\n".join(changes.notes)


def row(run: RunPaths, **changes: Any) -> RunStatus:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(RunStatus)}
    values |= {"path": str(run.root), "job_id": "7", "state": "FAILED", "detail": "", "is_over": True, **changes}
    return RunStatus(**values)


@pytest.mark.parametrize(
    ("changes", "force", "words"),
    [
        ({"state": "RUNNING", "is_over": False}, False, "is RUNNING as job 7; cancel it first"),
        ({"state": "RUNNING", "is_over": False}, True, "is RUNNING as job 7"),
        ({"state": "PENDING", "is_over": False, "detail": "Resources"}, False, r"is PENDING as job 7 \(Resources\)"),
        ({"state": "UNKNOWN", "detail": "squeue: no answer"}, False, r"is not known \(squeue: no answer\); look with"),
        ({"state": "UNKNOWN", "is_over": False}, False, "resume with --force"),
    ],
)
def test_a_run_that_may_be_active_is_left_alone(
    run: RunPaths, changes: dict[str, Any], force: bool, words: str
) -> None:
    with pytest.raises(LaunchError, match=words):
        check_is_over(run, row(run, **changes), force)


@pytest.mark.parametrize(("changes", "force"), [({}, False), ({"state": "UNKNOWN", "is_over": False}, True)])
def test_a_run_that_is_over_may_go_on(run: RunPaths, changes: dict[str, Any], force: bool) -> None:
    check_is_over(run, row(run, **changes), force)


@pytest.mark.parametrize(
    ("words", "done", "expected"),
    [
        (("model.num_layers=3",), False, "model.num_layers=3: decides what the run computes"),
        (("training.seed=1", "training.learning_rate=0.1"), False, "training.learning_rate=0.1: decides"),
        (("cluster=local",), False, "cluster.kind=local: the run was made for cluster.kind=slurm"),
        (("training.num_steps=10",), False, "training.num_steps=10: the run was begun for 20 steps.*nearest: 20"),
        ((), True, "training.num_steps=20: the run has completed its 20 steps; .*with N above 20"),
        (("cluster.tyme=3",), False, "is no key of hpctrain"),
    ],
)
def test_what_may_not_change(run: RunPaths, words: tuple[str, ...], done: bool, expected: str) -> None:
    if done:
        write_record(run.attempt(1), attempt(1, state="completed", end_reason="completed"))
    with pytest.raises(ConfigError, match=expected):
        changed(run, *words)


def test_what_may_change_is_told(run: RunPaths) -> None:
    write_record(run.attempt(1), attempt(1, state="completed", end_reason="completed"))
    config, notes = changed(run, "cluster.time=2:00:00", "training.num_steps=40", "env.NCCL_DEBUG=INFO")
    assert (config.cluster.time, config.training.num_steps, config.env["NCCL_DEBUG"]) == ("2:00:00", 40, "INFO")
    for text in ("cluster.time is changed", "the learning-rate schedule now ends there, and not at 20"):
        assert text in notes


def test_ranks_and_parallelism_may_change_and_the_global_batch_stays(run: RunPaths) -> None:
    before = build_run_plan(read_config(run))
    config, notes = changed(run, "nodes=1", "parallelism=zero1")
    after = build_run_plan(config)
    assert (config.nodes, config.parallelism.zero_stage) == (1, 1)
    assert after.batch.global_batch_size == before.batch.global_batch_size == config.training.global_batch_size
    assert f"training.global_batch_size={before.batch.global_batch_size}: stays what it was" in notes
    assert changed(run, "run.note=x")[0].training.global_batch_size is None
    stated, notes = changed(run, "training.gradient_accumulation_steps=2", "training.micro_batch_size=1")
    assert stated.training.gradient_accumulation_steps == 2
    run.config.write_text(config_text(stated), encoding="utf-8")
    again, notes = changed(run, "nodes=1")
    assert again.training.gradient_accumulation_steps is None
    assert "training.gradient_accumulation_steps=null: it follows from the global batch and the ranks" in notes


def test_a_ramp_that_does_not_divide_over_the_new_ranks_is_told_with_what_remains(run: RunPaths) -> None:
    words = (*WORDS, "training.micro_batch_size=2", "training.global_batch_size=32")
    (point,) = compose_points([*words, "training.batch_ramp={start: 8, increment: 8, samples: 160}"], multirun=False)
    run.config.write_text(config_text(point.config), encoding="utf-8")
    before = build_run_plan(point.config)
    assert before.problems == ()
    run.plan.write_text(before.to_json(), encoding="utf-8")
    config, _ = changed(run, "nodes=4")
    refused = refused_as_resumed(ConfigError(build_run_plan(config).problems))
    start, increment, last = str(refused).splitlines()
    fix = "nearest: 16, or training.micro_batch_size=1"
    assert (start.endswith(fix), increment.endswith(fix)) == (True, True), str(refused)
    assert last.startswith("training.batch_ramp.start and training.batch_ramp.increment stay what they were in a run")
    config, _ = changed(run, "nodes=4", "training.micro_batch_size=1")
    after = build_run_plan(config)
    assert after.problems == ()
    assert [after.batch.samples_before(step) for step in range(1, 21)] == [
        before.batch.samples_before(step) for step in range(1, 21)
    ]


def test_other_refusals_of_a_resumed_run_stay_as_they_are() -> None:
    for key in ("training.micro_batch_size", "parallelism.tensor_parallel_size", "memory.gpu_bytes"):
        error = ConfigError([Problem(key, "3", "is wrong", "nearest: 4")])
        assert refused_as_resumed(error) is error


def test_a_checkpoint_of_other_ranks_is_told(run: RunPaths) -> None:
    config = read_config(run)
    plan = build_run_plan(config)
    save_checkpoint(run, 8)
    (checkpoint,) = complete_checkpoints(run)
    told = start_note(run, checkpoint, plan)
    assert told.startswith("goes on after step 8 of 20; its state, saved by 1 rank of ZeRO 1, is cut anew for")
    assert f"{plan.layout.world_size} ranks of ZeRO {plan.zero_stage} (data parallel" in told
    assert [has_checkpoint(run, step) for step in (None, 8, 0)] == [True, True, False]


def test_what_the_plan_chose_stays_whatever_was_calibrated_since(run: RunPaths) -> None:
    words = ("model=28b", "parallelism=zero_cache", "nodes=4", "hardware=ndm_a100_v4", "cluster=slurm")
    (point,) = compose_points([*words, "training.warmup_steps=2"], multirun=False)
    run.config.write_text(config_text(point.config), encoding="utf-8")
    slow = dataclasses.replace(CALIBRATION, factors={"communication": 5.0})
    begun, today = build_run_plan(dataclasses.replace(point.config, calibration=slow)), build_run_plan(point.config)
    assert begun.batch.micro_batch_size != today.batch.micro_batch_size
    run.plan.write_text(begun.to_json(), encoding="utf-8")
    changes = resumed_config(run, read_config(run), ResumeRequest(("run.note=x",)))
    goes_on = build_run_plan(changes.to_plan)
    assert (goes_on.batch, goes_on.activation_checkpointing) == (begun.batch, begun.activation_checkpointing)
    assert goes_on.ds_config == begun.ds_config
    # What nobody stated stays open in the run folder, and other ranks choose anew, for the same global batch.
    assert changes.to_freeze(changes.to_plan) == changes.config
    assert changes.config.training.micro_batch_size is None
    spread = resumed_config(run, read_config(run), ResumeRequest(("nodes=2",)))
    assert spread.to_plan == spread.config
    assert spread.config.training.global_batch_size == begun.batch.global_batch_size


def test_a_pipeline_keeps_the_accumulation_that_followed_from_the_batch_it_held(run: RunPaths) -> None:
    """As a run that another rule planned: with 5 micro steps, where 8 sequences a GPU are 8 x 4 / 2 = 16 by the one of today."""
    words = ("model=1.3b", "parallelism=zero1", "parallelism.pipeline_parallel_size=4", "nodes=2", "cluster=slurm")
    settings = ("training.micro_batch_size=2", "training.activation_checkpointing=full", "training.warmup_steps=2")
    (point,) = compose_points([*words, *settings, "hardware=ndm_a100_v4"], multirun=False)
    today = build_run_plan(point.config)
    training = dataclasses.replace(point.config.training, gradient_accumulation_steps=5)
    begun = build_run_plan(dataclasses.replace(point.config, training=training))
    assert (today.batch.gradient_accumulation_steps, begun.batch.gradient_accumulation_steps) == (16, 5)
    run.config.write_text(config_text(point.config), encoding="utf-8")
    run.plan.write_text(begun.to_json(), encoding="utf-8")
    changes = resumed_config(run, read_config(run), ResumeRequest(("run.note=x",)))
    assert build_run_plan(changes.to_plan).batch == begun.batch
    assert changes.to_freeze(changes.to_plan).training.gradient_accumulation_steps is None


def test_failed_nodes_are_offered_or_left_out(run: RunPaths) -> None:
    ends = [("node_failure", "h04"), ("exception", "h01"), ("node_failure", "h04,h02")]
    for number, (reason, node) in enumerate(ends, start=1):
        write_record(run.attempt(number), attempt(number, state="failed", end_reason=reason, failed_node=node))
    assert failed_nodes(read_attempts(run)) == ["h04", "h02"]
    config, notes = changed(run)
    assert config.cluster.exclude is None
    assert "node h04, h02 failed in an earlier attempt; leave it out with cluster.exclude='\"h04,h02\"'" in notes
    config, notes = changed(run, "launch.exclude_failed_nodes=true", 'cluster.exclude="h[02-03]"')
    assert config.cluster.exclude == "h[02-03],h04"
    assert "cluster.exclude=h[02-03],h04: failed in an earlier attempt" in notes


def test_the_checkpoint_must_fit_the_plan(run: RunPaths) -> None:
    config = read_config(run)
    plan = build_run_plan(config)
    assert checkpoint_to_go_on_from(run, plan, config, None) is None
    save_checkpoint(run, 8)
    with pytest.raises(ConfigError, match=r"training.precision=fp32: the checkpoint of step 8 was saved with x"):
        checkpoint_to_go_on_from(run, plan, config, None)
    with pytest.raises(ConfigError, match="--from-step 4: there is no complete checkpoint of this step; there are: 8"):
        checkpoint_to_go_on_from(run, plan, config, 4)
    with pytest.raises(ConfigError, match=r"--from-step 15: there is no complete checkpoint.*there are: 8"):
        check_from_step(run, 15)
    check_from_step(run, 0)
    check_from_step(run, 8)
    assert checkpoint_to_go_on_from(run, plan, config, 0) is None


def test_former_records_are_kept_and_come_back(run: RunPaths) -> None:
    submission = SubmissionRecord(1, "slurm", "7", 1.0, "h", command=("sbatch",), first_attempt=3)
    write_record(run.submission, submission)
    former = FormerRecords(run)
    former.keep()
    assert not run.submission.exists()
    assert run.config.exists()
    kept = {path.name for path in run.earlier_submissions.iterdir()}
    assert kept == {"3.json", "3.config.yaml", "3.plan.json", "3.overrides.json", "3.code.json"}
    former.put_back()
    assert read_submission(run) == submission
    assert not run.earlier_submissions.exists()
    # The next submission may begin with the same number, if nothing was started in between.
    for _ in range(2):
        FormerRecords(run).keep()
        write_record(run.submission, submission)
    assert {path.name for path in run.earlier_submissions.glob("*[0-9].json")} == {"3.json", "3-2.json"}


def test_former_records_come_back_where_they_could_not_all_be_kept(run: RunPaths) -> None:
    write_record(run.submission, SubmissionRecord(1, "slurm", "7", 1.0, "h", command=("sbatch",)))
    former = FormerRecords(run)
    run.overrides.unlink()
    with pytest.raises(FileNotFoundError):
        former.keep()
    assert not run.submission.exists()
    former.put_back()
    assert read_submission(run).job_id


def test_two_resumes_of_one_run_are_kept_apart(run: RunPaths) -> None:
    with locked(run), pytest.raises(LaunchError, match="is being resumed by another process"), locked(run):
        pass
    with locked(run):
        pass


def test_a_rerun_has_the_frozen_configuration_with_overrides(run: RunPaths) -> None:
    point, root = rerun_point(run, ["nodes=4", "run.note=again"])
    frozen = read_config(run)
    assert (point.config.nodes, point.config.run.note, point.config.model) == (4, "again", frozen.model)
    assert (root, point.rerun_of) == (run.root.parent, str(run.root))
    assert point.overrides == (*json.loads(run.overrides.read_text(encoding="utf-8")), "nodes=4", "run.note=again")
    # Of a sweep's point: beside the sweep, and not in it.
    (run.root.parent / "sweep.json").write_text("{}", encoding="utf-8")
    assert rerun_point(run, [])[1] == run.root.parent.parent
    assert rerun_point(run, ["run.root=/elsewhere"])[1] == Path("/elsewhere")


@pytest.fixture
def chosen_run(run: RunPaths) -> RunPaths:
    """Of which nobody stated the parallelism."""
    composed = compose_points([word for word in WORDS if not word.startswith("parallelism=")], multirun=False)
    ((point, plan),) = plan_points(composed)
    assert plan.choice is not None
    run.config.write_text(config_text(point.config), encoding="utf-8")
    run.plan.write_text(plan.to_json(), encoding="utf-8")
    return run


def test_a_rerun_keeps_what_was_chosen_and_chooses_anew_on_request(chosen_run: RunPaths) -> None:
    frozen = read_config(chosen_run)
    assert set(frozen.run.chosen) == NEUTRAL.keys()
    kept, _ = rerun_point(chosen_run, ["nodes=4"])
    assert not kept.is_open
    assert (kept.config.parallelism, kept.config.training) == (frozen.parallelism, frozen.training)
    (note,) = kept.assumptions
    assert note.startswith(
        f"parallelism={frozen.parallelism.name} stays, which parallelism=auto chose before nodes changed"
    )
    assert rerun_point(chosen_run, ["run.note=x"])[0].assumptions == ()
    again, _ = rerun_point(chosen_run, ["nodes=4", "parallelism=auto", "training.micro_batch_size=2"])
    assert set(again.open_keys) == NEUTRAL.keys() - {"training.micro_batch_size"}
    ((closed, plan),) = plan_points([again])
    assert plan.batch.micro_batch_size == 2
    assert set(closed.config.run.chosen) == set(again.open_keys)


def test_a_run_goes_on_with_a_new_choice_for_the_same_global_batch(chosen_run: RunPaths) -> None:
    before = read_plan(chosen_run)
    config, notes = changed(chosen_run, "nodes=1", "parallelism=auto")
    assert config.parallelism.name != "auto"
    after = build_run_plan(config)
    assert after.problems == ()
    assert after.batch.global_batch_size == before.batch.global_batch_size
    assert "parallelism chosen: parallelism=" in notes
    assert "nodes is changed" in notes
    assert not [line for line in notes.splitlines() if line.endswith("is changed") and line != "nodes is changed"]


@pytest.mark.train
def test_a_local_run_goes_on_and_is_run_again(tmp_path: Path) -> None:
    model = ("model=tiny", "parallelism=zero3", "cluster=local", "model.num_layers=1")
    steps = ("training.warmup_steps=1", "training.num_steps=4", "training.checkpoint_at_end=true")
    answer = hpctrain(*model, *steps, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    run = only_run(tmp_path)
    done = hpctrain("resume", str(run.root), cwd=tmp_path)
    assert (done.returncode, "has completed its 4 steps" in done.stderr) == (2, True), done.stderr
    before = read_plan(run)
    spread = ("hardware.gpus_per_node=1", "parallelism=zero1")
    more = hpctrain("resume", str(run.root), "training.num_steps=6", *spread, cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    ranks = f"{before.layout.world_size} ranks of ZeRO {before.zero_stage}"
    told = f"goes on after step 4 of 6; its state, saved by {ranks}, is cut anew for 1 rank of ZeRO 1"
    assert told in more.stdout
    assert read_plan(run).batch.global_batch_size == before.batch.global_batch_size
    first, second = read_attempts(run)
    assert (first.state, second.state, second.resumed_from_step, second.start_step) == ("completed", "completed", 4, 4)
    assert [record.step for record in StepsFile(run.steps).new_records() if record.attempt == 2] == [5, 6]
    assert read_submission(run).first_attempt == 2
    assert (run.earlier_submissions / "1.json").exists()

    anew = hpctrain("rerun", str(run.root), "training.num_steps=2", "cluster.wait=false", cwd=tmp_path)
    assert anew.returncode == 0, anew.stderr
    (other,) = set((tmp_path / "runs").glob("[!.]*")) - {run.root}
    assert json.loads(RunPaths(other).code.read_text(encoding="utf-8"))["rerun_of"] == str(run.root)
    assert read_config(RunPaths(other)).training.num_steps == 2
    hpctrain("cancel", str(other), cwd=tmp_path)
