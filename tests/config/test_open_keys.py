"""Which keys nobody stated."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpctrain.config.changes import change_config
from hpctrain.config.compose import Point, compose_points
from hpctrain.config.open_keys import NEUTRAL, value_at
from hpctrain.config.schema import Config, ParallelismConfig, TrainingConfig
from hpctrain.errors import ConfigError
from hpctrain.launch.point_plans import plan_points

AUTO = ("model=tiny", "parallelism=auto")


def composed(*words: str) -> Point:
    (point,) = compose_points(words, multirun=False)
    return point


def test_auto_is_the_default_and_leaves_all_of_it_open() -> None:
    point = composed("model=tiny")
    assert point.config.parallelism.name == "auto"
    assert point.open_keys == tuple(NEUTRAL)
    assert "not stated: parallelism=auto, training=pretrain, data=stdlib" in point.assumptions


def test_a_group_that_is_stated_leaves_nothing_open() -> None:
    point = composed("model=tiny", "parallelism=zero3")
    assert (point.open_keys, point.is_open) == ((), False)
    assert point.config.training.micro_batch_size is None


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("parallelism.tensor_parallel_size=2", "parallelism.tensor_parallel_size"),
        ("parallelism.zero_stage=0", "parallelism.zero_stage"),
        ("training.micro_batch_size=2", "training.micro_batch_size"),
        ("training.offload_activations=false", "training.offload_activations"),
        ("training.activation_checkpointing=none", "training.activation_checkpointing"),
    ],
)
def test_what_is_stated_is_closed_even_at_its_plainest_value(word: str, key: str) -> None:
    point = composed(*AUTO, word)
    assert set(point.open_keys) == NEUTRAL.keys() - {key}
    assert str(value_at(point.config, key)).lower() == word.partition("=")[2]


def test_null_opens_a_single_key_of_a_stated_group() -> None:
    point = composed("model=tiny", "parallelism=zero1", "parallelism.tensor_parallel_size=null")
    of_parallelism = [key for key in point.open_keys if key.startswith("parallelism.")]
    assert of_parallelism == ["parallelism.tensor_parallel_size"]
    assert (point.config.parallelism.name, point.config.parallelism.zero_stage) == ("zero1", 1)


def test_a_sites_own_file_may_leave_keys_open(tmp_path: Path) -> None:
    (tmp_path / "parallelism").mkdir()
    text = "name: ours\nzero_stage: null\ntensor_parallel_size: null\noverlap_comm: false\n"
    (tmp_path / "parallelism" / "ours.yaml").write_text(text, encoding="utf-8")
    (point,) = compose_points(["model=tiny", "parallelism=ours"], False, extra_dirs=[tmp_path])
    of_parallelism = [key for key in point.open_keys if key.startswith("parallelism.")]
    assert of_parallelism == ["parallelism.zero_stage", "parallelism.tensor_parallel_size"]
    ((closed, plan),) = plan_points([point])
    assert (closed.config.parallelism.name, closed.config.parallelism.overlap_comm) == ("ours", False)
    assert plan.choice is not None
    assert plan.problems == ()


def test_keys_that_are_not_searched_stay_as_strict_as_they_were() -> None:
    with pytest.raises(ConfigError, match=r"parallelism.overlap_comm=null: must be true or false"):
        composed(*AUTO, "parallelism.overlap_comm=null")
    with pytest.raises(ConfigError, match=r"training.offload_activations=null: must be true or false"):
        composed("model=tiny", "parallelism=zero3", "training.offload_activations=null")


def test_points_of_a_sweep_have_their_own_open_keys() -> None:
    points = compose_points([*AUTO, "parallelism.zero_stage=null,1", "training.micro_batch_size=2,4"], multirun=True)
    stages = ["parallelism.zero_stage" in point.open_keys for point in points]
    assert stages == [True, True, False, False]
    assert not any("training.micro_batch_size" in point.open_keys for point in points)


def test_every_searched_key_is_one_of_the_schema_at_its_default() -> None:
    defaults = {"parallelism": ParallelismConfig("x", 0), "training": TrainingConfig("x", 1)}
    for key, value in NEUTRAL.items():
        section, _, name = key.partition(".")
        assert getattr(defaults[section], name) == value, key


@pytest.fixture
def frozen() -> Config:
    """As a run whose parallelism was chosen keeps it."""
    config = composed("model=tiny", "parallelism=zero1", "training.micro_batch_size=4").config
    chosen = ("parallelism.zero_stage", "training.micro_batch_size", "training.offload_activations")
    return dataclasses.replace(config, run=dataclasses.replace(config.run, chosen=chosen))


def test_what_was_chosen_stays_in_a_changed_configuration(frozen: Config) -> None:
    changed = change_config(frozen, ("nodes=2",))
    assert (changed.open_keys, changed.changed) == ((), ("nodes",))
    assert changed.config.training.micro_batch_size == 4
    assert changed.config.run.chosen == frozen.run.chosen


def test_auto_asked_for_again_opens_what_it_had_chosen_and_nothing_that_was_stated(frozen: Config) -> None:
    stated = dataclasses.replace(frozen, training=dataclasses.replace(frozen.training, activation_checkpointing="full"))
    changed = change_config(stated, ("parallelism=auto",))
    assert set(changed.open_keys) == NEUTRAL.keys() - {"training.activation_checkpointing"}
    again = change_config(stated, ("parallelism=auto", "training.micro_batch_size=2"))
    assert "training.micro_batch_size" not in again.open_keys
    assert again.config.training.micro_batch_size == 2


def test_what_is_stated_later_was_not_chosen(frozen: Config) -> None:
    changed = change_config(frozen, ("parallelism=zero3", "training.offload_activations=false"))
    assert changed.config.run.chosen == ("training.micro_batch_size",)
    assert changed.config.parallelism.zero_stage == 3
