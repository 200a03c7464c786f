"""Which keys of a configuration decide what a step computes, and which only how it is computed; pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpctrain.config.schema import Config

HOW_IT_IS_SPREAD = (
    *("nodes", "hardware.gpus_per_node", "parallelism.", "training.micro_batch_size"),
    *("training.gradient_accumulation_steps", "training.activation_checkpointing", "training.offload_activations"),
    "training.loss_chunk_size",
)
"""Over how many ranks, and in which parts: the global batch stays, and a checkpoint's state is cut anew."""
DECIDE_NOTHING = (
    *("cluster.", "launch.", "env.", "run.note", "training.num_steps", "training.log_interval"),
    *("training.keep_checkpoints", "training.checkpoint_", "training.check_checkpoint_room"),
    *("training.start_timeout_min", "training.collective_timeout_min", "training.telemetry_interval_s"),
    *("training.compile", *HOW_IT_IS_SPREAD),
)
"""Keys, or beginnings of keys, that do not decide what a step computes: a run that goes on may change them."""
_RESOLVED_BY_THE_PLAN = ("training.seq_len", "training.global_batch_size", "training.precision")
_LOOK_ON = ("training.validation_", "data.validation_path", "data.tokenizer_digest")


def loss_settings(config: Config) -> dict[str, Any]:
    """Values by key, all of which are equal where final losses may be compared.

    What a step computes, and how many steps the schedule has. Left out: names, what the plan resolves (shape, batch and data
    type, as it says itself), and what is only looked at or checked.
    """
    sections = {"training": dataclasses.asdict(config.training), "data": dataclasses.asdict(config.data)}
    values = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    left_out = (*DECIDE_NOTHING, *_RESOLVED_BY_THE_PLAN, *_LOOK_ON, "training.name", "data.name")
    settings = {key: value for key, value in values.items() if not key.startswith(left_out)}
    return settings | {"training.num_steps": config.training.num_steps, "model.init_std": config.model.init_std}
