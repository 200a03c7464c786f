"""Blocks of OLMo and OLMo-core: a header ``[step=2/739328,epoch=0]`` and indented ``key=value`` lines below it.

Integers carry thousands separators, large numbers of OLMo-core a letter. ``(actual avg)`` keys are averages since the start and
are left out. OLMo's header without keys below it tells progress and is no record. Source: log_metrics_to_console of OLMo's
olmo/train.py; console_logger, speed_monitor and gpu_memory_monitor of OLMo-core's train/callbacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import certain_text, is_nan, put_rank, put_timestamp, si_number

_HEADER = re.compile(r"\[step=(\d+(?:,\d{3})*)/(\d+(?:,\d{3})*|\?+)(?:,epoch=(\d+))?[^\]]*\]")
_KEY = re.compile(r"\s+([A-Za-z][^=]*/[^=]+)=(\S+)\s*\Z")
_OTHER_LINE = re.compile(r"\S")
"""Keys are indented."""
_RANK = re.compile(r"\brank=(\d+)")
"""Of the rich style; the plain style's ``host:0`` is the rank within a node."""
_NAMES = {
    "train/CrossEntropyLoss": "loss",
    "train/CE loss": "loss",
    "train/Perplexity": "perplexity",
    "train/PPL": "perplexity",
    "train/load balancing loss": "load_balancing_loss",
    "optim/total_grad_norm": "grad_norm",
    "optim/total grad norm": "grad_norm",
    "optim/learning_rate_group0": "learning_rate",
    "optim/LR (group 0)": "learning_rate",
    "optim/LR": "learning_rate",
    "optim/step skipped": "skipped_iterations",
    "throughput/total_tokens": "consumed_tokens",
    "throughput/total tokens": "consumed_tokens",
    "throughput/device/tokens_per_second": "tokens_per_s_per_gpu",
    "throughput/device/TPS": "tokens_per_s_per_gpu",
    "throughput/device/batches_per_second": "batches_per_s",
    "throughput/device/BPS": "batches_per_s",
    "throughput/device/MFU": "mfu_percent",
    "throughput/device/TFLOPs_per_GPU": "tflops_per_gpu",
    "System/Peak GPU Memory (MB)": "peak_mem_mb",
    "system/Peak GPU Memory (MB)": "peak_mem_mb",
    "gpu_memory/GPU reserved mem (GiB)": "mem_gib",
    "gpu_memory/GPU reserved mem (%)": "mem_percent",
}
_CUSTOMARY = ("loss", "tokens_per_s_per_gpu")
"""A block that lacks one of these has it as missing: the first block has no throughput yet."""
_CLOCK_SKEW = timedelta(minutes=1)


class OlmoFormat:
    """Reads blocks in the plain and the rich style, of one or several runs in one file."""

    system = "olmo"
    markers: tuple[str, ...] = ("[step=",)
    tflops_convention = "model"
    """Source: OLMo-core speed_monitor: 6 FLOPs a parameter and token plus 12·l·h·s of attention. Its MFU takes the A100's peak
    for GPUs it does not know."""

    def __init__(self) -> None:
        self.wants_next = False
        self._block: dict[str, Value] | None = None
        self._block_line = 0
        self._label = ""
        self._certain = True
        self._last_time: datetime | None = None

    def read(self, line: Line) -> Iterable[Event]:
        header = _HEADER.search(line.text)
        if header:
            yield from self._close(at_end=False)
            yield from self._open(line, header)
        elif self._block is not None and line.label == self._label:
            yield from self._line_of_block(line)

    def end(self) -> Iterable[Event]:
        return self._close(at_end=True)

    def _open(self, line: Line, header: re.Match[str]) -> Iterable[Event]:
        fields: dict[str, Value] = {"iteration": int(header[1].replace(",", ""))}
        if not header[2].startswith("?"):
            fields["total_iterations"] = int(header[2].replace(",", ""))
        if header[3]:
            fields["epoch"] = int(header[3])
        prefix = line.text[: header.start()]
        put_timestamp(fields, prefix)
        rank = _RANK.search(prefix)
        put_rank(fields, f"rank{rank[1]}" if rank else line.label)
        if self._is_earlier(fields.get("timestamp")):
            yield FactEvent(line.number, "segment", {})
        self._block, self._block_line, self._label = fields, line.number, line.label
        self._certain = True
        self.wants_next = True

    def _line_of_block(self, line: Line) -> Iterable[Event]:
        """A key of the block; a line that is none ends it, even where the file cuts that line off."""
        assert self._block is not None
        text, certain = certain_text(line)
        key = _KEY.match(text)
        if key and certain:
            _put(self._block, key[1], key[2])
        elif key is None and (certain or _OTHER_LINE.match(line.text)):
            yield from self._close(at_end=False)
            if not line.whole:
                yield FactEvent(line.number, "trait", {"name": "truncated_last_line"})
            return
        self._certain = certain

    def _is_earlier(self, printed: Value) -> bool:
        """True where the clock went back by more than clocks of nodes differ: another run was written into the file."""
        if not isinstance(printed, str):
            return False
        time = datetime.fromisoformat(printed.replace(",", ".")).replace(tzinfo=None)
        earlier = self._last_time is not None and time < self._last_time - _CLOCK_SKEW
        self._last_time = time
        return earlier

    def _close(self, at_end: bool) -> Iterable[Event]:
        fields, self._block, self.wants_next = self._block, None, False
        if fields is None:
            return
        has_loss, has_speed = "loss" in fields, "tokens_per_s_per_gpu" in fields
        if (has_loss or has_speed) and (self._certain or not at_end):
            yield StepEvent(self._block_line, dict.fromkeys(_CUSTOMARY) | fields)
        elif at_end and (has_loss or has_speed or "consumed_tokens" in fields or not self._certain):
            yield IncompleteEvent(self._block_line, fields)


def _put(fields: dict[str, Value], key: str, text: str) -> None:
    if key == "throughput/device/flopsPS":
        flops = si_number(text)
        fields["tflops_per_gpu"] = None if flops is None else round(flops / 1e12, 6)
    elif key in _NAMES:
        name = _NAMES[key]
        fields[name] = si_number(text)
        if is_nan(text):
            fields[f"{name}_is_nan"] = True
