"""MaxText's step line: ``completed step: 5, seconds: 3.2, TFLOP/s/device: 150.1, Tokens/s/device: 4000, ..., loss: 10.8``.

Steps count from 0. The time of the first two steps is that of dispatching and compiling. ``total_weights`` is the number of
tokens that entered the loss. Until 2024 the keys were ``TFLOP/s`` and no token rate. Source: MaxText/metric_logger.py, train.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import (
    NUMBER,
    certain_text,
    glued,
    number,
    parts_from,
    put_number,
    put_or_missing,
    put_timestamp,
)

_STEP = re.compile(r"completed step: (\d+)(?=, seconds:)")
_PAIR = re.compile(rf", ([A-Za-z][\w/ ]*): ({NUMBER})(?=,|\s|\Z)")
_PAIR_AT_CUT = re.compile(rf", ([A-Za-z][\w/ ]*): ({NUMBER})(?=,|\s)")
_MEASURED = {
    "seconds": "time_per_iteration_s",
    "TFLOP/s/device": "tflops_per_gpu",
    "TFLOP/s": "tflops_per_gpu",
    "Tokens/s/device": "tokens_per_s_per_gpu",
}
_NAMES = {
    "loss": "loss",
    "perplexity": "perplexity",
    "total_weights": "loss_tokens",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "mtp_loss": "mtp_1_loss",
    "moe_lb_loss": "load_balancing_loss",
}
_EVALUATION = re.compile(rf"eval metrics after step: (\d+), loss=({NUMBER})(?=[,\s]|\Z)")


class MaxtextFormat:
    """Reads MaxText's log on GPUs and TPUs."""

    system = "maxtext"
    markers: tuple[str, ...] = ("completed step: ", "eval metrics after step: ")
    tflops_convention = "model"
    """Source: calculate_tflops_training_per_device of maxtext_utils.py: three times the forward's matrix products, attention
    included; dense attention from 2024 to 2025, causal before and after, which changes the figure at long sequences."""
    wants_next = False

    def read(self, line: Line) -> Iterable[Event]:
        text, certain = certain_text(line)
        parts = parts_from(_STEP, text)
        yield from glued(line, parts)
        for match, rest in parts:
            fields: dict[str, Value] = {"iteration": int(match[1])}
            for key, value in (_PAIR if certain else _PAIR_AT_CUT).findall(rest):
                if key in _MEASURED:
                    put_or_missing(fields, _MEASURED[key], value)
                elif key in _NAMES:
                    put_number(fields, _NAMES[key], value)
            put_timestamp(fields, line.text)
            complete = "loss" in fields and "time_per_iteration_s" in fields
            yield (StepEvent if complete else IncompleteEvent)(line.number, fields)
        evaluation = _EVALUATION.search(text)
        if evaluation and certain:
            yield FactEvent(
                line.number, "validation", {"iteration": int(evaluation[1]), "val_loss": number(evaluation[2])}
            )

    def end(self) -> Iterable[Event]:
        return ()
