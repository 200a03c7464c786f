"""What keeps a run from going on from a checkpoint, with the ways out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpctrain.plan.run_plan import RunPlan, build_run_plan
from hpctrain.record.resume_check import is_cut_alike, resume_problems
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


OTHER_CUTS: dict[str, dict[str, Any]] = {
    "four ranks": {"num_ranks": 4},
    "one rank": {"num_ranks": 1},
    "stage": {"zero_stage": 2},
    "offload": {"offload": True},
    "tensor parallel": {"degrees": {"tensor_parallel_size": 2}},
    "pipeline": {"zero_stage": 1, "degrees": {"pipeline_parallel_size": 2}},
    "sequence parallel": {"degrees": {"sequence_parallel_size": 2}},
}


@pytest.mark.parametrize("name", OTHER_CUTS)
def test_over_how_many_ranks_and_with_which_parallelism_is_free(name: str) -> None:
    plan, other = plan_of(), plan_of(**OTHER_CUTS[name])
    for before, after in ((plan, other), (other, plan)):
        assert resume_problems(make_record(STEP, plan=before), after) == ()
        assert not is_cut_alike(make_record(STEP, plan=before), after)
    assert is_cut_alike(make_record(STEP, plan=other), other)


def test_another_share_on_another_tier_is_another_cut() -> None:
    plan = plan_of(offload=True)
    record = make_record(STEP, plan=plan)
    assert (record.offload_ratio, record.nvme_state_bytes) == (1.0, None)
    for changes, is_alike in (
        ({"offload_ratio": 0.5}, False),
        ({"nvme_state_bytes": 8}, False),
        ({"offload_ratio": None}, True),
    ):
        assert is_cut_alike(dataclasses.replace(record, **changes), plan) is is_alike


def test_all_problems_at_once() -> None:
    other = plan_of(num_ranks=4, precision="bf16", seq_len=16, global_batch_size=16)
    assert len(resume_problems(make_record(STEP, plan=plan_of()), other)) == 3


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
