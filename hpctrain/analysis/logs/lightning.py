"""NeMo and Lightning: tqdm bars with metrics (NeMo 1.x), and NeMo 2's line a step.

- Bar: ``Epoch 0: 1%| | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, reduced_train_loss=3.090, global_step=794.0]``. The
  counter is exact and starts anew in each epoch; ``global_step`` and ``consumed_samples`` are rounded to three digits.
- Line: ``Training epoch 0, iteration 45/99 | lr: 6.9e-06 | global_batch_size: 128 | ... | train_step_timing in s: 6.08``. It
  counts from 0, in each epoch anew; ``global_step`` goes on.

Memory is in bytes. Source: nemo/lightning/pytorch/callbacks/progress_printer.py, Lightning's tqdm_progress.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import (
    certain_text,
    gib,
    glued,
    number,
    parts_from,
    put_number,
    put_or_missing,
    put_rank,
    put_timestamp,
)
from hpctrain.analysis.logs.tqdm_bar import BAR, CUT_BAR, bar_fields

_EPOCH = re.compile(r"\b(?:Epoch|Training epoch|Training:? epoch) (\d+)(?:/-?\d+)?:? ")
_STEP = re.compile(r"\bTraining epoch (\d+), iteration (\d+)/(\d+)(?= \|)")
_LOSSES = ("reduced_train_loss", "train_loss", "loss")
_MEASURED = {
    "train_step_timing in s": "time_per_iteration_s",
    "TFLOPS_per_GPU": "tflops_per_gpu",
    "tflops_per_sec_per_gpu": "tflops_per_gpu",
    "tokens_per_sec_per_gpu": "tokens_per_s_per_gpu",
    "tokens_per_sec": "tokens_per_s",
    "tps": "tokens_per_s",
    "MFU": "mfu_percent",
    "mfu": "mfu_percent",
}
_NAMES = {
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "global_batch_size": "global_batch_size",
    "loss_scale": "loss_scale",
}
_MEMORY = ("max_memory_reserved", "peak_memory_usage")


class LightningFormat:
    """Reads NeMo 1.x bars, NeMo 2 lines and Lightning's own bars with a training loss."""

    system = "nemo"
    markers: tuple[str, ...] = ("Epoch ", "Training epoch ")
    tflops_convention = "model"
    """Source: nemo/utils/flops_formulas.py: three times the forward's matrix products, no recomputation, attention halved for the
    causal mask in newer versions."""
    wants_next = False

    def __init__(self) -> None:
        self._last_bar: tuple[object, ...] = ()

    def read(self, line: Line) -> Iterable[Event]:
        text, certain = certain_text(line, ("|",))
        steps = parts_from(_STEP, text)
        yield from glued(line, steps)
        for match, rest in steps:
            yield _step_line(line, match, rest, certain)
        if not steps and "/" in line.text:
            for epoch, rest in parts_from(_EPOCH, line.text):
                yield from self._bar(line, int(epoch[1]), rest)

    def end(self) -> Iterable[Event]:
        return ()

    def _bar(self, line: Line, epoch: int, text: str) -> Iterable[Event]:
        bar = BAR.search(text)
        if bar is None:
            cut = CUT_BAR.search(text)
            if cut and not line.whole:
                fields: dict[str, Value] = {"iteration": int(cut["step"]), "total_iterations": int(cut["total"])}
                yield IncompleteEvent(line.number, fields | {"epoch": epoch})
            return
        metrics = _metrics((bar["metrics"] or "").split(", "), "=")
        drawn = (line.label, epoch, bar["step"], bar["metrics"])
        if not any(name in metrics for name in _LOSSES) or drawn == self._last_bar:
            return
        self._last_bar = drawn
        place = bar_fields(bar)
        fields = {"iteration": place["step"], "total_iterations": place["total"], "epoch": epoch}
        if bar["rate"]:
            fields["time_per_iteration_s"] = place["time_per_step_s"]
        fields |= _fields(metrics)
        rounded = _rounded(metrics)
        put_rank(fields, line.label)
        yield StepEvent(line.number, fields | rounded)
        told = {name: fields[name] for name in ("loss", "tokens_per_s") if name in fields}
        yield FactEvent(line.number, "bar", place | told | rounded)


def _step_line(line: Line, match: re.Match[str], text: str, certain: bool) -> Event:
    metrics = _metrics(text.split(" | "), ": ")
    fields: dict[str, Value] = {
        "iteration": int(match[2]),
        "total_iterations": int(match[3]),
        "epoch": int(match[1]),
    }
    fields |= _fields(metrics)
    for name in ("global_step", "consumed_samples"):
        if name in metrics:
            fields[name] = number(metrics[name])
    put_timestamp(fields, line.text)
    put_rank(fields, line.label)
    complete = certain and "loss" in fields and (line.whole or "time_per_iteration_s" in fields)
    return (StepEvent if complete else IncompleteEvent)(line.number, fields)


def _metrics(parts: Iterable[str], sign: str) -> dict[str, str]:
    found = {}
    for part in parts:
        key, separator, value = part.strip(" |").partition(sign)
        if separator and value.strip():
            found[key.strip()] = value.split()[0]
    return found


def _fields(metrics: dict[str, str]) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    for key, text in metrics.items():
        if key in _MEASURED:
            put_or_missing(fields, _MEASURED[key], text)
        elif key in _NAMES:
            put_number(fields, _NAMES[key], text)
        elif key in _MEMORY:
            fields["mem_gib"] = gib(number(text))
    loss = next((metrics[name] for name in _LOSSES if name in metrics), None)
    if loss is not None:
        put_number(fields, "loss", loss)
    return fields


def _rounded(metrics: dict[str, str]) -> dict[str, Value]:
    """Counters of a bar: three digits make any count above 999 a rounded one, which must not become ``consumed_samples``."""
    values = {name: number(metrics[name]) for name in ("global_step", "consumed_samples") if name in metrics}
    return {f"{name}_rounded": value for name, value in values.items() if value}
