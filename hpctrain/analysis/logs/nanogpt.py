"""nanoGPT's iteration line and those of its kin: build-nanogpt, nanochat, modded-nanogpt and llm.c.

- nanoGPT: ``iter 100: loss 3.1, time 1099.34ms, mfu 15.34%``; evaluation ``step 3000: train loss 4.0390, val loss 4.0427``.
- llm.c: ``step 2/21479 | loss 10.83 (+nanz)| norm 15.0 (+nanz)| lr 5.71e-06 | 2391.52 ms | 40.3% bf16 MFU | 191824 tok/s``.
- build-nanogpt, nanochat: ``step 12 | loss: 6.1 | lr 8.5e-07 | norm: 1.2 | dt: 338.1ms | tok/sec: 155078.5``.
- llama2.c: ``490 | loss 5.7543 | lr 4.900000e-05 | 8060.78ms | mfu 0.21%``; evaluation as nanoGPT's.
- modded-nanogpt: ``step:10/1390 train_time:1234ms step_avg:123.40ms``; a line with ``val_loss`` is the evaluation.

An MFU of -100 % is the placeholder before the first measurement. Source: nanoGPT train.py, llm.c train_gpt2.cu, build-nanogpt
train_gpt2.py, nanochat base_train.py, llama2.c train.py, modded-nanogpt train_gpt.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import (
    NUMBER,
    certain_text,
    glued,
    number,
    put_number,
    put_or_missing,
    put_rank,
    put_timestamp,
)

_ITER = re.compile(
    rf"\biter (\d+): loss ({NUMBER})(?:, time ({NUMBER})ms)?(?:, mfu ({NUMBER})%)?(?:, lr ({NUMBER}))?(?:(?<=%)|(?=[,\s]|\Z))"
)
_START = re.compile(
    r"iter (?=\d+: loss )|step (?=\d+: train loss )|step:(?=\d+/\d+ )|step +(?=\d+(?:/\d+)? (?:\([\d.]+%\) )?\|)"
)
"""Of any record or evaluation; several stand in one line where a line end was lost."""
_EVALUATION = re.compile(rf"\bstep (\d+): train loss ({NUMBER}), val loss ({NUMBER})(?=[,\s]|\Z)")
_PIPED = re.compile(r"(?:\bstep +|\A\s*(?=\d+ \| loss ))(\d+)(?:/(\d+))?(?: \([\d.]+%\))?(?: *\||: )")
_PIPED_VALUE = re.compile(
    rf"(?:[|,(]|\A)[ (]*(?:(?:train )?loss:? (?P<loss>{NUMBER})\b|(?:grad )?norm:? (?P<grad_norm>{NUMBER})\b"
    rf"|lr:? (?P<learning_rate>{NUMBER})\b|(?:dt: )?(?P<time_ms>{NUMBER}) ?ms\b|(?P<mfu>{NUMBER})% [^|]*MFU"
    rf"|(?:bf16_)?mfu:? (?P<mfu_percent>{NUMBER})\b|tok/sec: (?P<tok_per_sec>{NUMBER})\b|(?P<tok_per_s>{NUMBER}) tok/s\b)"
)
_PIPED_NAMES = {
    "time_ms": ("time_per_iteration_s", -3),
    "mfu": ("mfu_percent", 0),
    "mfu_percent": ("mfu_percent", 0),
    "tok_per_sec": ("tokens_per_s", 0),
    "tok_per_s": ("tokens_per_s", 0),
}
"""Groups whose zero or negative value means not measured."""
_MODDED = re.compile(
    rf"\bstep:(\d+)/(\d+)(?: train_loss:({NUMBER}))?(?: val_loss:({NUMBER}))?(?: val_bpb:{NUMBER})? "
    rf"train_time:({NUMBER})(ms|s) step_avg:({NUMBER})ms"
)
_PIPED_LOSSES = tuple(f" | loss {first}" for first in "0123456789-+.niNI")
"""With the first sign of the number: Megatron's lines hold ``| loss scale``."""


class NanogptFormat:
    """Reads nanoGPT and its kin; one file holds one of the wordings."""

    system = "nanogpt"
    markers: tuple[str, ...] = (": loss ", ", val loss ", " tok/s", "step_avg:", *_PIPED_LOSSES)
    tflops_convention = "model"
    """It prints an MFU only: 6 FLOPs a parameter and token plus 12·l·h·s. Source: estimate_mfu of nanoGPT's model.py."""
    wants_next = False

    def __init__(self) -> None:
        self._train_time: tuple[int, float] | None = None

    def read(self, line: Line) -> Iterable[Event]:
        starts = [match.start() for match in _START.finditer(line.text)]
        if len(starts) <= 1:
            yield from self._one(line)
            return
        yield from glued(line, starts)
        for start, end in zip([0, *starts[1:]], [*starts[1:], None], strict=True):
            yield from self._one(replace(line, text=line.text[start:end], whole=line.whole or end is not None))

    def _one(self, line: Line) -> Iterable[Event]:
        text, certain = certain_text(line, ("%", "ms", "tok/s", "tok/s)"))
        if "step_avg:" in text:
            yield from self._modded(line, text)
            return
        match = _ITER.search(text)
        if match:
            yield from _iteration(line, match)
            return
        evaluation = _EVALUATION.search(text)
        if evaluation:
            step, train, val = evaluation.groups()
            fields = {"iteration": int(step), "train_loss": number(train), "val_loss": number(val)}
            yield FactEvent(line.number, "validation", fields)
            return
        piped = _PIPED.search(text)
        if piped:
            yield from _piped(line, piped, text[piped.end() :], certain)

    def _modded(self, line: Line, text: str) -> Iterable[Event]:
        """Train time is a running sum: two lines give the time a step between them; ``step_avg`` averages since the start."""
        match = _MODDED.search(text)
        if match is None:
            return
        step, total, train_loss, val_loss, train_time, unit, step_avg = match.groups()
        if val_loss is not None:
            yield FactEvent(line.number, "validation", {"iteration": int(step), "val_loss": number(val_loss)})
            return
        fields: dict[str, Value] = {"iteration": int(step), "total_iterations": int(total), "loss": None}
        if train_loss is not None:
            put_number(fields, "loss", train_loss)
        put_or_missing(fields, "time_per_iteration_running_avg_s", step_avg, -3)
        seconds = number(train_time, -3 if unit == "ms" else 0)
        if seconds is not None:
            if self._train_time is not None and self._train_time[0] < int(step):
                before, since = self._train_time
                fields["time_per_iteration_s"] = round((seconds - since) / (int(step) - before), 6)
            self._train_time = (int(step), float(seconds))
        yield StepEvent(line.number, fields)

    def end(self) -> Iterable[Event]:
        return ()


def _iteration(line: Line, match: re.Match[str]) -> Iterable[Event]:
    step, loss, time_ms, mfu, learning_rate = match.groups()
    if time_ms is None and line.whole:
        return
    fields: dict[str, Value] = {"iteration": int(step)}
    put_number(fields, "loss", loss)
    if time_ms is not None:
        put_or_missing(fields, "time_per_iteration_s", time_ms, -3)
    if mfu is not None:
        put_or_missing(fields, "mfu_percent", mfu)
    if learning_rate is not None:
        put_number(fields, "learning_rate", learning_rate)
    put_timestamp(fields, line.text)
    put_rank(fields, line.label)
    yield (StepEvent if time_ms is not None else IncompleteEvent)(line.number, fields)


def _piped(line: Line, step: re.Match[str], text: str, certain: bool) -> Iterable[Event]:
    fields: dict[str, Value] = {"iteration": int(step[1])}
    if step[2]:
        fields["total_iterations"] = int(step[2])
    for found in _PIPED_VALUE.finditer(text):
        group = str(found.lastgroup)
        if group in _PIPED_NAMES:
            put_or_missing(fields, _PIPED_NAMES[group][0], found[group], _PIPED_NAMES[group][1])
        else:
            put_number(fields, group, found[group])
    if "loss" in fields and "time_per_iteration_s" in fields:
        yield (StepEvent if certain else IncompleteEvent)(line.number, fields)
    elif not line.whole:
        yield IncompleteEvent(line.number, fields)
