"""nanotron's iteration line: ``iteration: 991 / 1000 | consumed_tokens: 634K | elapsed_time_per_iteration_ms: 45 | ...``.

Numbers are cut to three digits and carry a letter for thousands, millions and so on. The names of the disk fields say terabytes
and hold bytes; they are left out. Source: src/nanotron/logging (human_format, LogItem) and src/nanotron/trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import certain_text, gib, glued, is_nan, parts_from, si_number

_ITERATION = re.compile(r"\biteration: (\d+)(?: / (\d+))? \|")
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
_CONVERSIONS: dict[str, Callable[[float], float | None]] = {
    "time_per_iteration_s": lambda time_ms: float(f"{time_ms}e-3"),
    "mem_gib": gib,
}
_RANKS = {"DP": "data_rank", "PP": "pipe_rank", "TP": "tensor_rank"}
_RANK = re.compile(r"\b(DP|PP|TP)=(\d+)")
_US_TIME = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d:\d\d)")


class NanotronFormat:
    """Reads nanotron's console log of one or several ranks."""

    system = "nanotron"
    markers: tuple[str, ...] = (" | consumed_tokens: ", " | hardware_tflops_per_gpu: ")
    tflops_convention = "model"
    """Source: get_flops of src/nanotron/models/llama.py: forward of all matrix products with dense attention, times three."""
    wants_next = False

    def read(self, line: Line) -> Iterable[Event]:
        text, _ = certain_text(line, ("|",))
        parts = parts_from(_ITERATION, text)
        if not parts and _FRAGMENT.search(text):
            name = "truncated_first_line" if line.number == 1 else "orphan_fragment"
            yield FactEvent(line.number, "trait", {"name": name})
        yield from glued(line, parts)
        for match, rest in parts:
            fields = _prefix_fields(line.text[: match.start()])
            fields["iteration"] = int(match[1])
            if match[2]:
                fields["total_iterations"] = int(match[2])
            for pair in rest.split("|"):
                key, _, value = pair.partition(":")
                _put(fields, key.strip(), value.strip())
            complete = "loss" in fields and ("time_per_iteration_s" in fields or "tokens_per_s" in fields)
            yield (StepEvent if complete else IncompleteEvent)(line.number, fields)

    def end(self) -> Iterable[Event]:
        return ()


def _prefix_fields(prefix: str) -> dict[str, Value]:
    """Ranks and time of ``01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|host]``; month before day."""
    fields: dict[str, Value] = {_RANKS[name]: int(rank) for name, rank in _RANK.findall(prefix)}
    times = _US_TIME.findall(prefix)
    if times:
        month, day, year, clock = times[-1]
        fields["timestamp"] = f"{year}-{month}-{day} {clock}"
    return fields


def _put(fields: dict[str, Value], key: str, text: str) -> None:
    name = _NAMES.get(key)
    if name is None:
        return
    value = si_number(text)
    if value is not None:
        fields[name] = _CONVERSIONS[name](value) if name in _CONVERSIONS else value
    elif is_nan(text):
        fields[name] = None
        fields[f"{name}_is_nan"] = True
