"""The lines around Megatron's iteration line: arguments, checkpoints, validation, timers, memory, marks of another run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.analysis.logs.events import Event, FactEvent, Line
from hpctrain.analysis.logs.megatron_fields import squeeze
from hpctrain.analysis.logs.printed import number

FACT_MARKERS = (
    " arguments ---",
    "arguments:",
    "using world size: ",
    "time (ms) |",
    "time across ranks (ms):",
    "valid loss at",
    "validation loss at",
    "validation results at",
    "test loss at",
    "test results at",
    "saved checkpoint",
    "saving checkpoint",
    "oading checkpoint",
    "loaded checkpoint",
    "after restart",
    "memory (MB) |",
    "Effective Tera Flops per GPU: ",
    "TP=",
)

_VALIDATION = re.compile(
    r"\b(?:(valid(?:ation)?)|test) (?:loss|results) at (?:iteration (\d+)|the end of training for (\w+) data)[^|]*\|(.*)"
)
_VALIDATION_VALUE = re.compile(r"\s*([\w -]*?):\s*([-+\d.eE]+|nan|inf)\s*$")
_SAVED = re.compile(r"(?:successfully saved|saving) checkpoint (?:at|from) iteration\s+(\d+)")
_LOADED = re.compile(
    r"(?:(successfully) loaded|loading) checkpoint from (?:\S+ )*?(?:\[[^\]]*\] )?at iteration\s+(\d+)"
)
_TIMER = re.compile(r"(?<=\| )([\w/+-]+(?: [\w/+-]+)*): (\d+\.\d+)")
_TIMER_ROW = re.compile(r"\s+([\w/+() -]+?) \.{2,}: (?:\((\d+\.\d+), (\d+\.\d+)\)|(\d+\.\d+))\s*$")
_MEMORY = re.compile(r"\[Rank (\d+)\] \(after \d+ iterations\) memory \(MB\) \|")
_MAX_ALLOCATED = re.compile(r"max allocated: (\d+\.?\d*) \|")
_EFFECTIVE = re.compile(r"Effective Tera Flops per GPU: (\d+\.?\d*) ")
_TOPOLOGY = re.compile(r"\s*[A-Za-z]+=\d+(?:[/, ]+[A-Za-z]+=\d+)+\s*$")
_TOPOLOGY_NAMES = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "nodes": "nodes",
    "nnodes": "nodes",
    "gpus": "world_size",
    "seqlen": "seq_len",
}
_WORLD = re.compile(r"using world size: (\d+)")
_WORLD_SIZES = re.compile(r"(data|tensor-model|pipeline-model|context|model)-parallel[- ]size: (\d+)")
_WORLD_NAMES = {"data": "dp", "tensor-model": "tp", "model": "tp", "pipeline-model": "pp", "context": "cp"}

_ARGUMENTS_START = re.compile(r"^(?:-+ arguments -+|\s*arguments:\s*)$")
_ARGUMENT = re.compile(r"\s*([A-Za-z]\w*) \.{2,} ?(.*?)\s*$")
_MAX_ARGUMENT_LINES = 1500
_ARGUMENT_NAMES = {
    "world_size": "world_size",
    "num_gpus": "world_size",
    "seq_length": "seq_len",
    "micro_batch_size": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "train_batch_size": "global_batch_size",
    "tensor_model_parallel_size": "tp",
    "model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "pipe_parallel_size": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "padded_vocab_size": "vocab_size",
    "log_interval": "log_interval",
    "zero_stage": "zero_stage",
}
"""Argument, setting. ``model_parallel_size`` is the tensor degree in versions before 2.0 and in GPT-NeoX."""


class MegatronFacts:
    """Reads what is no record; one instance a file."""

    def __init__(self) -> None:
        self.wants_next = False
        self._arguments: dict[str, object] | None = None
        self._num_argument_lines = 0
        self._timers: dict[str, object] | None = None
        self._last_saved = -1
        self._largest_rank = 0
        self._max_allocated = 0.0

    def read(self, line: Line) -> Iterator[Event]:
        """The facts of one line."""
        if self._arguments is not None:
            yield from self._argument(line)
        elif self._timers is not None:
            yield from self._timer_row(line)
        else:
            yield from self._fact(line)
        self.wants_next = self._arguments is not None or self._timers is not None

    def close(self, line_number: int) -> Iterator[Event]:
        """A table of arguments or timers ends with the next record, or with the file."""
        yield from self._close_arguments(line_number)
        yield from self._close_timers(line_number)
        self.wants_next = False

    def _fact(self, line: Line) -> Iterator[Event]:
        text = line.text
        if "arguments" in text and _ARGUMENTS_START.match(text.strip()):
            self._arguments, self._num_argument_lines = {}, 0
            yield FactEvent(line.number, "restart")
            return
        if " at " in text and (match := _VALIDATION.search(text)):
            yield from _validation(line, match)
        elif text.lstrip().startswith("time (ms) |"):
            times = {name: float(value) for name, value in _TIMER.findall(text)}
            times = {name: value for name, value in times.items() if value > 0}  # Zeros are timers that never ran.
            if times:
                yield FactEvent(line.number, "timers", dict(times))
        elif "checkpoint" in text and (match := _SAVED.search(text)):
            if line.whole or match.end() < len(text):
                yield from self._saved(line, int(match[1]))
        elif "checkpoint" in text and (match := _LOADED.search(text)):
            if line.whole or match.end() < len(text):
                yield FactEvent(line.number, "checkpoint_loaded", {"iteration": int(match[2])})
        elif match := _EFFECTIVE.search(text):
            yield FactEvent(line.number, "of_last", {"tflops_per_gpu": float(match[1]) or None})
        elif "] (after " in text:
            yield from self._memory(line)
        elif text.strip() == "after restart":
            yield FactEvent(line.number, "restart")
        elif _TOPOLOGY.match(text) and line.whole:
            yield from _topology(line)
        elif match := _WORLD.search(text):
            yield from _world(line, int(match[1]))
        if "time across ranks (ms):" in text:
            self._timers = {}
            yield from self._inline_timers(line)

    def _saved(self, line: Line, iteration: int) -> Iterator[Event]:
        """Begin and end of one saving are one checkpoint."""
        if iteration != self._last_saved:
            self._last_saved = iteration
            yield FactEvent(line.number, "checkpoint_saved", {"iteration": iteration})

    def _memory(self, line: Line) -> Iterator[Event]:
        """Ranks tell their memory after the first steps; their numbers bound the world size from below."""
        ranks = [int(rank) for rank in _MEMORY.findall(line.text)]
        if not ranks:
            return
        if len(ranks) > 1:
            yield FactEvent(line.number, "trait", {"name": "glued_lines"})
        allocated = max([float(value) for value in _MAX_ALLOCATED.findall(line.text)], default=0.0)
        if max(ranks) > self._largest_rank or allocated > self._max_allocated:
            self._largest_rank = max(self._largest_rank, *ranks)
            self._max_allocated = max(self._max_allocated, allocated)
            yield FactEvent(
                line.number,
                "setting",
                {"world_size_at_least": self._largest_rank + 1, "max_mem_allocated_mb": self._max_allocated},
            )

    def _argument(self, line: Line) -> Iterator[Event]:
        self._num_argument_lines += 1
        match = _ARGUMENT.match(line.text)
        arguments = self._arguments if self._arguments is not None else {}
        if match and line.whole:
            value = re.sub(r"\.{3,}(?:updated|default|checkpoint)?$", "", match[2]).strip()
            name = _ARGUMENT_NAMES.get(match[1])
            if name and value.isdigit() and not (name == "world_size" and match[1] == "num_gpus" and name in arguments):
                arguments[name] = int(value)
            elif match[1] in ("bf16", "fp16") and value == "True":
                arguments["precision"] = match[1]
            elif match[1] == "precision":
                arguments["precision"] = value.strip("'\"")
        elif "end of arguments" in line.text or self._num_argument_lines > _MAX_ARGUMENT_LINES:
            yield from self._close_arguments(line.number)

    def _close_arguments(self, line_number: int) -> Iterator[Event]:
        arguments, self._arguments = self._arguments, None
        if arguments:
            yield FactEvent(line_number, "setting", arguments)

    def _timer_row(self, line: Line) -> Iterator[Event]:
        match = _TIMER_ROW.match(line.text)
        if match and self._timers is not None:
            self._timers[match[1].strip()] = float(match[3] or match[4])
        else:
            yield from self._close_timers(line.number)
            yield from self._fact(line)

    def _inline_timers(self, line: Line) -> Iterator[Event]:
        """Newer checkpoint messages carry the timer in the same line."""
        rest = line.text.partition("time across ranks (ms):")[2]
        match = _TIMER_ROW.match(rest)
        if match:
            self._timers = None
            yield FactEvent(line.number, "timers", {match[1].strip(): float(match[3] or match[4])})

    def _close_timers(self, line_number: int) -> Iterator[Event]:
        timers, self._timers = self._timers, None
        if timers:
            yield FactEvent(line_number, "timers", timers)


def _validation(line: Line, match: re.Match[str]) -> Iterator[Event]:
    """Loss and perplexity of an evaluation; of a test set it is told."""
    fields: dict[str, object] = {"iteration": int(match[2]) if match[2] else None}
    if not match[1]:
        fields["data"] = "test"
    parts = match[4].split("|")
    for part in parts if line.whole else parts[:-1]:
        value = _VALIDATION_VALUE.match(part)
        if value is None:
            continue
        name = squeeze(value[1]).removesuffix("value")
        if name.endswith("ppl"):
            fields["ppl"] = number(value[2])
        elif name == "lmloss" or (name == "loss" and "lm_loss" not in fields):
            fields["lm_loss"] = number(value[2])
    if len(fields) > 1:
        yield FactEvent(line.number, "validation", fields)


def _topology(line: Line) -> Iterator[Event]:
    """A line of degrees that people put between runs: ``TP=4/PP=12/MBS=2/Nodes=24``."""
    pairs = [pair.partition("=") for pair in re.split(r"[/, ]+", line.text.strip())]
    fields = {_TOPOLOGY_NAMES[name.lower()]: int(value) for name, _, value in pairs if name.lower() in _TOPOLOGY_NAMES}
    if len(fields) >= 2:
        yield FactEvent(line.number, "segment", dict(fields))


def _world(line: Line, world_size: int) -> Iterator[Event]:
    sizes = {_WORLD_NAMES[name]: int(size) for name, size in _WORLD_SIZES.findall(line.text)}
    if line.whole:
        yield FactEvent(line.number, "setting", {"world_size": world_size, **sizes})
