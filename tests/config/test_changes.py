"""Overrides on a configuration that is there already."""

from __future__ import annotations

import pytest

from hpctrain.config.changes import change_config
from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError


@pytest.fixture(scope="module")
def frozen() -> Config:
    words = ["model=tiny", "parallelism=zero3", "cluster=sandbox", "nodes=2", "env.A=1", "cluster.extra.licenses=x"]
    (point,) = compose_points([*words, "model.num_layers=3"], multirun=False)
    return point.config


def test_single_keys_change_and_the_rest_stays(frozen: Config) -> None:
    words = ("nodes=4", "env.B='a b$c'", "cluster.time=2:00:00", "cluster.account=012", "training.num_steps=7")
    changed = change_config(frozen, words)
    assert changed.changed == ("nodes", "cluster.time", "cluster.account", "training.num_steps", "env.B")
    config = changed.config
    assert (config.nodes, config.cluster.account, config.env) == (4, "012", {"A": "1", "B": "a b$c"})
    assert (config.model, config.hardware) == (frozen.model, frozen.hardware)


def test_nothing_changes_without_words_or_with_the_same_value(frozen: Config) -> None:
    assert change_config(frozen, ()).config == frozen
    assert change_config(frozen, ("nodes=2", "env.A=1")).changed == ()


def test_entries_are_removed(frozen: Config) -> None:
    changed = change_config(frozen, ("~env.A", "~cluster.extra.licenses"))
    assert (changed.config.env, changed.config.cluster.extra) == ({}, {})
    assert changed.changed == ("cluster.extra.licenses", "env.A")


def test_a_groups_name_replaces_the_group(frozen: Config) -> None:
    config = change_config(frozen, ("parallelism=zero1", "model=175b")).config
    assert (config.parallelism.zero_stage, config.model.num_layers) == (1, 96)
    assert config.cluster == frozen.cluster


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nodse=4",), "nodes"),
        (("model=530B",), "there is no such model"),
        (("nodes=2.0",), "must be a whole number"),
        (("nodes=1,2",), "is a list of values"),
        (("cluster.tyme=1",), "is no key of hpctrain"),
        (("~nodes",), "only entries of env and cluster.extra can be removed"),
        (("experiment=x",), "experiment"),
        (("training=3",), "there is no such training"),
    ],
)
def test_mistakes(frozen: Config, words: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        change_config(frozen, words)
