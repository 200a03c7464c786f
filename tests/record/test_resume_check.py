"""What keeps a run from going on from a checkpoint, with the ways out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.resume_check import resume_problems
from tests.record.checkpoint_folder import make_record
from tests.worker.run_folder import GPT, LLAMA, make_config

STEP = 10


def plan_of(**changes: Any) -> RunPlan:
    return build_run_plan(make_config(**changes))


def texts(plan: RunPlan, **arguments: Any) -> str:
    return "\n".join(map(str, resume_problems(make_record(STEP, plan=plan_of()), plan, **arguments)))


def test_the_same_plan_goes_on() -> None:
    assert texts(plan_of(), seed=1234, corpus_digest="abc") == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 500},
        {"num_steps": STEP},
        {"learning_rate": 1e-4},
        {"micro_batch_size": 2},
        {"log_interval": 1},
        {"model": GPT | {"name": "another-name", "init_std": 0.1}},
        {"activation_checkpointing": "full"},
    ],
    ids=str,
)
def test_what_may_differ(changes: dict[str, Any]) -> None:
    assert texts(plan_of(**changes)) == ""


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "four ranks": (
        {"num_ranks": 4},
        (
            "nodes=1: 1 node x 4 GPUs make 4 ranks, and the checkpoint of step 10 is cut for 2",
            "nodes x hardware.gpus_per_node = 2, or start a new run",
            "universal checkpoints, which fit any number of ranks, are not offered yet",
        ),
    ),
    "one rank": ({"num_ranks": 1}, ("nodes=1: 1 node x 1 GPU make 1 rank,", "set nodes=2")),
    "stage": (
        {"zero_stage": 2},
        ("parallelism.zero_stage=2: the checkpoint of step 10 was saved with 3; set parallelism.zero_stage=3",),
    ),
    "offload": (
        {"offload": True},
        ("parallelism.offload_optimizer=cpu: the checkpoint of step 10 was saved with none", "offload_param=cpu"),
    ),
    "precision": ({"precision": "bf16"}, ("training.precision=bf16: the checkpoint of step 10 was saved with fp32",)),
    "width": ({"model": GPT | {"hidden_size": 64}}, ("model.hidden_size=64: ", "saved with 32", "model.head_dim=16")),
    "architecture": ({"model": LLAMA}, ("model.architecture=llama: ", "saved with gpt")),
    "batch": (
        {"global_batch_size": 16},
        ("training.global_batch_size=16: the checkpoint of step 10 was saved with 8", "the order of the data"),
    ),
    "length": ({"seq_len": 16}, ("training.seq_len=16: the checkpoint of step 10 was saved with 32",)),
    "fewer steps": (
        {"num_steps": 9},
        ("training.num_steps=9: the checkpoint is of step 10 already; nearest: 10; above it, it goes on",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not(name: str) -> None:
    changes, parts = REFUSED[name]
    found = texts(plan_of(**changes))
    for part in parts:
        assert part in found


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size", "sequence_parallel_size"])
def test_other_degrees(name: str) -> None:
    plan, changed = plan_of(zero_stage=1), plan_of(zero_stage=1, degrees={name: 2})
    (problem,) = resume_problems(make_record(STEP, plan=plan), changed)
    assert f"parallelism.{name}=2: the checkpoint of step 10 was saved with 1; set parallelism.{name}=1" in str(problem)
    assert resume_problems(make_record(STEP, plan=changed), changed) == ()


def test_all_problems_at_once() -> None:
    assert len(resume_problems(make_record(STEP, plan=plan_of()), plan_of(num_ranks=4, zero_stage=1, seq_len=16))) == 4


def test_another_seed_or_text() -> None:
    assert "training.seed=7: the checkpoint of step 10 was saved with 1234" in texts(plan_of(), seed=7)
    assert "data=synthetic: the tokens have digest xyz, those of the checkpoint of step 10 abc" in texts(
        plan_of(), corpus_digest="xyz"
    )


def test_a_value_that_an_older_version_did_not_have() -> None:
    record = make_record(STEP, plan=plan_of())
    record = dataclasses.replace(record, model=record.model | {"window": 128})
    (problem,) = resume_problems(record, plan_of())
    assert "model.window=None: the checkpoint of step 10 was saved with 128" in str(problem)
