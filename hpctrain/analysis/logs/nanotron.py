"""nanotron's iteration line: ``iteration: 991 / 1000 | consumed_tokens: 634K | elapsed_time_per_iteration_ms: 45 | ...``.

Numbers are cut to three digits and carry a letter for thousands, millions and so on. The names of the disk fields say terabytes
and hold bytes; they are left out. Source: src/nanotron/logging (human_format, LogItem) and src/nanotron/trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent
from hpctrain.analysis.logs.line_plan import LinePlan, LinePlans, PlanDraft, Reader, number_reader
from hpctrain.analysis.logs.printed import certain_text, gib, glued, is_nan, parts_from, si_number

_ITERATION = re.compile(r"iteration: (?<!\witeration: )(\d+)(?: / (\d+))? \|")
_FRAGMENT = re.compile(r"\A[^\[]*\| hardware_tflops_per_gpu: [\d.]+ \|")
_NAMES = {
    "elapsed_time_per_iteration_ms": "time_per_iteration_s",
    "time_per_iteration_ms": "time_per_iteration_s",
    "consumed_tokens": "consumed_tokens",
    "consumed_samples": "consumed_samples",
    "tokens_per_sec": "tokens_per_s",
    "tokens_per_sec_per_gpu": "tokens_per_s_per_gpu",
    "global_batch_size": "global_batch_size",
    "lm_loss": "loss",
    "lr": "learning_rate",
    "model_tflops_per_gpu": "tflops_per_gpu",
    "hardware_tflops_per_gpu": "hardware_tflops_per_gpu",
    "grad_norm": "grad_norm",
    "cuda_max_memory_reserved": "mem_gib",
}
_RANKS = {"DP": "data_rank", "PP": "pipe_rank", "TP": "tensor_rank"}
_RANK = re.compile(r"\b(DP|PP|TP)=(\d+)")
_US_TIME = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d")


class NanotronFormat:
    """Reads nanotron's console log of one or several ranks."""

    system = "nanotron"
    markers: tuple[str, ...] = (" | consumed_tokens: ", " | hardware_tflops_per_gpu: ")
    tflops_convention = "model"
    """Source: get_flops of src/nanotron/models/llama.py: forward of all matrix products with dense attention, times three."""
    wants_next = False

    def __init__(self) -> None:
        self._plans = LinePlans()

    def read(self, line: Line) -> Iterable[Event]:
        fields = self._plans.fields(line.text) if line.whole else None
        return self._read(line) if fields is None else (StepEvent(line.number, fields),)

    def _read(self, line: Line) -> Iterator[Event]:
        text, _ = certain_text(line, ("|",))
        parts = parts_from(_ITERATION, text)
        if not parts and _FRAGMENT.search(text):
            name = "truncated_first_line" if line.number == 1 else "orphan_fragment"
            yield FactEvent(line.number, "trait", {"name": name})
        yield from glued(line, parts)
        for match, rest in parts:
            plan = _plan(text, match, rest)
            fields = plan.fields(text)
            complete = "loss" in fields and ("time_per_iteration_s" in fields or "tokens_per_s" in fields)
            if complete and line.whole and len(parts) == 1:
                self._plans.add(text, plan)
            yield (StepEvent if complete else IncompleteEvent)(line.number, fields)

    def end(self) -> Iterable[Event]:
        return ()


def _plan(text: str, iteration: re.Match[str], rest: str) -> LinePlan:
    """Where the values of one record stand: ranks and time of ``01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|host]`` before its
    iteration, pairs of key and value behind it."""
    draft = PlanDraft(text)
    for rank in _RANK.finditer(text, 0, iteration.start()):
        draft.put(_RANKS[rank[1]], rank.span(2), int)
    for time in _US_TIME.finditer(text, 0, iteration.start()):
        draft.put("timestamp", time.span(), _iso_time)
    draft.put("iteration", iteration.span(1), int)
    if iteration[2]:
        draft.put("total_iterations", iteration.span(2), int)
    start = iteration.end()
    for pair in rest.split("|"):
        key, _, value = pair.partition(":")
        name, printed = _NAMES.get(key.strip()), value.strip()
        span = (start + len(pair.rstrip()) - len(printed), start + len(pair.rstrip()))
        if name is not None and is_nan(printed):
            draft.put_number(name, span)
        elif name is not None and si_number(printed) is not None:
            draft.put(name, span, _READERS.get(name) or number_reader(printed) or si_number)
        start += len(pair) + 1
    return draft.plan()


def _iso_time(text: str) -> str:
    """Month before day becomes ISO 8601."""
    return f"{text[6:10]}-{text[0:2]}-{text[3:5]} {text[11:]}"


def _seconds_of_ms(text: str) -> float:
    return float(f"{si_number(text)}e-3")


_READERS: dict[str, Reader] = {
    "time_per_iteration_s": _seconds_of_ms,
    "mem_gib": lambda text: gib(si_number(text)),
}
"""Of fields with another unit than the text."""
