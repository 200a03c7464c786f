"""DeepSpeed's tables: the comms logger's summary and the head of the flops profiler."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.analysis.logs.events import Event, FactEvent, Line

_COLUMN = re.compile(r"Comm\. Op|Message Size|Count|(?:\w+ )*\w+ ?\((?:ms|us|s|Gbps)\)")
_COLUMN_NAMES = {
    "Count": "count",
    "Total Latency(ms)": "total_ms",
    "Total comm lat(ms)": "total_ms",
    "Avg Latency(ms)": "avg_ms",
    "Avg comm lat(ms)": "avg_ms",
    "Total straggler(ms)": "total_straggler_ms",
    "Avg straggler(ms)": "avg_straggler_ms",
    "tput_avg (Gbps)": "tput_gbps",
    "busbw_avg (Gbps)": "busbw_gbps",
}
_OP = re.compile(r"\s*([A-Za-z_]\w*)\s*$")
_ROW = re.compile(r"\s*(?:([A-Za-z_]\w*)\s+)?(\d+(?:\.\d+)?) ?([KMGTP]?B)\s+(.*\S)\s*$")
_VALUE = re.compile(r"-?(?:\d+(?:\.\d+)?|nan|inf)")
_BYTES = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4, "PB": 1024**5}

_PROFILE_START = re.compile(r"-{3,} DeepSpeed Flops Profiler -{3,}")
_PROFILE_STEP = re.compile(r"Profile Summary at step (\d+):")
_PROFILE_LINE = re.compile(r"\s*([A-Za-z][\w+ /-]*?)\s*(?:=[^:]*)?:\s+(-?\d[\d.,]*(?:e[-+]?\d+)?)\s*([A-Za-z]*)\s*$")
_PROFILE_END = re.compile(r"Aggregated Profile per GPU|Detailed Profile per GPU|^-{20,}\s*$|^\s*samples/second:")
_PROFILE_MAX_LINES = 60
"""Of the head: 30 in the longest generation; more than twice as many is a head whose end is missing."""
_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PROFILE_NAMES = {
    "world size": "world_size",
    "data parallel size": "data_parallel_size",
    "model parallel size": "model_parallel_size",
    "model paralel size": "model_parallel_size",  # As DeepSpeed 0.3 to 0.5 spell it.
    "batch size per GPU": "batch_size_per_gpu",
    "params per gpu": "params_per_gpu",
    "params per GPU": "params_per_gpu",
    "params of model": "params_of_model",
    "fwd MACs per GPU": "fwd_macs_per_gpu",
    "fwd flops per GPU": "fwd_flops_per_gpu",
    "fwd flops of model": "fwd_flops_of_model",
    "fwd latency": "fwd_latency_s",
    "bwd latency": "bwd_latency_s",
    "fwd+bwd latency": "fwd_bwd_latency_s",
    "step latency": "step_latency_s",
    "iter latency": "iter_latency_s",
    "fwd FLOPS per GPU": "fwd_tflops_per_gpu",
    "bwd FLOPS per GPU": "bwd_tflops_per_gpu",
    "FLOPS per GPU": "tflops_per_gpu",
    "samples/second": "samples_per_s",
}
_COUNTS = frozenset({"world_size", "data_parallel_size", "model_parallel_size", "batch_size_per_gpu"})


class DeepspeedTablesFormat:
    """Rows by the names in the table's head, so that added columns (stragglers) move nothing.

    The average of a row is a mean without the ten percent at each end, the total is a plain sum: they need not agree.
    Source: deepspeed/utils/comms_logging.py, deepspeed/profiling/flops_profiler/profiler.py; deepspeedai/DeepSpeed#3578.
    """

    system = "deepspeed"
    markers = ("Comm. Op", "DeepSpeed Flops Profiler -", "Profile Summary at step ")
    tflops_convention = "unknown"

    def __init__(self) -> None:
        """For one file."""
        self.wants_next = False
        self._columns: list[str] = []
        self._op = ""
        self._profile: dict[str, object] | None = None
        self._profile_line_number = 0
        self._profile_lines = 0

    def read(self, line: Line) -> Iterator[Event]:
        """A row of the table of collectives, or the profiler's head once its last line is there."""
        if "Comm. Op" in line.text:
            yield from self._close_profile()
            self._columns = [_column_name(name) for name in _COLUMN.findall(line.text)]
            self._op = ""
        elif "Profiler -" in line.text or "Profile Summary at step " in line.text:
            yield from self._open_profile(line)
        elif self._profile is not None:
            yield from self._read_profile(line)
        elif self._columns:
            yield from self._read_table(line)
        self.wants_next = bool(self._columns) or self._profile is not None

    def end(self) -> Iterator[Event]:
        """The head of a profile that the file's end cut short."""
        yield from self._close_profile()

    def _read_table(self, line: Line) -> Iterator[Event]:
        if not line.text.strip():
            return
        if match := _ROW.match(line.text):
            self._op = match[1] or self._op
            row = self._row(match, line)
            if row is not None and self._op:
                yield FactEvent(line.number, "comm_row", row)
        elif match := _OP.match(line.text):
            self._op = match[1]
        else:
            self._columns = []

    def _row(self, match: re.Match[str], line: Line) -> dict[str, object] | None:
        """The row, or None if it is cut off: DeepSpeed prints every time and rate with two decimals."""
        values = match[4].split()
        names = [name for name in self._columns if name not in ("op", "size")]
        if len(values) != len(names) or not all(_VALUE.fullmatch(value) for value in values):
            return None
        if not line.whole and not re.search(r"\.\d\d$", values[-1]):
            return None
        blank = " " if f"{match[2]} {match[3]}" in line.text else ""
        row: dict[str, object] = {"op": self._op, "size": f"{match[2]}{blank}{match[3]}"}
        row["size_bytes"] = round(float(match[2]) * _BYTES[match[3]])
        numbers = dict(zip(names, (float(value) for value in values), strict=True))
        row.update({name: int(value) if name == "count" else value for name, value in numbers.items()})
        # A negative total means that a clock went backwards; the row's rates rest on the same clock.
        row["invalid"] = any(value < 0 for name, value in numbers.items() if name.endswith("_ms"))
        return row

    def _open_profile(self, line: Line) -> Iterator[Event]:
        step = _PROFILE_STEP.search(line.text)
        if self._profile is None or _PROFILE_START.search(line.text):
            yield from self._close_profile()
            self._profile, self._profile_line_number, self._profile_lines = {}, line.number, 0
            self._columns = []
        if step:
            self._profile["step"] = int(step[1])

    def _read_profile(self, line: Line) -> Iterator[Event]:
        assert self._profile is not None
        self._profile_lines += 1
        match = _PROFILE_LINE.match(line.text)
        cut_off = not line.whole and match is not None and not match[3]
        name = _PROFILE_NAMES.get(match[1]) if match and not cut_off else None
        if match and name:
            self._profile[name] = _profile_value(name, match[2], match[3])
        if _PROFILE_END.search(line.text) or self._profile_lines >= _PROFILE_MAX_LINES:
            yield from self._close_profile()

    def _close_profile(self) -> Iterator[Event]:
        if self._profile:
            yield FactEvent(self._profile_line_number, "profile", self._profile)
        self._profile = None


def _column_name(title: str) -> str:
    """The field of a column; an unknown one keeps its words and its unit."""
    if title in ("Comm. Op", "Message Size"):
        return {"Comm. Op": "op", "Message Size": "size"}[title]
    plain = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    return _COLUMN_NAMES.get(title, plain)


def _profile_value(name: str, number: str, unit: str) -> float | int | None:
    """The number in the field's unit; None for a unit that the field can't have."""
    value = float(number.replace(",", ""))
    if name in _COUNTS:
        return int(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return value * _SECONDS[unit] if unit in _SECONDS else None
    for suffix in ("MACs", "FLOPS", "FLOPs"):
        unit = unit.removesuffix(suffix)
    if unit not in _SI:
        return None
    return value * _SI[unit] / (1e12 if "tflops" in name else 1.0)
