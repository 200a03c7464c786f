"""Rules that join values of two groups and belong to no other subject."""

from __future__ import annotations

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.model_shape import ModelShape

_SLURM_ONLY = (
    "time partition account qos constraint reservation nodelist exclude comment exclusive memory_per_node setup srun_args extra"
).split()


def place_problems(config: Config) -> list[Problem]:
    """Nodes that the cluster has not."""
    if config.cluster.kind != "local" or config.nodes == 1:
        return []
    return [Problem("nodes", str(config.nodes), "cluster=local is this one machine", "nearest: 1, or cluster=slurm")]


def value_problems(config: Config, shape: ModelShape, seq_len: int) -> list[Problem]:
    """Rules that join two values."""
    problems = []
    if shape.architecture == "gpt" and seq_len > shape.max_seq_len:
        problems.append(
            Problem(
                "training.seq_len",
                str(seq_len),
                f"is longer than the {shape.max_seq_len} learned positions of model={shape.name}",
                f"nearest: {shape.max_seq_len}, or set model.max_seq_len={seq_len}",
            )
        )
    training = config.training
    if training.decay != "constant" and training.min_learning_rate > training.learning_rate:
        problems.append(
            Problem(
                "training.min_learning_rate",
                str(training.min_learning_rate),
                f"is above training.learning_rate={training.learning_rate}",
                f"nearest: {training.learning_rate}",
            )
        )
    if config.run.name is not None and not config.run.name.isprintable():
        problems.append(
            Problem("run.name", repr(config.run.name), "must be printable, on one line", "take the sign out")
        )
    return problems


def slurm_only_problems(config: Config) -> list[Problem]:
    """Keys that ask something of Slurm, where there is none."""
    kind = config.cluster.kind
    if kind == "slurm":
        return []
    # AzureML has a time limit, too.
    keys = [key for key in _SLURM_ONLY if not (kind == "azureml" and key == "time")]
    return [
        Problem(f"cluster.{key}", str(value), f"is asked of Slurm, and cluster={kind} has none", "leave it out")
        for key in keys
        if (value := getattr(config.cluster, key))
    ]
