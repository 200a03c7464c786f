"""What the submitting shell adds to a configuration: sbatch's own input variables, and the folder of relative paths."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any

from hpctrain.config.compose import Point
from hpctrain.config.schema import ContainerConfig
from hpctrain.plan.job.container import is_image_file

_TAKEN = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
}
"""Users' defaults on many sites. sbatch itself never sees them, so that a plan shows all that is asked for."""
_OF_A_JOB = ("SBATCH_CPU_BIND", "SBATCH_MEM_BIND")
"""Set by Slurm inside a job, not by a user."""
_OF_CHECKPOINTS = ("training.checkpoint_", "training.keep_checkpoints")


def as_submitted_here(point: Point, shell: Mapping[str, str]) -> Point:
    """The point with the shell's defaults in keys that nobody stated, each told, and with an absolute image path.

    Whether checkpoints need room is settled, too: it depends on what was stated.

    Args:
        point: as composed.
        shell: the submitting process's variables.
    """
    stated = {word.lstrip("+~").partition("=")[0] for word in point.overrides}
    point = _with_room_rule(point, stated)
    if point.config.cluster.kind != "slurm":
        return point
    cluster = point.config.cluster
    found = {
        key: (name, shell[name])
        for name, key in _TAKEN.items()
        if shell.get(name) and getattr(cluster, key) is None and f"cluster.{key}" not in stated
    }
    told = [f"cluster.{key} not stated: {value} (the shell's {name})" for key, (name, value) in found.items()]
    unused = sorted(
        name
        for name in shell
        if name.startswith("SBATCH_")
        and not name.startswith(_OF_A_JOB)
        and name not in {of for of, _ in found.values()}
    )
    if unused:
        told.append(f"the shell's {', '.join(unused)}: not used, the keys of the group cluster say what is asked for")
    changed: dict[str, Any] = {key: value for key, (_, value) in found.items()}
    cluster = dataclasses.replace(cluster, container=_absolute_image(cluster.container), **changed)
    return dataclasses.replace(
        point,
        config=dataclasses.replace(point.config, cluster=cluster),
        assumptions=(*point.assumptions, *told),
    )


def _with_room_rule(point: Point, stated: Collection[str]) -> Point:
    """Whoever states how checkpoints are made, or chains jobs, depends on them; a preset's are a convenience."""
    training = point.config.training
    if training.check_checkpoint_room is not None:
        return point
    depends = point.config.launch.chain != "none" or any(key.startswith(_OF_CHECKPOINTS) for key in stated)
    training = dataclasses.replace(training, check_checkpoint_room=depends)
    return dataclasses.replace(point, config=dataclasses.replace(point.config, training=training))


def _absolute_image(container: ContainerConfig) -> ContainerConfig:
    if container.image is None or not is_image_file(container):
        return container
    return dataclasses.replace(container, image=os.path.abspath(os.path.expanduser(container.image)))
