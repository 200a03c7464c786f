"""From a run's records to what trackers take: named numbers at a step; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.record.schema import StepRecord, ValidationRecord
from hpctrain.units import GIB


@dataclass(frozen=True)
class Point:
    """Numbers that were measured at one step."""

    step: int
    time_s: float
    """Unix time."""
    values: dict[str, float]
    """By name, all finite."""


def step_point(record: StepRecord, tokens: int) -> Point:
    """What a tracker gets of a step; what is not known is left out.

    Args:
        record: of the step.
        tokens: consumed by the run up to this step, all ranks together.
    """
    known = {
        "train/loss": record.loss,
        "train/learning_rate": record.learning_rate,
        "train/grad_norm": record.grad_norm,
        "train/loss_scale": record.loss_scale,
        "train/skipped": float(record.skipped),
        "train/tokens": float(tokens),
        "time/step_s": record.step_time_s,
        "time/data_s": record.data_time_s,
        "time/forward_s": record.forward_time_s,
        "time/backward_s": record.backward_time_s,
        "time/optimizer_s": record.optimizer_time_s,
        "speed/tokens_per_s": record.tokens / record.step_time_s if record.step_time_s > 0 else None,
        "memory/peak_gib": record.peak_memory_bytes / GIB,
    }
    return Point(record.step, record.time_s, {name: value for name, value in known.items() if value is not None})


def validation_point(record: ValidationRecord) -> Point:
    """What a tracker gets of a validation."""
    known = {"validation/loss": record.loss, "time/validation_s": record.validation_time_s}
    return Point(record.step, record.time_s, {name: value for name, value in known.items() if value is not None})
