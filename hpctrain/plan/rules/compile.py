"""What goes with ``training.compile``, and what the plan says of it."""

from __future__ import annotations

from hpctrain.config.schema import ActivationCheckpointing, Config, TrainingConfig
from hpctrain.errors import Problem

_MODES: tuple[ActivationCheckpointing, ...] = ("none", "selective", "full")
"""Of recomputation, from the fastest to the smallest."""


def recomputation_modes(training: TrainingConfig) -> tuple[ActivationCheckpointing, ...]:
    """The modes that are tried: what is stated, or all that the run can have.

    >>> recomputation_modes(TrainingConfig("x", 1)), recomputation_modes(TrainingConfig("x", 1, compile=True))
    (('none', 'selective', 'full'), ('none', 'full'))
    """
    if training.activation_checkpointing is not None:
        return (training.activation_checkpointing,)
    return tuple(mode for mode in _MODES if not (training.compile and mode == "selective"))


def compile_problems(config: Config) -> list[Problem]:
    """Selective recomputation is a choice of what eager blocks keep; of a compiled block torch's compiler chooses."""
    training = config.training
    if not training.compile or training.activation_checkpointing != "selective":
        return []
    rule = (
        "is what eager blocks keep between the passes, and with training.compile=true torch's compiler decides that: it keeps as"
        " much as without recomputation"
    )
    fix = "set training.activation_checkpointing=none or full, or leave training.compile out"
    return [Problem("training.activation_checkpointing", "selective", rule, fix)]


def compile_notes(training: TrainingConfig) -> tuple[str, ...]:
    """How the plan's numbers are to be read; empty: nothing is compiled."""
    if not training.compile:
        return ()
    text = (
        "training.compile=true: memory is that of eager blocks, for compiled ones an upper bound; the predicted step is theirs"
        " too, and the first one takes the compiler's time as well"
    )
    return (text,)
