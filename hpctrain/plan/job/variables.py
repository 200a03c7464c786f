"""The environment variables that a configuration gives to its ranks, and which of them are secret."""

from __future__ import annotations

import re

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.job.own_variables import OWN_VARIABLES
from hpctrain.secret_text import holds_secret

RANK_IDENTITY = tuple("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE NODE_RANK CROSS_RANK CROSS_SIZE".split())
"""Variables that tell a rank who it is; nobody may set them for all ranks."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLURMS_OWN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")


def stated_variables(config: Config) -> dict[str, str]:
    """``env`` as text, ``true`` and ``false`` as ``1`` and ``0``."""
    return {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in config.env.items()}


def rank_environment(config: Config) -> dict[str, str]:
    """``env`` as text, but for the secret ones: they are written to no file and are in a rank's environment already."""
    return {name: value for name, value in stated_variables(config).items() if not holds_secret(name, value)}


def secret_variables(config: Config) -> tuple[str, ...]:
    """Names of the variables that reach the ranks by the environment of the submission only."""
    secret = [name for name, value in stated_variables(config).items() if holds_secret(name, value)]
    return tuple(dict.fromkeys((*secret, *config.env_from_shell)))


def variable_problems(config: Config) -> list[Problem]:
    """Names that a shell cannot export, values that no environment holds, and what is said twice."""
    fix = "letters, digits and _, no digit first"
    problems = []
    for name, value in stated_variables(config).items():
        if not _VARIABLE_NAME.fullmatch(name):
            problems.append(Problem(f"env.{name}", value, "is no name of an environment variable", fix))
        elif name in RANK_IDENTITY:
            rule = "every rank has its own value, computed in its task"
            problems.append(Problem(f"env.{name}", value, rule, "leave it out"))
        elif name in OWN_VARIABLES:
            problems.append(Problem(f"env.{name}", value, "is set by hpctrain itself", "leave it out"))
        elif name.startswith(_SLURMS_OWN):
            rule = "is Slurm's own variable: what is asked for is said by the keys of the group cluster"
            problems.append(Problem(f"env.{name}", value, rule, "leave it out"))
        elif "\0" in value:
            problems.append(Problem(f"env.{name}", repr(value), "holds a NUL, which no variable can", "take it out"))
    for name in config.env_from_shell:
        if not _VARIABLE_NAME.fullmatch(name):
            problems.append(Problem("env_from_shell", name, "is no name of an environment variable", fix))
        elif name in RANK_IDENTITY:
            rule = "every rank has its own value, computed in its task"
            problems.append(Problem("env_from_shell", name, rule, "leave it out"))
        elif name in config.env:
            problems.append(Problem("env_from_shell", name, f"env.{name} says it, too", "leave one of them out"))
    return problems
