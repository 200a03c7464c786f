"""Hugging Face Trainer: dicts of ``on_log``, evaluation dicts, the dict and the table at the end, and tqdm bars.

``{'loss': 6.2645, 'grad_norm': 1.2, 'learning_rate': 0.001, 'epoch': 0.02}`` carries no step, only the epoch; newer versions put
the numbers in quotes. The dict at the end (``train_runtime``) is printed by every rank with slightly different times: one result.
``train_samples_per_second`` counts all ranks. Source: transformers trainer.py, trainer_utils.py (speed_metrics),
trainer_pt_utils.py (log_metrics, metrics_format), trainer_callback.py; LlamaFactory's callbacks for its JSON lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import NUMBER, clock_seconds, number, put_number, put_rank
from hpctrain.analysis.logs.tqdm_bar import BAR, bar_fields

_DICT = re.compile(r"\{'[^{}]*\}?|\{\"current_steps\": [^{}]*\}?")
_PAIR = re.compile(rf"['\"]([^'\"]+)['\"]: (?:tensor\()?['\"]?({NUMBER})['\"]?(?=[,}})])")
_QUOTED = re.compile(rf"['\"]: ['\"]{NUMBER}['\"]")
_POSITION = re.compile(r"'global_step/max_steps': '(\d+)/(\d+)'")
"""Of ms-swift."""
_TAIL = re.compile(r"\A[^{]*'epoch': [\d.'\"]+\}")
_UNNAMED = re.compile(r"(?:\A|[^:\s\d])\s*\d+%\Z")
_MAX_NAME = 64
_NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "lr": "learning_rate",
    "epoch": "epoch",
    "step": "iteration",
    "global_step": "iteration",
    "current_steps": "iteration",
    "total_steps": "total_iterations",
    "num_input_tokens_seen": "consumed_tokens",
    "num_tokens": "consumed_tokens",
    "total_tokens": "consumed_tokens",
    "throughput": "tokens_per_s",
    "train_tokens_per_second": "tokens_per_s",
    "tokens_per_second_per_gpu": "tokens_per_s_per_gpu",
    "step_tokens_per_second": "tokens_per_s",
    "ppl": "perplexity",
    "step_peak_memory_allocated_MB": "peak_mem_mb",
    "memory_allocated (GB)": "mem_allocated_gb",
    "max_memory_allocated (GB)": "max_mem_allocated_gb",
    "memory(GiB)": "mem_gib",
    "memory/max_mem_allocated(gib)": "mem_gib",
    "memory/max_allocated (GiB)": "mem_gib",
}
_FINAL_NAMES = {
    "train_runtime": "train_runtime_s",
    "train_samples": "train_samples",
    "train_samples_per_second": "train_samples_per_second",
    "train_steps_per_second": "train_steps_per_second",
    "train_tokens_per_second": "train_tokens_per_second",
    "train_loss": "train_loss",
    "total_flos": "total_flos",
    "epoch": "epoch",
}
_TABLE_ROW = re.compile(r"(?:\A|>>|- )\s+(train_\w+|epoch|total_flos)\s+=\s+(\S+(?: days?, \S+)?)\s*\Z")
_TABLE_HEAD = "***** train metrics *****"
_SETTINGS = (
    (re.compile(r"Instantaneous batch size per device = ([\d,]+)"), "micro_batch_size"),
    (
        re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)"),
        "global_batch_size",
    ),
    (re.compile(r"Gradient Accumulation steps = ([\d,]+)"), "gradient_accumulation_steps"),
    (re.compile(r"Total optimization steps = ([\d,]+)"), "total_iterations"),
)
_SAME_RUN = 0.01
"""Run times that differ by less than this share are copies of one result by several ranks."""


def _is_unnamed(text: str, position: int) -> bool:
    """The bar whose position stands there is the Trainer's; bars of data sets and checkpoints carry a name (``Map:  33%|``).

    Looks back from the bar only: thousands of them can stand in one line.
    """
    bar = text.rfind("|", 0, max(0, position - 2))
    head = text[max(0, bar - _MAX_NAME) : bar]
    return text[max(0, position - 2) : position] == "| " and bar >= 0 and _UNNAMED.search(head) is not None


class HfTrainerFormat:
    """Reads the console log of transformers' Trainer and of programs built on it."""

    system = "hf-trainer"
    markers: tuple[str, ...] = (
        "'loss': ",
        "'train_runtime': ",
        "'eval_loss': ",
        "'epoch': ",
        '{"current_steps": ',
        _TABLE_HEAD,
        "batch size per device = ",
        "Total train batch size (w. parallel",
        "Gradient Accumulation steps = ",
        "Total optimization steps = ",
        "it/s]",
        "s/it]",
    )
    tflops_convention = "unknown"
    """It prints no TFLOP/s; ``total_flos`` is 6 FLOPs a parameter and token without attention."""

    def __init__(self) -> None:
        self.wants_next = False
        self._told_quotes = False
        self._bar: FactEvent | None = None
        self._final: dict[str, Value] = {}
        self._final_line = 0

    def read(self, line: Line) -> Iterable[Event]:
        text = line.text
        if self.wants_next or _TABLE_HEAD in text:
            self._table(line)
        for match in BAR.finditer(text):
            if match["rate"] and not match["metrics"] and _is_unnamed(text, match.start()):
                yield from self._next_bar(FactEvent(line.number, "bar", bar_fields(match)))
        for found in _DICT.finditer(text):
            yield from self._dict(line, found[0])
        if _TAIL.match(text):
            name = "truncated_first_line" if line.number == 1 else "orphan_fragment"
            yield FactEvent(line.number, "trait", {"name": name})
        for pattern, name in _SETTINGS:
            setting = pattern.search(text)
            if setting and line.whole:
                yield FactEvent(line.number, "setting", {name: number(setting[1])})

    def end(self) -> Iterable[Event]:
        if self._bar is not None:
            yield self._bar
        yield from self._end_of_run()

    def _dict(self, line: Line, text: str) -> Iterable[Event]:
        closed = text.endswith("}")
        pairs = dict(_PAIR.findall(text))
        if "train_runtime" in pairs:
            if closed:
                yield from self._final_dict(line, pairs)
            return
        if any(key.startswith("eval_") for key in pairs):
            if closed and "eval_loss" in pairs:
                fields = {"val_loss": number(pairs["eval_loss"]), "epoch": number(pairs.get("epoch", ""))}
                yield FactEvent(line.number, "validation", fields)
            return
        fields_of_step: dict[str, Value] = {}
        for key, value in pairs.items():
            if key in _NAMES:
                put_number(fields_of_step, _NAMES[key], value)
        position = _POSITION.search(text)
        if position:
            fields_of_step["iteration"], fields_of_step["total_iterations"] = int(position[1]), int(position[2])
        put_rank(fields_of_step, line.label)
        if not self._told_quotes and fields_of_step and _QUOTED.search(text):
            self._told_quotes = True
            yield FactEvent(line.number, "trait", {"name": "numbers_as_strings"})
        if "loss" in pairs and closed and len({"epoch", "learning_rate", "lr"} & pairs.keys()) > 0:
            yield StepEvent(line.number, fields_of_step)
        elif "loss" in pairs and line.text.endswith(text) and not closed:
            yield IncompleteEvent(line.number, fields_of_step)

    def _next_bar(self, bar: FactEvent) -> Iterable[Event]:
        """Of the bars of one loop only the last is told: a loop of a million steps draws a million of them."""
        before, self._bar = self._bar, bar
        if before is not None and (before.fields["total"] != bar.fields["total"] or _position(before) > _position(bar)):
            yield before

    def _final_dict(self, line: Line, pairs: dict[str, str]) -> Iterable[Event]:
        runtime = number(pairs["train_runtime"])
        earlier = self._final.get("train_runtime_s")
        if isinstance(earlier, int | float) and isinstance(runtime, int | float):
            if abs(runtime - earlier) <= _SAME_RUN * earlier:
                self._final["copies_of_final_dict"] = int(self._final["copies_of_final_dict"] or 0) + 1
                return
            yield from self._end_of_run()
        self._final = {_FINAL_NAMES[key]: number(value) for key, value in pairs.items() if key in _FINAL_NAMES}
        self._final["copies_of_final_dict"] = 1
        self._final_line = line.number
        if self._bar is not None:
            self._final["steps"] = _value(self._bar, "total")

    def _table(self, line: Line) -> None:
        """A row of the table of ``log_metrics``; its run time is a clock time, its numbers are padded."""
        row = _TABLE_ROW.search(line.text)
        self.wants_next = _TABLE_HEAD in line.text or row is not None
        if row is None:
            return
        key, text = row.groups()
        self._final_line = self._final_line or line.number
        if key == "train_runtime":
            self._final["train_runtime_s_from_table"] = clock_seconds(text) if ":" in text else number(text)
        elif key in _FINAL_NAMES:
            self._final.setdefault(_FINAL_NAMES[key], _padded(text))

    def _end_of_run(self) -> Iterable[Event]:
        if self._final:
            if self._bar is not None:
                self._final.setdefault("steps", _value(self._bar, "total"))
            yield FactEvent(self._final_line, "final", self._final)
        self._final, self._final_line = {}, 0


def _padded(text: str) -> Value:
    """A number of the table; ``total_flos`` stands there in whole units of 2**30, called GF."""
    if not text.endswith("GF"):
        return number(text)
    units = number(text[:-2])
    return None if units is None else units * 2**30


def _value(bar: FactEvent, name: str) -> int | None:
    value = bar.fields[name]
    return value if isinstance(value, int) else None


def _position(bar: FactEvent) -> int:
    return _value(bar, "step") or 0
