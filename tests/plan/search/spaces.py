"""Configurations with open keys, as the tests of the search take them."""

from __future__ import annotations

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.search.candidate import OpenKeys, Space
from hpctrain.plan.search.held_batch import held_batches
from hpctrain.plan.search.space import search_space


def open_config(*words: str) -> tuple[Config, OpenKeys]:
    """Composed with ``parallelism=auto``; what the words state is not open."""
    (point,) = compose_points(["parallelism=auto", *words], multirun=False)
    return point.config, OpenKeys(frozenset(point.open_keys))


def space_of(config: Config, open_keys: OpenKeys, uses_nvme: bool = False) -> Space:
    """Of the first batch that is held equal."""
    seq_len = config.training.seq_len or resolve_model_shape(config.model)[0].max_seq_len
    held = next(held_batches(config, open_keys, seq_len))
    return search_space(config, open_keys, held.num_sequences, uses_nvme)
