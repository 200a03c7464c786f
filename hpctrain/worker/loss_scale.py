"""The loss scale of fp16: by what the loss is multiplied before its backward pass, so that small gradients stay above zero.

fp16 has no number below 6e-8 and none above 65,504. A dynamic scale is halved where gradients overflow, whose step is then
skipped, and doubled after many steps without an overflow. Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2.

DeepSpeed's own scalers differ from stage to stage: without ZeRO there is no hysteresis and nothing tells that the smallest
scale overflows; with ZeRO that is a bare Exception; and in every stage the scale doubles between a step's backward pass and
the division of its gradients, which halves them once (0.19.8, runtime/zero/stage_1_and_2.py and stage3.py step,
runtime/fp16/unfused_optimizer.py step). So its optimizers get this one, which moves between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepspeed.runtime.fp16.loss_scaler import LossScalerBase

from hpctrain.worker.end_reasons import LossScaleError

MAX_SKIPPED_AT_FIXED_SCALE = 5
"""One bad batch may overflow at any scale; a fixed scale that is too large overflows in every step."""


@dataclass(frozen=True)
class ScaleRule:
    """How the scale moves."""

    first: float
    is_dynamic: bool = False
    window: int = 1000
    """Steps in a row without an overflow after which the scale doubles."""
    smallest: float = 1.0
    hysteresis: int = 2
    """Which overflow since the last doubling is the first to halve the scale."""


def scale_rule(ds_config: dict[str, Any]) -> ScaleRule | None:
    """The rule that the plan's DeepSpeed configuration states; None: nothing is scaled.

    >>> scale_rule({"fp16": {"enabled": True, "loss_scale": 128.0}})
    ScaleRule(first=128.0, is_dynamic=False, window=1000, smallest=1.0, hysteresis=2)
    """
    section = ds_config.get("fp16")
    if section is None:
        return None
    if section["loss_scale"]:
        return ScaleRule(float(section["loss_scale"]))
    return ScaleRule(
        first=2.0 ** section["initial_scale_power"],
        is_dynamic=True,
        window=section["loss_scale_window"],
        smallest=float(section["min_loss_scale"]),
        hysteresis=section["hysteresis"],
    )


class LossScale(LossScalerBase):  # type: ignore[misc]
    """The scale and what its rule counts; DeepSpeed multiplies and divides by it, and saves it with the optimizer's state.

    >>> scale = LossScale(ScaleRule(first=8.0, is_dynamic=True, window=2, hysteresis=1))
    >>> scales = []
    >>> for overflow in (True, False, False, False, True):
    ...     scales.append(scale.loss_scale)
    ...     scale.end_step(overflow)
    >>> scales, scale.loss_scale
    ([8.0, 4.0, 4.0, 8.0, 8.0], 4.0)
    """

    def __init__(self, rule: ScaleRule) -> None:
        super().__init__(rule.first)
        self.cur_scale: float = rule.first
        """The one that DeepSpeed reads as ``loss_scale``, too."""
        # DeepSpeed asks only whether gradients without a scale are a mistake.
        self.dynamic = rule.is_dynamic
        self.rule = rule
        self.num_good = 0
        """Steps without an overflow since the last one with it, or since the scale doubled."""
        self.num_overflows = 0
        """Since the scale doubled."""
        self.num_skipped = 0
        """Steps with an overflow in a row."""
        self.num_steps = 0
        """Of this start of the run."""

    def update_scale(self, overflow: bool) -> None:
        """DeepSpeed calls this before it divides the gradients of the step, which is too early."""

    def end_step(self, overflow: bool, is_last: bool = False) -> None:
        """Moves the scale; after each step, on every rank alike.

        Args:
            overflow: the step was skipped.
            is_last: no step follows.

        Raises:
            LossScaleError: gradients overflow at the smallest scale, or again and again at a fixed one: five times in a row, or
                in all steps of a shorter run, which would end without one update.
        """
        self.num_steps += 1
        self.num_skipped = self.num_skipped + 1 if overflow else 0
        if not self.rule.is_dynamic:
            none_was_good = is_last and self.num_skipped == self.num_steps
            if none_was_good or self.num_skipped >= MAX_SKIPPED_AT_FIXED_SCALE:
                raise LossScaleError(
                    f"training.loss_scale={self.cur_scale:g}: gradients overflowed fp16 in {_steps_text(self)};"
                    f" nearest: training.loss_scale={self.cur_scale / 16:g}, or null for a dynamic one"
                )
        elif overflow:
            self._lower()
        else:
            self.num_good += 1
            if self.num_good == self.rule.window:
                self.cur_scale *= 2
                self.num_good = self.num_overflows = 0

    def _lower(self) -> None:
        self.num_good = 0
        self.num_overflows += 1
        if self.num_overflows < self.rule.hysteresis:
            return
        if self.cur_scale <= self.rule.smallest:
            raise LossScaleError(
                f"training.min_loss_scale={self.rule.smallest:g}: gradients overflow fp16 even at this loss scale, after"
                f" {self.num_skipped} skipped steps in a row; try a lower training.learning_rate, a longer training.warmup_steps,"
                " or training.precision=bf16, which needs no scale"
            )
        self.cur_scale = max(self.cur_scale / 2, self.rule.smallest)


def _steps_text(scale: LossScale) -> str:
    """Those with an overflow."""
    if scale.num_skipped < scale.num_steps:
        return f"{scale.num_skipped} steps in a row"
    return "the only step" if scale.num_steps == 1 else f"all {scale.num_steps} steps, and no weight was updated"


def install_loss_scale(engine: Any, rule: ScaleRule | None) -> None:
    """Puts a scale of this rule into the engine's optimizer; a scale that is there already, from a checkpoint, keeps its place.

    Args:
        engine: DeepSpeed's.
        rule: None: the engine scales nothing and stays as it is.
    """
    if rule is None:
        return
    scale, loaded = LossScale(rule), loss_scale_of(engine)
    if loaded is not None and rule.is_dynamic:
        scale.cur_scale = max(loaded.cur_scale, rule.smallest)
        scale.num_good, scale.num_overflows = min(loaded.num_good, rule.window - 1), loaded.num_overflows
        scale.num_skipped = loaded.num_skipped
    engine.optimizer.loss_scaler = scale


def loss_scale_of(engine: Any) -> LossScale | None:
    """The engine's scale; None: the run is not in fp16."""
    found = getattr(engine.optimizer, "loss_scaler", None)
    return found if isinstance(found, LossScale) else None
