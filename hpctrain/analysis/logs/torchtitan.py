"""torchtitan's metrics line: ``step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282 ...``.

``wps`` (until 2024) and ``tps`` are tokens a second of one device; the time of a step is not printed, only the time of the line.
Source: torchtitan/components/metrics.py (and train.py of 2024): tokens since the last line over time and over the number of ranks
that share one sequence; ``tflops`` is that rate times the model's FLOPs per token.
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
    put_rank,
    put_timestamp,
)

_STEP = re.compile(r"step: (?<!\wstep: )(?<!validate step: )(?<!completed step: ) *(\d+)(?= )")
"""What must not stand before the word is asked behind it: a pattern that begins with plain letters is found ten times faster."""
_PAIR = re.compile(rf" ([A-Za-z][\w/]*)(?:\(s\))?: +({NUMBER}|N/A)(?:(GiB)\(({NUMBER})%\)|(?=[ %\s]|\Z))")
_NAMES = {
    "loss": "loss",
    "global_avg_loss": "loss",
    "grad_norm": "grad_norm",
    "tps": "tokens_per_s_per_gpu",
    "wps": "tokens_per_s_per_gpu",
    "tflops": "tflops_per_gpu",
    "mfu": "mfu_percent",
    "lr": "learning_rate",
    "end_to_end": "time_per_iteration_s",
    "time_metrics/end_to_end": "time_per_iteration_s",
    "ntokens_seen": "consumed_tokens",
    "n_tokens_seen": "consumed_tokens",
}
_NO_LOSS = -1
"""Printed by ranks of pipeline stages that do not hold the loss. Source: torchtitan issues 931 and 1232."""
_START = re.compile(
    r"(?:Training starts at step \d+,|Trainer is initialized) with local batch size (\d+), global batch size (\d+), "
    r"(?:gradient accumulation steps \d+, )?sequence length (\d+), total steps (\d+)"
)
_START_NAMES = ("micro_batch_size", "global_batch_size", "seq_len", "total_iterations")
_MESH = re.compile(r"Building \d-D device mesh with \[([^\]]*)\], \[([\d, ]+)\]")
_LOADED = re.compile(r"Loading the checkpoint (?:at|from) (?:step |\S*step-)(\d+)")


class TorchtitanFormat:
    """Reads torchtitan's console log, with or without ``grad_norm``, ``tflops`` and ``mfu``."""

    system = "torchtitan"
    markers: tuple[str, ...] = ("step: ", " with local batch size ", "device mesh with [", "Loading the checkpoint ")
    tflops_convention = "model"
    """Source: torchtitan/models/utils.py: 6 FLOPs a parameter and token plus 12·l·h·s of dense attention (PaLM, appendix B)."""
    wants_next = False

    def read(self, line: Line) -> Iterable[Event]:
        parts = parts_from(_STEP, certain_text(line, ("%", ")"))[0])
        if not parts:
            yield from _facts(line)
        yield from glued(line, parts)
        start = 0
        for match, text in parts:
            fields = _fields(match, text)
            put_timestamp(fields, line.text[start : match.start()])
            start = match.end()
            put_rank(fields, line.label)
            if "tokens_per_s_per_gpu" in fields and "loss" in fields:
                yield StepEvent(line.number, fields)
            elif "mem_gib" in fields or (not line.whole and "root - INFO" in line.text):
                yield IncompleteEvent(line.number, fields)

    def end(self) -> Iterable[Event]:
        return ()


def _fields(step: re.Match[str], text: str) -> dict[str, Value]:
    fields: dict[str, Value] = {"iteration": int(step[1])}
    for key, value, unit, percent in _PAIR.findall(text):
        if key == "memory" and unit:
            fields["mem_gib"] = number(value)
            fields["mem_percent"] = number(percent)
        elif key in _NAMES:
            put_number(fields, _NAMES[key], value)
    if fields.get("loss") == _NO_LOSS:
        fields["loss"] = None
    return fields


def _facts(line: Line) -> Iterable[Event]:
    start = _START.search(line.text)
    if start:
        settings = {name: int(value) for name, value in zip(_START_NAMES, start.groups(), strict=True)}
        yield FactEvent(line.number, "setting", settings)
    mesh = _MESH.search(line.text)
    if mesh:
        yield FactEvent(line.number, "setting", _mesh_settings(mesh[1], mesh[2]))
    loaded = _LOADED.search(line.text)
    if loaded:
        yield FactEvent(line.number, "checkpoint_loaded", {"iteration": int(loaded[1])})


def _mesh_settings(names: str, sizes: str) -> dict[str, int]:
    """World size and degrees of ``['dp_shard', 'tp'], [4, 2]``."""
    degrees = [int(size) for size in sizes.split(",") if size.strip()]
    world_size = 1
    for degree in degrees:
        world_size *= degree
    axes = dict(zip((name.strip(" '\"") for name in names.split(",")), degrees, strict=False))
    return {"world_size": world_size} | {name: axes[name] for name in ("tp", "pp") if name in axes}
