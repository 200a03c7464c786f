"""A part of the optimizer on the host and the rest on the GPU: two optimizers of the engine, made to work as one."""

from __future__ import annotations

from typing import Any


def join_optimizers(engine: Any) -> None:
    """Gives the engine's optimizer of the GPU sub-groups the settings and states of that of the host's.

    DeepSpeed 0.19.8 makes a second optimizer for the sub-groups that stay on the GPU (stage3.py ``backup_optimizer``). It is left
    alone where the first is reached from outside: a new learning rate stays unknown to its first group of parameters, and its
    moments are not in checkpoints. Sharing both ends this; what is loaded from a checkpoint replaces them, so it is done again
    after that. A state belongs to the tensor of one sub-group, so none is known to both.

    Args:
        engine: DeepSpeed's; one without a second optimizer stays as it is.
    """
    on_gpu = getattr(engine.optimizer, "backup_optimizer", None)
    if on_gpu is None:
        return
    on_host = engine.optimizer.optimizer
    for group in on_host.param_groups:
        # Names that torch's AdamW looks up and DeepSpeed's does not have.
        for name, value in on_gpu.defaults.items():
            group.setdefault(name, value)
    on_gpu.param_groups, on_gpu.state = on_host.param_groups, on_host.state
