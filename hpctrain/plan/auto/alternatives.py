"""What ``parallelism=auto`` chose and what came next, as the plan keeps it: plain numbers, and words to type."""

from __future__ import annotations

from dataclasses import dataclass

CHOICE_NOTE = "parallelism chosen:"
"""How the note of a choice begins."""


@dataclass(frozen=True)
class Alternative:
    """One configuration that was looked at. None: the hardware states too little for this number."""

    parallelism: str
    """The group that it equals, or a name made of its parts."""
    overrides: tuple[str, ...]
    """What states it on a command line."""
    micro_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    activation_checkpointing: str
    offload_activations: bool
    step_time_s: float | None
    """Predicted."""
    tokens_per_s: float | None
    gpu_free_bytes: int | None
    """Of the fullest GPU; negative: short by as much."""
    host_free_bytes: int | None
    """Of a node's memory."""
    fits: bool
    reason: str
    """Beside the choice, in a phrase; of the choice itself what it is."""


@dataclass(frozen=True)
class AutoChoice:
    """The outcome of one search."""

    num_considered: int
    """Configurations that were compared."""
    alternatives: tuple[Alternative, ...]
    """The choice first, then its runner-ups, best first."""
    held_equal: str
    """What all of them have in common, in a phrase; empty: nothing to tell."""
