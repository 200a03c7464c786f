"""What a log format gets (lines) and what it gives (events); the names and units of all fields.

A format is a small class in a module of its own. It sees only the lines that hold one of its markers, in the order of the file,
and gives events; it never guesses what is not written. What belongs together across formats (one step in two wordings, copies
of one step by several ranks, restarts) is joined afterwards in ``reading``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Value = float | int | str | bool | None
"""None: the log has the key and no usable value (NaN, a placeholder, a rounded zero); it never becomes 0."""

FactKind = Literal[
    "setting",  # a value that holds for all records that follow: world_size, seq_len, tp, pp, micro_batch_size, nodes, ...
    "segment",  # another run or another attempt begins here; its fields are settings of it
    "validation",  # iteration, lm_loss, ppl, train_loss, val_loss: never a training record
    "checkpoint_saved",  # iteration
    "checkpoint_loaded",  # iteration
    "overflow",  # loss_scale_before, loss_scale_after: the optimizer skipped a step
    "engine_step",  # DeepSpeed's own line: iteration, skipped_total, learning_rate
    "engine_speed",  # DeepSpeed's timer: samples_per_s_running_avg, ds_curr_samples_per_s, mem_allocated_gb, ...
    "timers",  # name of a timer: milliseconds; belongs to the record before it
    "of_last",  # fields of the record before it, in a line of their own
    "microstep",  # forward_ms, backward_ms, ...: not an optimizer step
    "comm_row",  # a row of a table of collectives
    "profile",  # a flops profiler's header
    "bar",  # a progress bar that carries a metric: step, total, time_per_step_s, loss
    "final",  # the result of a whole run: train_runtime_s, ...
    "preemption",  # the scheduler took the job away
    "requeue",
    "watchdog",  # time_s: the job lives, nothing is said of progress
    "restart",  # another attempt of the run begins here
    "end",  # reason (see END_REASONS), end_time, slurm_job_id, slurm_step
    "trait",  # name: how the file is written (see TRAITS); given once or often, counted once
]
END_REASONS = ("COMPLETED", "TIMEOUT", "OOM", "CRASH", "CANCELLED", "NODE_FAIL")

TRAITS = (
    "ansi",  # escape sequences
    "carriage_return",  # inside lines
    "damaged_lines",  # NUL bytes, or a line too long to keep
    "duplicate_ranks",  # several processes print the same step
    "glued_lines",  # two messages in one line
    "interleaved_noise",  # most lines between the records are of something else
    "multi_line_record",
    "multiple_formats_same_step",
    "non_utf8",
    "numbers_as_strings",
    "orphan_fragment",  # the rest of a record whose start is lost, in the middle of the file
    "process_label",  # of any launcher
    "scientific_notation",
    "si_suffix",  # 14.2K
    "srun_label",
    "thousands_separator",
    "time_unit_seconds",  # where the family's usual unit is the millisecond
    "torchrun_label",
    "truncated_first_line",
    "truncated_last_line",
    "truncated_last_record",
    "wrapped_lines",
)
"""How a file is written; names are those of conditions."""


@dataclass(frozen=True, slots=True)
class Line:
    """One piece of text between line ends or carriage returns."""

    number: int
    """Of the physical line, from 1."""
    text: str
    """Without process label, escape sequences and line end."""
    label: str = ""
    """The process label that stood before it, without its signs: ``default7``, ``rank0``, ``12``."""
    whole: bool = True
    """False: the file ends in this line, it may be cut off anywhere."""


class AlikeLines(NamedTuple):
    """Whole lines that follow one another among those that a format sees, all of shapes that it knows."""

    numbers: npt.NDArray[np.int64]
    """Of the physical lines."""
    label: str
    """The process label of all of them."""
    groups: Sequence[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint8]]]
    """Lines that differ in digits only: places in ``numbers``, and texts in ASCII of shape (lines, characters)."""


class AlikeTaker(Protocol):
    """Who takes many lines at once."""

    def knows(self, shape: bytes) -> bool:
        """True if lines with this text, a 0 for every digit, may be taken together with the line that was read last."""
        ...

    def take(self, lines: AlikeLines) -> bool:
        """Take all of them; False: none is taken, they are to come one by one."""
        ...


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A training record; ``fields`` by the names of ``FIELDS``."""

    line_number: int
    fields: Mapping[str, Value]
    redrawn: bool = False
    """A bar is drawn again at the same step: what it shows now replaces what it showed."""


@dataclass(frozen=True, slots=True)
class IncompleteEvent:
    """What is left of a cut-off record: told, and never part of a mean."""

    line_number: int
    fields: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class FactEvent:
    """Anything else that a record or a condition may need."""

    line_number: int
    kind: FactKind
    fields: Mapping[str, object] = field(default_factory=dict)


Event = StepEvent | IncompleteEvent | FactEvent


class LogFormat(Protocol):
    """One way of writing training logs; one instance reads one file."""

    @property
    def system(self) -> str:
        """Name of the project that writes it: ``megatron-lm``, ``torchtitan``, ...; a family may learn it while it reads."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Plain texts; a line without any of them is not shown to the format. Rare in other lines, so that reading is fast."""
        ...

    @property
    def tflops_convention(self) -> str:
        """What its printed TFLOP/s count: ``model``, ``hardware``, ``megatron`` or ``unknown`` (see ``plan/flops``)."""
        ...

    @property
    def wants_next(self) -> bool:
        """True after ``read``: the next line belongs to the same record, whatever stands in it (wrapped lines, blocks)."""
        ...

    def read(self, line: Line) -> Iterable[Event]:
        """The events of one line; a line that is none of its own gives nothing."""
        ...

    def end(self) -> Iterable[Event]:
        """What is still open at the end of the file."""
        ...


FIELDS: dict[str, str] = {
    "iteration": "optimizer step, as printed",
    "total_iterations": "planned",
    "epoch": "fraction of passes over the data",
    "segment": "runs inside the file, from 0",
    "attempt": "starts of one run inside the file, from 0",
    "timestamp": "text, ISO 8601, as printed",
    "rank_label": "the process label of the line",
    "time_per_iteration_s": "seconds",
    "samples_per_s": "whole job",
    "samples_per_s_printed": "as printed, where it contradicts batch / time",
    "samples_per_s_running_avg": "average since the start",
    "ds_curr_samples_per_s": "DeepSpeed's CurrSamplesPerSec",
    "ds_skipped_total": "DeepSpeed's running total",
    "skipped_total": "running total",
    "tokens_per_s": "whole job",
    "tokens_per_s_per_gpu": "",
    "batches_per_s": "",
    "tflops_per_gpu": "1e12 FLOP/s, in the format's convention",
    "hardware_tflops_per_gpu": "1e12 FLOP/s, recomputation counted",
    "mfu_percent": "",
    "consumed_samples": "",
    "consumed_tokens": "",
    "global_batch_size": "sequences a step",
    "micro_batch_size": "sequences",
    "seq_len": "tokens",
    "learning_rate": "",
    "loss": "nats per token",
    "loss_is_nan": "NaN stood in the log",
    "perplexity": "",
    "load_balancing_loss": "",
    "mtp_1_loss": "",
    "loss_scale": "",
    "loss_nats_per_token": "nats per token, where ``loss`` is printed in bits",
    "perplexity_is_nan": "NaN stood in the log",
    "loss_tokens": "tokens that the loss was taken over",
    "grad_norm": "",
    "grad_norm_is_nan": "NaN stood in the log",
    "num_zeros": "gradient elements that are zero",
    "skipped_iterations": "since the last record",
    "nan_iterations": "since the last record",
    "overflow_line_before": "an overflow line belongs to this record",
    "global_step": "optimizer step over all epochs",
    "global_step_rounded": "as a progress bar shows it, digits lost",
    "consumed_samples_rounded": "as a progress bar shows it, digits lost",
    "global_batch_tokens": "tokens a step",
    "total_tokens": "planned",
    "time_per_iteration_running_avg_s": "seconds, average since the start",
    "mem_gib": "GiB",
    "mem_reserved_gb": "as printed",
    "max_mem_reserved_gb": "as printed",
    "mem_percent": "of the device",
    "mem_allocated_gb": "as printed",
    "max_mem_allocated_gb": "as printed",
    "peak_mem_mb": "as printed",
    "tp": "degree",
    "pp": "degree",
    "nodes": "",
    "rank": "",
    "data_rank": "",
    "pipe_rank": "",
    "tensor_rank": "",
}
"""Fields of a record and their units; what a unit suffix says is not repeated. Tests hold that no sample gives others."""
