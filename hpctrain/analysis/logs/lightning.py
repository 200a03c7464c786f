"""NeMo and Lightning: tqdm bars with metrics (NeMo 1.x), and NeMo 2's line a step.

- Bar: ``Epoch 0: 1%| | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, reduced_train_loss=3.090, global_step=794.0]``. The
  counter is exact and starts anew in each epoch; ``global_step`` and ``consumed_samples`` are rounded to three digits.
- Line: ``Training epoch 0, iteration 45/99 | lr: 6.9e-06 | global_batch_size: 128 | ... | train_step_timing in s: 6.08``. It
  counts from 0, in each epoch anew; ``global_step`` goes on.

Memory is in bytes. Source: nemo/lightning/pytorch/callbacks/progress_printer.py, Lightning's tqdm_progress.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.line_plan import LinePlan, LinePlans, PlanDraft
from hpctrain.analysis.logs.printed import (
    certain_text,
    clock_seconds,
    find_timestamp,
    gib,
    glued,
    number,
    parts_from,
    positive_number,
    put_rank,
)
from hpctrain.analysis.logs.tqdm_bar import BAR, CUT_BAR, seconds_per_step

_EPOCH = re.compile(r"\b(?:Epoch|Training epoch|Training:? epoch) (\d+)(?:/-?\d+)?:? ")
_STEP = re.compile(r"Training epoch (\d+), iteration (\d+)/(\d+)(?= \|)")
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
_COUNTERS = ("global_step", "consumed_samples")
"""In a bar three digits make any count above 999 a rounded one, which must not become ``consumed_samples``."""
_ELAPSED, _PACE = "elapsed_s", "time_per_step_s"
_ROUNDED = tuple(f"{name}_rounded" for name in _COUNTERS)
_OF_THE_BAR = ("loss", "tokens_per_s", *_ROUNDED)


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
        self._last_place: tuple[object, ...] = ()
        self._last_elapsed: float | None = None
        self._plans = LinePlans()

    def read(self, line: Line) -> Iterable[Event]:
        fields = self._plans.fields(line.text) if line.whole else None
        return self._read(line) if fields is None else self._told(line, fields)

    def end(self) -> Iterable[Event]:
        return ()

    def _read(self, line: Line) -> Iterator[Event]:
        text, certain = certain_text(line, ("|",))
        steps = parts_from(_STEP, text)
        yield from glued(line, steps)
        for match, rest in steps:
            plan = _step_plan(line.text, match, rest)
            fields = plan.fields(line.text)
            if certain and "loss" in fields and (line.whole or "time_per_iteration_s" in fields):
                self._learn(line, plan, len(steps))
                yield from self._told(line, fields)
            else:
                put_rank(fields, line.label)
                yield IncompleteEvent(line.number, fields)
        if not steps and "/" in line.text:
            epochs = parts_from(_EPOCH, line.text)
            for epoch, rest in epochs:
                yield from self._bar(line, epoch, epoch.end() + len(rest), len(epochs))

    def _bar(self, line: Line, epoch: re.Match[str], end: int, num_bars: int) -> Iterable[Event]:
        bar = BAR.search(line.text, epoch.end(), end)
        if bar is None:
            cut = CUT_BAR.search(line.text, epoch.end(), end)
            if cut and not line.whole:
                fields: dict[str, Value] = {"iteration": int(cut["step"]), "total_iterations": int(cut["total"])}
                yield IncompleteEvent(line.number, fields | {"epoch": int(epoch[1])})
            return
        plan = _bar_plan(line.text, epoch, bar)
        fields = plan.fields(line.text)
        if "loss" in fields:
            self._learn(line, plan, num_bars)
            yield from self._told(line, fields)

    def _learn(self, line: Line, plan: LinePlan, num_records: int) -> None:
        if line.whole and num_records == 1:
            self._plans.add(line.text, plan)

    def _told(self, line: Line, fields: dict[str, Value]) -> Iterator[Event]:
        """The record of a line; of a bar too, if it was not drawn again without a step, and the bar itself."""
        if _ELAPSED not in fields:
            put_rank(fields, line.label)
            yield StepEvent(line.number, fields)
            return
        bar: dict[str, object] = {
            "step": fields["iteration"],
            "total": fields["total_iterations"],
            "elapsed_s": fields.pop(_ELAPSED),
            "time_per_step_s": fields.pop(_PACE),
        }
        drawn = (line.label, [item for item in fields.items() if item[0] != "time_per_iteration_s"])
        if drawn == self._last_bar:
            return
        self._last_bar = drawn
        redrawn = self._is_redrawn(line, fields, bar["elapsed_s"])
        for name in _ROUNDED:
            if name in fields and not fields[name]:
                del fields[name]
        bar.update((name, fields[name]) for name in _OF_THE_BAR if name in fields)
        put_rank(fields, line.label)
        yield StepEvent(line.number, fields, redrawn)
        if not redrawn:
            yield FactEvent(line.number, "bar", bar)

    def _is_redrawn(self, line: Line, fields: Mapping[str, Value], elapsed_s: object) -> bool:
        """True for the same step of the same loop: the bar advances first, and shows the step's loss with the next drawing."""
        place = (line.label, fields.get("epoch"), fields["iteration"], fields["total_iterations"])
        before, self._last_elapsed = self._last_elapsed, elapsed_s if isinstance(elapsed_s, int | float) else None
        same, self._last_place = place == self._last_place, place
        return same and before is not None and self._last_elapsed is not None and self._last_elapsed >= before


def _step_plan(text: str, step: re.Match[str], rest: str) -> LinePlan:
    """Where the values of a line stand; counters are exact."""
    draft = PlanDraft(text)
    for group, name in ((2, "iteration"), (3, "total_iterations"), (1, "epoch")):
        draft.put(name, step.span(group), int)
    spans = _spans(rest, step.end(), " | ", ": ")
    _put_metrics(draft, spans)
    for name in _COUNTERS:
        if name in spans:
            draft.put(name, spans[name], number)
    if stamp := find_timestamp(text):
        draft.put("timestamp", stamp.span(), str)
    return draft.plan()


def _bar_plan(text: str, epoch: re.Match[str], bar: re.Match[str]) -> LinePlan:
    """Where the values of a bar stand; a bar without a loss gives fields without one."""
    draft = PlanDraft(text)
    draft.put("iteration", bar.span("step"), int)
    draft.put("total_iterations", bar.span("total"), _length)
    draft.put("epoch", epoch.span(1), int)
    draft.put(_ELAPSED, bar.span("elapsed"), clock_seconds)
    if bar["rate"]:
        for name in (_PACE, "time_per_iteration_s"):
            draft.put(name, bar.span("rate"), partial(seconds_per_step, unit=bar["unit"]))
    else:
        draft.put_constants({_PACE: None})
    spans = _spans(bar["metrics"] or "", bar.start("metrics"), ", ", "=")
    _put_metrics(draft, spans)
    for name in _COUNTERS:
        if name in spans:
            draft.put(f"{name}_rounded", spans[name], number)
    return draft.plan()


def _length(text: str) -> int | None:
    """Steps of an epoch; of a loop of unknown length a bar shows ``?`` or ``inf``."""
    return int(text) if text.isdigit() else None


def _spans(text: str, offset: int, bar: str, sign: str) -> dict[str, tuple[int, int]]:
    """Key and place of the first word of its value, counted from ``offset`` before ``text``."""
    spans = {}
    for part in text.split(bar):
        key, separator, value = part.partition(sign)
        if separator and (words := value.split(maxsplit=1)):
            start = offset + len(key) + len(sign) + value.index(words[0])
            spans[key.strip(" |")] = (start, start + len(words[0].rstrip("|")))
        offset += len(part) + len(bar)
    return spans


def _put_metrics(draft: PlanDraft, spans: Mapping[str, tuple[int, int]]) -> None:
    for key, span in spans.items():
        if key in _MEASURED:
            draft.put(_MEASURED[key], span, positive_number)
        elif key in _NAMES:
            draft.put_number(_NAMES[key], span)
        elif key in _MEMORY:
            draft.put("mem_gib", span, _gib)
    loss = next((spans[name] for name in _LOSSES if name in spans), None)
    if loss is not None:
        draft.put_number("loss", loss)


def _gib(text: str) -> float | None:
    return gib(number(text))
