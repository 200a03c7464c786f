"""Keys that nobody stated and the planner's search therefore chooses (``parallelism=auto``).

``conf/parallelism/auto.yaml`` has them as null, which says «choose it». A stated value closes its key, wherever it is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.config.schema import Config

AUTO = "auto"
"""The file of the group ``parallelism`` whose name stands for a choice that has not been made."""

_NEUTRAL_PARALLELISM: dict[str, Any] = {
    "zero_stage": 0,
    "offload_optimizer": "none",
    "offload_param": "none",
    "offload_ratio": 1.0,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "sequence_parallel_size": 1,
    "hpz_partition_size": 1,
}
_NEUTRAL_TRAINING: dict[str, Any] = {
    "micro_batch_size": None,
    "gradient_accumulation_steps": None,
    "activation_checkpointing": None,
    "offload_activations": False,
}
NEUTRAL: dict[str, Any] = {
    **{f"parallelism.{name}": value for name, value in _NEUTRAL_PARALLELISM.items()},
    **{f"training.{name}": value for name, value in _NEUTRAL_TRAINING.items()},
}
"""Every key that the search can choose, by its dotted name, with the plainest value; an open key has it until it is chosen."""


def close_open_keys(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values with every open key at its plainest value, so that the schema takes them, and the names of the open keys.

    Null in ``parallelism`` opens a key of it. Where something is open there, or the group is ``auto``, the searched keys of
    ``training`` that are null or left out are open too; else they stay what they are without a search.

    Args:
        values: composed and resolved, not yet typed.

    >>> parallelism = {"name": "x", "zero_stage": 3, "tensor_parallel_size": None}
    >>> closed, names = close_open_keys({"parallelism": parallelism, "training": {"micro_batch_size": 2}})
    >>> closed["parallelism"]["tensor_parallel_size"], names[:2]
    (1, ('parallelism.tensor_parallel_size', 'training.gradient_accumulation_steps'))
    """
    parallelism, training = values.get("parallelism"), values.get("training")
    if not isinstance(parallelism, Mapping) or not isinstance(training, Mapping):
        return dict(values), ()  # the schema's readers say what is wrong
    of_parallelism = [name for name in _NEUTRAL_PARALLELISM if name in parallelism and parallelism[name] is None]
    if not of_parallelism and parallelism.get("name") != AUTO:
        return dict(values), ()
    of_training = [name for name in _NEUTRAL_TRAINING if training.get(name) is None]
    closed = {
        **values,
        "parallelism": {**parallelism, **{name: _NEUTRAL_PARALLELISM[name] for name in of_parallelism}},
        "training": {**training, **{name: _NEUTRAL_TRAINING[name] for name in of_training}},
    }
    names = (*(f"parallelism.{name}" for name in of_parallelism), *(f"training.{name}" for name in of_training))
    return closed, names


def value_at(config: Config, key: str) -> Any:
    """The value of one of the keys of ``NEUTRAL``."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
