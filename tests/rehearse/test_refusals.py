"""What the engine refuses, and what a rehearsal cannot carry, is said; nothing is written."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.errors import EXIT_CONFIG, ConfigError
from hpctrain.plan.run_plan import RunPlan
from hpctrain.rehearse.stand_ins import CannotRehearseError, _loaded
from tests.rehearse.rehearsals import conduct, make_plan, make_request, rehearse, with_ds_config

pytestmark = pytest.mark.train


def test_the_engines_sentence_and_ours() -> None:
    plan = with_ds_config(make_plan(3), mics_shard_size=4)
    with pytest.raises(ConfigError) as caught:
        rehearse(plan)
    (problem,) = caught.value.problems
    assert caught.value.exit_code == EXIT_CONFIG
    text = str(problem)
    assert text.startswith(
        "parallelism=zero3: DeepSpeed " + version("deepspeed") + " refuses this configuration while the "
    )
    assert "mics_shard_size" in text
    assert "DeepSpeedConfigError in runtime/config.py" in text


def with_top_level(plan: RunPlan, **keys: Any) -> RunPlan:
    """The plan with other keys of DeepSpeed's, past our own rules."""
    return dataclasses.replace(plan, ds_config=plan.ds_config | keys)


PIPELINE = make_plan(1, parallelism={"pipeline_parallel_size": 2}, gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("plan", "phase", "sentence", "place"),
    [
        (
            with_ds_config(make_plan(3), no_such_key=1),
            "the model is built",
            "no_such_key Extra inputs are not permitted",
            "ValidationError in runtime/config_utils.py",
        ),
        (
            with_ds_config(PIPELINE, stage=2),
            "the engine is built",
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            "AssertionError in runtime/pipe/engine.py",
        ),
        (
            with_top_level(make_plan(3), train_batch_size=7),
            "the model is built",
            "7 != 2 * 1 * 16",
            "AssertionError in runtime/config.py",
        ),
        (
            with_ds_config(make_plan(3), zero_hpz_partition_size=3),
            "the model is built",
            "16 is not divisible by 3",
            "AssertionError in utils/groups.py",
        ),
    ],
    ids=["unknown key", "pipeline with stage 2", "batch", "hpZ"],
)
def test_the_engines_own_sentence(plan: RunPlan, phase: str, sentence: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rehearse(plan)
    text = str(caught.value)
    assert f"refuses this configuration while {phase}, as every rank of the job would" in text
    assert sentence in text
    assert place in text


def test_a_native_library_without_a_stand_in_is_named() -> None:
    with pytest.raises(
        CannotRehearseError, match="sparse_attn: DeepSpeed calls this native library here, and the rehearsal has no"
    ):
        _loaded(SimpleNamespace(name="sparse_attn"))


def test_the_first_that_is_refused_ends_the_others() -> None:
    plan = with_ds_config(PIPELINE, stage=2)
    with pytest.raises(ConfigError, match="incompatible with pipeline parallelism"):
        conduct([make_request(plan, rank=rank) for rank in (0, 8)])
