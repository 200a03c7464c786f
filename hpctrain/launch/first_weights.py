"""The folder of ``training.init_from``, held against the model at submission: names and shapes, no weight is read."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rules.first_weights import KEY
from hpctrain.plan.run_plan import RunPlan
from hpctrain.user_path import user_path


def check_first_weights(points: Sequence[tuple[Config, RunPlan]]) -> list[str]:
    """Whether the runs that begin with a folder's weights can; what is to be known where they can.

    Args:
        points: configuration and plan of each run; what several share is looked at once.

    Raises:
        ConfigError: the folder is none, or does not fit the model; all reasons at once.
        LaunchError: safetensors is not installed.
    """
    asked: list[tuple[str, ModelShape]] = []
    problems: list[Problem] = []
    notes: list[str] = []
    for config, plan in points:
        named = config.training.init_from
        if named is None or plan.payload != "train" or (named, plan.model) in asked:
            continue
        asked.append((named, plan.model))
        from hpctrain.huggingface.folder import folder_problems, read_folder  # of use for such runs alone

        found, told = folder_problems(read_folder(user_path(named)), plan.model)
        problems += [Problem(KEY, named, text, "") for text in found]
        notes += told
    if problems:
        raise ConfigError(problems)
    return notes
