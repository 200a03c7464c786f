"""The lines of DeepSpeed's engine: steps, speeds, timers, overflows, the pipeline engine's records, configured sizes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from hpctrain.analysis.logs.events import Event, FactEvent, FactKind, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.line_plan import LinePlan, LinePlans, PlanDraft

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_TIME_STAMP = re.compile(r"\[(?:[A-Z]+ )?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)\]")
_STEP = re.compile(r"\bstep=(\d+), skipped=(\d+), lr=(.*?)(?:, mom=|$)")
_FIRST_NUMBER = re.compile(_NUMBER)
_SPEED_PLACE = re.compile(r"(?:epoch=\d+/micro_step=\d+/global_step=|(?<![\w./:])\d+/)(\d+), \w*SamplesPerSec=")
_SPEED_FIELDS = re.compile(rf"\b(\w*SamplesPerSec|MemAllocated|MaxMemAllocated)=({_NUMBER})")
_SPEED_NAMES = {
    "SamplesPerSec": "samples_per_s_running_avg",
    "RunningAvgSamplesPerSec": "samples_per_s_running_avg",
    "CurrSamplesPerSec": "ds_curr_samples_per_s",
    "MemAllocated": "mem_allocated_gb",
    "MaxMemAllocated": "max_mem_allocated_gb",
}
_PIPELINE = re.compile(
    rf"\bsteps: (\d+) loss: ({_NUMBER}) (?:\w+: {_NUMBER} )*iter time \(s\): ({_NUMBER}) samples/sec: ({_NUMBER})(?=\s|$)"
)
_PIPELINE_CUT = re.compile(rf"\bsteps: (\d+) loss: ({_NUMBER}) (?:\w+: {_NUMBER} )*iter time \(s\): (?:({_NUMBER}) )?")
_TIMERS = re.compile(r"time \(ms\) \|(.*)")
_TIMER = re.compile(rf"([\w-]+): ({_NUMBER})(?=\s|$)")
_OVERFLOW_RANK = re.compile(r"OVERFLOW! Rank (\d+)")
_OVERFLOW_BEFORE = re.compile(rf"Attempted loss scale: ({_NUMBER})")
_OVERFLOW_AFTER = re.compile(rf"reducing (?:loss scale )?to ({_NUMBER})")
_CONFIG = re.compile(r"\[config\.py:\d+:print\]\s+(\w+) \.* (\d+)\s*$")
_CONFIG_NAMES = {
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "world_size": "world_size",
}
_SAVED = re.compile(r"Saving model checkpoint: \S*?global_step(\d+)/")


class DeepspeedEngineFormat:
    """All generations from 0.3 to 0.19; an engine line may be glued to a progress bar before it.

    What the engine itself prints is never a record here but a fact: most trainers print their own record for the same step.
    Only the pipeline engine's line is one. Source: deepspeed/runtime/engine.py, runtime/pipe/engine.py, utils/timer.py,
    runtime/fp16/loss_scaler.py, runtime/config.py, and the lines in deepspeedai/DeepSpeed#1436, #1825.
    """

    system = "deepspeed"
    markers = (
        ", skipped=",
        "SamplesPerSec=",
        " iter time (s): ",
        "rank=0 time (ms)",
        "[Rank 0] time (ms)",
        "_microstep: ",
        "kipping step",
        ":print] ",
        "Saving model checkpoint: ",
    )
    tflops_convention = "unknown"

    def __init__(self) -> None:
        """For one file."""
        self.wants_next = False
        self._last_saved = -1
        self._plans: dict[FactKind, LinePlans] = defaultdict(LinePlans)

    def read(self, line: Line) -> Iterator[Event]:
        """The facts of one line, and the pipeline engine's record."""
        text = line.text
        if "kipping step" in text:
            yield from _overflow(line)
        elif ", skipped=" in text:
            yield from self._planned(line, "engine_step", _engine_step)
        elif "SamplesPerSec=" in text:
            yield from self._planned(line, "engine_speed", _engine_speed)
        elif " iter time (s): " in text:
            yield from _pipeline_step(line)
        elif "time (ms)" in text:
            yield from self._planned(line, "microstep", _micro_timers)
            for event in self._planned(line, "timers", _timers):
                # Zeros are timers that never ran.
                times = {name: value for name, value in event.fields.items() if value}
                if times.keys() - {"timestamp"}:
                    yield FactEvent(line.number, "timers", times)
        elif ":print] " in text:
            yield from _setting(line)
        elif match := _SAVED.search(text):
            # Several ranks write their parts of one checkpoint and tell it one after the other.
            iteration = int(match[1])
            if iteration != self._last_saved:
                self._last_saved = iteration
                yield FactEvent(line.number, "checkpoint_saved", {"iteration": iteration})

    def _planned(self, line: Line, kind: FactKind, plan_of: Callable[[Line], LinePlan]) -> Iterator[FactEvent]:
        """The fact of a line, by the plan of its shape; a plan without any field stands for lines that say nothing."""
        plans = self._plans[kind]
        fields = plans.fields(line.text) if line.whole else None
        if fields is None:
            plan = plan_of(line)
            fields = plan.fields(line.text)
            if line.whole:
                plans.add(line.text, plan)
        if fields:
            yield FactEvent(line.number, kind, fields)

    def end(self) -> Iterator[Event]:
        """Nothing is ever open: every fact is in one line."""
        return iter(())


def _put_stamp(draft: PlanDraft, line: Line, before: int) -> None:
    """The last time stamp that stands before the place; a bar before it may carry another one."""
    for stamp in _TIME_STAMP.finditer(line.text, 0, before):
        draft.put("timestamp", stamp.span(1), str)


def _engine_step(line: Line) -> LinePlan:
    draft = PlanDraft(line.text)
    match = _STEP.search(line.text)
    if match is None:
        return draft.plan()
    rate = _FIRST_NUMBER.search(line.text, *match.span(3))
    if not line.whole and ", mom=" not in line.text:
        rate = None  # The number may have lost its last digits.
    draft.put("iteration", match.span(1), int)
    draft.put("skipped_total", match.span(2), int)
    if rate:
        draft.put("learning_rate", rate.span(), float)
    else:
        draft.put_constants({"learning_rate": None})
    _put_stamp(draft, line, match.start())
    return draft.plan()


def _engine_speed(line: Line) -> LinePlan:
    draft = PlanDraft(line.text)
    place = _SPEED_PLACE.search(line.text)
    if place is None:
        return draft.plan()
    draft.put("iteration", place.span(1), int)
    for match in _SPEED_FIELDS.finditer(line.text, place.start()):
        cut_off = not line.whole and match.end() == len(line.text)
        if not cut_off:
            draft.put(_SPEED_NAMES.get(match[1], match[1]), match.span(2), _finite)
    _put_stamp(draft, line, place.start())
    return draft.plan()


def _pipeline_step(line: Line) -> Iterator[Event]:
    match = _PIPELINE.search(line.text)
    # Three decimals are always printed: fewer at the end of the file are a number that was cut off.
    is_cut = not line.whole and (match is None or not re.search(r"\.\d{3}$", match[4]))
    if is_cut:
        match = _PIPELINE_CUT.search(line.text)
    if match is None:
        return
    loss = _finite(match[2])
    fields: dict[str, Value] = {"iteration": int(match[1]), "loss": loss}
    if match[3]:
        fields["time_per_iteration_s"] = _finite(match[3])
    if loss is None:
        fields["loss_is_nan"] = True
    if is_cut:
        yield IncompleteEvent(line.number, fields)
        return
    fields["samples_per_s"] = _finite(match[4])
    yield StepEvent(line.number, fields)


def _micro_timers(line: Line) -> LinePlan:
    """Times of one micro-step."""
    return _timers(line, of_microstep=True)


def _timers(line: Line, of_microstep: bool = False) -> LinePlan:
    """Times of whole steps since the last print."""
    draft = PlanDraft(line.text)
    start = _TIMERS.search(line.text)
    timers = [] if start is None else list(_TIMER.finditer(line.text, *start.span(1)))
    timers = [timer for timer in timers if timer[1].endswith("_microstep") == of_microstep]
    for timer in timers:
        draft.put(_microstep_name(timer[1]) if of_microstep else timer[1], timer.span(2), float)
    if start is not None and timers:
        _put_stamp(draft, line, start.start())
    return draft.plan()


def _microstep_name(name: str) -> str:
    """``fwd_microstep`` and ``forward_microstep`` are one timer; shortened in DeepSpeed 0.10."""
    name = name.removesuffix("_microstep")
    for short, long in (("fwd", "forward"), ("bwd", "backward")):
        if name == short or name.startswith(short + "_"):
            name = long + name.removeprefix(short)
    return f"{name}_ms"


def _overflow(line: Line) -> Iterator[Event]:
    """One skipped step; of the generations in which all ranks say so, rank 0 is heard."""
    rank = _OVERFLOW_RANK.search(line.text)
    if rank and int(rank[1]) != 0:
        return
    before = _OVERFLOW_BEFORE.search(line.text)
    after = _OVERFLOW_AFTER.search(line.text)
    scale_before = float(before[1]) if before else None
    # «but hysteresis is 2»: the scale stays as it is this time.
    scale_after = float(after[1]) if after else scale_before
    fields: dict[str, object] = {"loss_scale_before": scale_before, "loss_scale_after": scale_after}
    stamps = _TIME_STAMP.findall(line.text)
    yield FactEvent(line.number, "overflow", {**fields, "timestamp": stamps[-1]} if stamps else fields)


def _setting(line: Line) -> Iterator[Event]:
    match = _CONFIG.search(line.text)
    if match and line.whole and match[1] in _CONFIG_NAMES:
        yield FactEvent(line.number, "setting", {_CONFIG_NAMES[match[1]]: int(match[2])})


def _finite(text: str) -> float | None:
    value = float(text)
    return value if abs(value) != float("inf") and value == value else None
