"""What is read from one log file of another system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpctrain.analysis.logs.events import FactKind
from hpctrain.analysis.logs.record_table import RecordTable


@dataclass(frozen=True, slots=True)
class LogReading:
    """One file: its training records, and everything else that its lines say.

    Rows of tables are dictionaries in the order of the file; ``table.line_numbers[i]`` is the line of row i,
    ``table.column(name)`` a column, ``table.numbers(name)`` the same as floats with NaN for what is missing.
    """

    file: str
    system: str
    """Name of the project that wrote most of the records: ``megatron-lm``, ``bigscience``, ``torchtitan``, ..."""
    format: str
    """The same for people, with what distinguishes this generation."""
    encoding: str
    records: RecordTable
    """One row an optimizer step and attempt, by the names of ``FIELDS``; always with ``segment`` and ``attempt``."""
    incomplete_records: Sequence[dict[str, object]]
    """What is left of cut-off records."""
    facts: Mapping[FactKind, RecordTable]
    """By kind; a kind without any fact is an empty table. ``timers`` rows carry the ``iteration`` that they belong to;
    ``engine`` below joins ``engine_step`` and ``engine_speed``, which are not kept here."""
    engine: RecordTable
    """DeepSpeed's own lines, joined by iteration: ``iteration, skipped_total, learning_rate, ds_curr_samples_per_s, ...``."""
    traits: frozenset[str]
    """How the file is written, names of ``TRAITS``."""
    copies_per_step: int
    """Most lines that told of one step in one wording: 7 where seven ranks print."""
    formats_per_step: int
    """Most wordings of one step: 3 where engine, pipeline and trainer each print it."""
    tflops_convention: str
    """What the printed TFLOP/s count: ``model``, ``hardware``, ``megatron`` or ``unknown``."""
    damaged_lines: int
    num_lines: int
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the last run in the file: ``world_size``, ``seq_len``, ``tp``, ``pp``, ``micro_batch_size``, ``nodes``, ..."""

    def fact_rows(self, kind: FactKind) -> RecordTable:
        """The facts of one kind; an empty table if there are none."""
        return self.facts.get(kind) or RecordTable()
