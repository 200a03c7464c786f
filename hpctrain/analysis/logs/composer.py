"""Blocks of Composer's console logger (llm-foundry): ``[batch=1/10]:`` and indented ``Train key: value`` lines below it.

The header counts steps that are done, ``time/batch``, ``time/sample`` and ``time/token`` those before this step. Numbers have
four decimals, so a learning rate of 0.0000 is a rounded one. ``time/train`` of the speed monitor is in hours of the whole run;
memory is in 1e9 bytes; the throughput needs a full window and is missing at first. Source: composer/loggers/console_logger.py,
composer/callbacks/speed_monitor.py and memory_monitor.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import certain_text, number, put_number, put_or_missing, put_rank

_HEADER = re.compile(r"(?:\[epoch=(\d+)(?:/\d+)?\])?\[(batch|sample|token|iteration)=(\d+)(?:/(\d+))?\](:?)\s*\Z")
_KEY = re.compile(r"\s+Train ([A-Za-z][^:]*): (\S+)\s*\Z")
_EVAL_KEY = re.compile(r"\s+Eval (\S+?)(?:LanguageCrossEntropy): (\S+)\s*\Z")
_OTHER_LINE = re.compile(r"\S")
"""Keys are indented."""
_BANNER = re.compile(r"-Begin global rank (\d+) STD")
_MEASURED = {
    "throughput/batches_per_sec": "batches_per_s",
    "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/device/tokens_per_sec": "tokens_per_s_per_gpu",
    "memory/allocated_mem": "mem_allocated_gb",
    "memory/current_allocated_mem": "mem_allocated_gb",
    "memory/peak_allocated_mem": "max_mem_allocated_gb",
    "memory/reserved_mem": "mem_reserved_gb",
    "memory/current_reserved_mem": "mem_reserved_gb",
    "memory/peak_reserved_mem": "max_mem_reserved_gb",
}
_SHIFTED = {
    "throughput/device/flops_per_sec": ("tflops_per_gpu", -12),
    "throughput/device/mfu": ("mfu_percent", 2),
}
_NAMES = {
    "loss/train/total": "loss",
    "metrics/train/LanguagePerplexity": "perplexity",
    "metrics/train/Perplexity": "perplexity",
    "l2_norm/grad/global": "grad_norm",
    "time/batch": "batches_before",
    "time/sample": "consumed_samples",
    "time/token": "consumed_tokens",
    "trainer/device_train_microbatch_size": "micro_batch_size",
}
_CUSTOMARY = ("tokens_per_s", "tflops_per_gpu")


class ComposerFormat:
    """Reads the blocks of one run; noise between the lines of a block does not end it before its loss."""

    system = "llm-foundry"
    markers: tuple[str, ...] = (
        "[batch=",
        "[token=",
        "[sample=",
        "-Begin global rank ",
        "\t Train ",
        "    Train ",
        " Eval metrics/",
    )
    tflops_convention = "model"
    """Source: flops_per_batch of llm-foundry's models: 6 FLOPs a parameter and token plus 12·l·h·s of attention."""

    def __init__(self) -> None:
        self.wants_next = False
        self._block: dict[str, Value] | None = None
        self._block_line = 0
        self._label = ""
        self._certain = True
        self._rank = ""
        self._iteration: Value = None

    def read(self, line: Line) -> Iterable[Event]:
        text, certain = certain_text(line, ("]:", "]"))
        header = _HEADER.search(text)
        if header or "[Eval batch=" in text:
            yield from self._close(at_end=False)
            if header and header[5]:
                self._open(line, header)
            return
        banner = _BANNER.search(text)
        if banner:
            yield from self._close(at_end=False)
            self._rank = f"rank{banner[1]}"
            return
        evaluation = _EVAL_KEY.match(text)
        if evaluation and certain:
            fields = {"iteration": self._iteration, "val_loss": number(evaluation[2])}
            yield FactEvent(line.number, "validation", fields)
        elif self._block is not None and line.label == self._label:
            yield from self._line_of_block(line, text, certain)

    def end(self) -> Iterable[Event]:
        return self._close(at_end=True)

    def _open(self, line: Line, header: re.Match[str]) -> None:
        epoch, unit, done, total, _ = header.groups()
        fields: dict[str, Value] = {}
        if unit in ("batch", "iteration"):
            fields["iteration"] = int(done)
            if total:
                fields["total_iterations"] = int(total)
        if epoch:
            fields["epoch"] = int(epoch)
        put_rank(fields, self._rank or line.label)
        self._block, self._block_line, self._label = fields, line.number, line.label
        self._certain = True
        self.wants_next = True

    def _line_of_block(self, line: Line, text: str, certain: bool) -> Iterable[Event]:
        assert self._block is not None
        key = _KEY.match(text)
        if key is None:
            self.wants_next = False
            is_other = (certain and bool(text.strip())) or _OTHER_LINE.match(line.text) is not None
            self._certain = certain or is_other
            if is_other and "loss" in self._block:
                yield from self._close(at_end=False)
                if not line.whole:
                    yield FactEvent(line.number, "trait", {"name": "truncated_last_line"})
            return
        self.wants_next = True
        self._certain = certain
        if certain:
            _put(self._block, key[1], key[2])

    def _close(self, at_end: bool) -> Iterable[Event]:
        fields, self._block, self.wants_next = self._block, None, False
        if fields is None:
            return
        before = fields.pop("batches_before", None)
        if "iteration" not in fields and isinstance(before, int):
            fields["iteration"] = before + 1
        self._iteration = fields.get("iteration")
        if "loss" in fields and (self._certain or not at_end):
            yield StepEvent(self._block_line, dict.fromkeys(_CUSTOMARY) | fields)
        else:
            yield IncompleteEvent(self._block_line, fields)


def _put(fields: dict[str, Value], key: str, text: str) -> None:
    if key in _MEASURED:
        put_or_missing(fields, _MEASURED[key], text)
    elif key in _SHIFTED:
        put_or_missing(fields, _SHIFTED[key][0], text, _SHIFTED[key][1])
    elif key.startswith("lr-") and "learning_rate" not in fields:
        put_or_missing(fields, "learning_rate", text)
    elif key in _NAMES:
        put_number(fields, _NAMES[key], text)
