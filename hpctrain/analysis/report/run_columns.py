"""How each column of the frame ``runs`` is called, measured and printed in the page, in a paper and in the terminal's table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from hpctrain.analysis.run_row import FLOP_CONVENTIONS
from hpctrain.text_table import MISSING
from hpctrain.units import GIB

Kind = Literal["text", "count", "number", "share", "bytes", "flag"]


@dataclass(frozen=True)
class RunColumn:
    """A column for people."""

    key: str
    """Its name in the frame."""
    label: str
    kind: Kind = "text"
    unit: str = ""
    """What ``cell_text`` prints the value in."""
    meaning: str = ""
    extra: bool = False
    """In the page only where all columns are asked for."""
    screen_only: bool = False
    """Not printed on paper, which is narrower than a screen that scrolls."""

    @property
    def header(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


RUN_COLUMNS: tuple[RunColumn, ...] = (
    RunColumn("run", "Run", meaning="name of the run folder or file"),
    RunColumn("source", "System", meaning="hpctrain, or the system whose log was read"),
    RunColumn("model", "Model"),
    RunColumn("hardware", "Hardware"),
    RunColumn("gpus", "GPUs", "count", meaning="planned ranks; on the CPU a rank stands for a GPU"),
    RunColumn("nodes", "Nodes", "count"),
    RunColumn("state", "State", meaning="of the last attempt"),
    RunColumn("num_recorded_steps", "Steps", "count", meaning="different steps on the curve"),
    RunColumn("step_time_s", "Step time", "number", "s", "median of the steady steps"),
    RunColumn("tokens_per_s", "Tokens/s", "count", meaning="tokens of a step over the median step time"),
    RunColumn("tokens_per_s_per_gpu", "Tokens/s/GPU", "count", meaning="the same over the measured world size", screen_only=True),
    RunColumn("model_tflops_per_gpu", "Model TFLOP/s/GPU", "number", meaning=FLOP_CONVENTIONS["model"]),
    RunColumn("mfu", "MFU", "share", "%", "model FLOP/s over the dense peak"),
    RunColumn("hfu", "HFU", "share", "%", "hardware FLOP/s over the dense peak", screen_only=True),
    RunColumn("peak_memory_bytes", "Peak memory", "bytes", "GiB", "of rank 0"),
    RunColumn("final_loss", "Loss", "number", meaning="nats per token, last step on the curve"),
    RunColumn("validation_loss", "Validation loss", "number", meaning="nats per token, on held-out data", extra=True),
    RunColumn(
        "wall_tokens_per_s", "Wall tokens/s", "count",
        meaning="tokens of the curve over the wall-clock time of all attempts: set-up, saving and lost work counted",
    ),
    RunColumn("lost_time_share", "Lost time", "share", "%", "wall-clock time not spent in steps of the curve"),
    RunColumn(
        "hardware_tflops_per_gpu", "Hardware TFLOP/s/GPU", "number", meaning=FLOP_CONVENTIONS["hardware"], screen_only=True,
    ),
    RunColumn(
        "megatron_tflops_per_gpu", "Megatron TFLOP/s/GPU", "number", meaning=FLOP_CONVENTIONS["megatron"], screen_only=True,
    ),
    RunColumn("gpu_hours", "GPU-hours", "number", meaning="all attempts, undone steps included", screen_only=True),
    RunColumn("num_attempts", "Attempts", "count", screen_only=True),
    RunColumn("parallelism", "Parallel"),
    RunColumn("precision", "Precision"),
    RunColumn("micro_batch_size", "Micro batch", "count", meaning="sequences of one rank in a forward"),
    RunColumn("global_batch_size", "Global batch", "count", meaning="sequences of an optimizer step"),
    RunColumn("seq_len", "Sequence", "count", "tokens"),
    RunColumn("printed_tflops_per_gpu", "Printed TFLOP/s/GPU", "number", meaning="as the log itself says", screen_only=True),
    RunColumn("printed_convention", "Printed by", meaning="FLOP count of the printed rate", extra=True),
    RunColumn("achievable_tflops_per_gpu", "Achievable TFLOP/s/GPU", "number", meaning="best measured product", extra=True),
    RunColumn("prediction_error", "Error of the plan", "share", "%", "predicted / measured step time - 1", extra=True),
    RunColumn("in_predicted_range", "In the plan's range", "flag", meaning="the measured step time", extra=True),
    RunColumn("memory_error", "Memory error of the plan", "share", "%", "predicted / measured peak - 1", extra=True),
    RunColumn("num_parameters", "Parameters", "number", "B", "1e9 parameters", extra=True),
    RunColumn("activation_checkpointing", "Checkpointing", meaning="of activations", extra=True),
    RunColumn("gradient_accumulation_steps", "Accumulation", "count", extra=True),
    RunColumn("step_time_low_s", "Step time, low", "number", "s", "95 % interval of the median", extra=True),
    RunColumn("step_time_high_s", "Step time, high", "number", "s", "95 % interval of the median", extra=True),
    RunColumn("data_time_s", "Data wait", "number", "s", "median of the steady steps", extra=True),
    RunColumn("forward_time_s", "Forward", "number", "s", "rank 0, median of the steady steps", extra=True),
    RunColumn("backward_time_s", "Backward", "number", "s", "with recomputation and reduction of gradients", extra=True),
    RunColumn("optimizer_time_s", "Optimizer", "number", "s", "norm, clipping, update", extra=True),
    RunColumn("num_outlier_steps", "Outlier steps", "count", extra=True),
    RunColumn("num_rejected_steps", "Rejected steps", "count", meaning="faster than the hardware's peak", extra=True),
    RunColumn("dead_share", "Dead steps", "share", "%", "skipped, NaN or without a loss", extra=True),
    RunColumn("peak_tflops_per_gpu", "Peak TFLOP/s/GPU", "number", meaning="dense, of the data type", extra=True),
    RunColumn("predicted_step_time_s", "Step time, plan", "number", "s", "predicted", extra=True),
    RunColumn("predicted_step_time_low_s", "Step time, plan, low", "number", "s", "the plan's own range", extra=True),
    RunColumn("predicted_step_time_high_s", "Step time, plan, high", "number", "s", "the plan's own range", extra=True),
    RunColumn("prediction_gap", "No predicted step time", meaning="why", extra=True),
    RunColumn("calibration", "Calibration of the plan", meaning="factors in its step time, and their runs", extra=True),
    RunColumn("predicted_memory_bytes", "Memory, plan", "bytes", "GiB", "predicted for one rank", extra=True),
    RunColumn("predicted_host_bytes", "Host memory, plan", "bytes", "GiB", "predicted for a node's ranks together", extra=True),
    RunColumn("memory_capacity_bytes", "GPU memory", "bytes", "GiB", "capacity of one GPU", extra=True),
    RunColumn("valid", "Valid", "flag", meaning="the speeds may be compared", extra=True),
    RunColumn("reason", "Reason", meaning="why the speeds may not be compared", extra=True),
)  # fmt: skip
"""In the page's order: what a run was, what came out, how it was set up."""


def all_columns(runs: pd.DataFrame) -> list[RunColumn]:
    """Every column of the frame: the described ones first, then the others under their own names."""
    described = [column for column in RUN_COLUMNS if column.key in runs]
    known = {column.key for column in described}
    return described + [
        RunColumn(key, key, _kind_of(runs[key].dtype), extra=True) for key in runs.columns if key not in known
    ]


def _kind_of(dtype: Any) -> Kind:
    if pd.api.types.is_bool_dtype(dtype):
        return "flag"
    return "number" if pd.api.types.is_numeric_dtype(dtype) else "text"


def cell_number(value: Any, column: RunColumn) -> float | None:
    """The value in the column's unit; None for text and for what is missing or not finite.

    >>> cell_number(3 * 2**30, RunColumn("peak_memory_bytes", "Peak memory", "bytes", "GiB"))
    3.0
    """
    if column.kind in ("text", "flag") or value is None or value is pd.NA or not math.isfinite(value):
        return None
    scale = {"bytes": 1 / GIB, "share": 100.0}.get(column.kind, 1e-9 if column.unit == "B" else 1.0)
    return float(value) * scale


def cell_text(value: Any, column: RunColumn) -> str:
    """The value as people read it, without the unit.

    >>> cell_text(0.1234, RunColumn("mfu", "MFU", "share", "%")), cell_text(None, RunColumn("mfu", "MFU", "share", "%"))
    ('12.3', '-')
    """
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if column.kind == "flag":
        return "yes" if value else "no"
    number = cell_number(value, column)
    if number is None:
        return str(value)
    if column.kind == "count":
        return f"{number:,.0f}"
    return f"{number:.1f}" if column.kind == "share" else f"{number:,.4g}"
