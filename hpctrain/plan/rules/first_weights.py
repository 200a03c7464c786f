"""Rules about ``training.init_from``, the weights that a new run begins with; what is in the folder is judged at submission."""

from __future__ import annotations

from hpctrain.config.schema import Config
from hpctrain.errors import Problem

KEY = "training.init_from"


def first_weights_problems(config: Config) -> list[Problem]:
    """What keeps every rank from reading the folder, whatever is in it."""
    named = config.training.init_from
    if named is None:
        return []
    if "://" in named:
        return [Problem(KEY, named, "is read as a folder that all nodes see", "download it and name its folder")]
    if config.cluster.kind == "azureml":
        rule = "is a folder of this machine, and cluster=azureml has another one"
        return [Problem(KEY, named, rule, "leave it out, or run on Slurm or here")]
    return []
