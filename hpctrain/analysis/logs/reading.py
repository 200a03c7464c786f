"""Reads one log file of another system: detects the format, joins what its lines say, keeps little in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.analysis.logs.deepspeed_engine import DeepspeedEngineFormat
from hpctrain.analysis.logs.deepspeed_tables import DeepspeedTablesFormat
from hpctrain.analysis.logs.events import AlikeLines, AlikeTaker, Event, FactEvent, FactKind, Line, LogFormat, StepEvent
from hpctrain.analysis.logs.formats import FORMATS, KNOWN_SYSTEMS
from hpctrain.analysis.logs.lines import LineScanner
from hpctrain.analysis.logs.log_reading import LogReading
from hpctrain.analysis.logs.megatron import MegatronFormat
from hpctrain.analysis.logs.record_table import RecordTable
from hpctrain.analysis.logs.scheduler import SchedulerFormat
from hpctrain.analysis.logs.step_joiner import StepJoiner, put_checked_rate
from hpctrain.errors import RecordError

__all__ = ["LogReading", "read_log"]

_TELLING_KINDS: frozenset[FactKind] = frozenset(
    (
        "bar",
        "final",
        "comm_row",
        "profile",
        "microstep",
        "engine_step",
        "engine_speed",
        "overflow",
        "validation",
        "watchdog",
        "end",
    )
)
"""Facts that make a file a training log even without a record; settings and topologies stand in any README."""
_KEPT_APART: frozenset[FactKind] = frozenset(("engine_step", "engine_speed", "of_last", "segment", "restart", "trait"))
_BENEATH: Mapping[type[LogFormat], int] = {
    SchedulerFormat: 0,
    DeepspeedTablesFormat: 2,
    DeepspeedEngineFormat: 2,
}
"""Formats that name the system only where no trainer does; the lower, the later."""
_NOISE_RATIO = 2
"""Lines in all over lines that a format looked at: from here on most of them are noise."""
_NUM_LOOKED_AT = 200
"""Lines of each format whose spelling of numbers is looked at."""
_SPELLINGS = {
    "thousands_separator": re.compile(r"(?<!\d)[:=]\s*\d{1,3}(?:,\d{3})+(?![\d,])"),
    "si_suffix": re.compile(r":\s*\d+(?:\.\d+)?[KMGBT](?=\s|\||$)"),
    "scientific_notation": re.compile(r"=\d+(?:\.\d+)?e[+-]?\d+"),
}
_GLUED_BAR = re.compile(r"(?:it/s|s/it)[^\]]*\](?!\s*\d+%\|)\s*[^\s\]]")


def read_log(path: Path) -> LogReading:
    """Everything that one log file says; memory grows with the number of records only, about 200 bytes each.

    Raises:
        RecordError: The path is a directory or cannot be read, the file is empty or holds no line of a known system.
    """
    try:
        if path.is_dir():
            raise RecordError(f"{path}: is a directory; expected a log file")
        if path.exists() and not path.is_file():
            raise RecordError(f"{path}: is no regular file; expected a log file")
        if path.stat().st_size == 0:
            raise RecordError(f"{path}: is empty (0 bytes); expected the log of a training")
        reader = _Reader(path)
        reader.read()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    return reader.result()


class _Reader:
    """The state of reading one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.formats: list[LogFormat] = [make() for make in FORMATS]
        self.scanner = LineScanner(path, [log_format.markers for log_format in self.formats])
        self.steps = StepJoiner()
        self.engine = StepJoiner()
        self.facts: dict[FactKind, RecordTable] = {}
        self.incomplete = RecordTable()
        self.settings: dict[str, object] = {}
        self.traits: set[str] = set()
        self.num_telling_of = [0] * len(self.formats)
        self.num_plain_bars_of = [0] * len(self.formats)
        self.num_looked_at = [0] * len(self.formats)
        self.spellings_of: list[set[str]] = [set() for _ in self.formats]
        self.num_unreadable = 0
        self._waiting: list[int] = []
        self._num_lines_shown = 0
        self._num_shown_at_last_record = 0

    def read(self) -> None:
        """Show each line to the formats that want it."""
        scanner, formats = self.scanner, self.formats
        for line, wanted in scanner:
            places = wanted if not self._waiting else sorted({*wanted, *self._waiting})
            self._num_lines_shown += 1
            if ("it/s" in line.text or "s/it" in line.text) and _GLUED_BAR.search(line.text):
                self.traits.add("glued_lines")
            for place in places:
                try:
                    self._take(place, line, formats[place].read(line))
                except (ValueError, OverflowError):
                    # Damage that still has the form of a number: digits of other scripts, a time of 99 o'clock.
                    self.num_unreadable += 1
                if self.num_looked_at[place] < _NUM_LOOKED_AT:
                    self._look_at_spelling(place, line.text)
            if self._waiting or any(formats[place].wants_next for place in places):
                self._waiting = [place for place in places if formats[place].wants_next]
            scanner.follow = bool(self._waiting)
            scanner.alike_taker = self._alike_taker(places)
        if scanner.is_cut and not self._waiting:
            self.traits.add("truncated_last_line")
        end = Line(scanner.num_lines, "", whole=False)
        for place, log_format in enumerate(formats):
            self._take(place, end, log_format.end())
        self.steps.finish()

    def _alike_taker(self, places: Sequence[int]) -> AlikeTaker | None:
        """What takes lines like the last one; None if they need a look of their own.

        Only Megatron's records, which may be all lines of a file, whose shape and spelling are known and which nobody else wants.
        """
        if len(places) != 1 or self.num_looked_at[places[0]] < _NUM_LOOKED_AT:
            return None
        log_format = self.formats[places[0]]
        if not isinstance(log_format, MegatronFormat) or not log_format.reads_alike:
            return None
        return _MegatronTaker(self, places[0], log_format)

    def take_alike(self, place: int, log_format: MegatronFormat, lines: AlikeLines) -> bool:
        """Take records by column; False: the lines are to come one by one."""
        columns = log_format.read_alike(lines)
        if columns is None or not self.steps.add_steps(place, lines.numbers, lines.label, columns):
            return False
        self._num_lines_shown += len(lines.numbers)
        self._num_shown_at_last_record = self._num_lines_shown
        return True

    def _look_at_spelling(self, place: int, text: str) -> None:
        """How numbers are spelled, in the first lines of a format."""
        self.num_looked_at[place] += 1
        for name, pattern in _SPELLINGS.items():
            if pattern.search(text):
                self.spellings_of[place].add(name)

    def _take(self, place: int, line: Line, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, FactEvent):
                self._take_fact(place, event)
                continue
            # Megatron's records stand in one line, even where a terminal wrapped it.
            is_block = event.line_number < line.number and not isinstance(self.formats[place], MegatronFormat)
            if isinstance(event, StepEvent) and (line.whole or is_block or not self.scanner.is_cut):
                if is_block:
                    self.traits.add("multi_line_record")
                if not event.redrawn or not self.steps.redraw(event.fields):
                    self.steps.add_step(place, event.line_number, line.label, event.fields)
                self._num_shown_at_last_record = self._num_lines_shown
            else:
                self.num_telling_of[place] += 1
                if not self.steps.is_told(event.fields):  # Another rank told all of it.
                    row: dict[str, object] = dict(event.fields)
                    put_checked_rate(row, event.fields)
                    self.incomplete.append(event.line_number, row)
                if not line.whole:
                    self.traits.add("truncated_last_record" if is_block else "truncated_last_line")

    def _take_fact(self, place: int, event: FactEvent) -> None:
        kind, fields = event.kind, event.fields
        if kind in _TELLING_KINDS and _tells(kind, fields):
            self.num_telling_of[place] += 1
            self.num_plain_bars_of[place] += kind == "bar" and "loss" not in fields
        if kind in ("engine_step", "engine_speed"):
            if fields.get("iteration") == 0:
                return  # Of an engine that is being built.
            self.steps.add_engine(fields)
            self.engine.add_step(0 if kind == "engine_step" else 1, event.line_number, "", dict(fields))  # type: ignore[arg-type]
        elif kind == "trait":
            self.traits.add(str(fields["name"]))
        elif kind == "segment":
            self.settings = dict(fields)
            self.steps.begin_segment(fields)
            self.engine.begin_segment(fields)
        elif kind in ("restart", "checkpoint_loaded", "requeue", "preemption"):
            self.steps.begin_attempt()
            self.engine.begin_attempt()
        elif kind == "overflow":
            self.steps.add_overflow()
        elif kind == "of_last":
            self.steps.add_to_last(fields)
        elif kind == "setting":
            self.settings.update(fields)
        if kind not in _KEPT_APART:
            self._keep(kind, event)

    def _keep(self, kind: FactKind, event: FactEvent) -> None:
        table = self.facts.setdefault(kind, RecordTable())
        row = dict(event.fields)
        if kind == "timers":
            if not len(self.steps.records):
                return
            row = {"iteration": self.steps.last_iteration, **row}
        if kind in ("validation", "checkpoint_loaded") and len(table) and table[-1] == row:
            return  # Other ranks say the same.
        table.append(event.line_number, row)

    def result(self) -> LogReading:
        """The reading, once all lines are read."""
        records, place, engine_only = self.steps.records, self._main_format(), False
        beneath = type(self.formats[place]) in _BENEATH
        if not len(records) and len(self.engine.records) and beneath and not self._bars_with_loss():
            records, engine_only = self.engine.records, True
            records.fill("loss", None)
        main = self.formats[place]
        joiner = self.engine if engine_only else self.steps
        traits = self.traits | self.scanner.traits | self.spellings_of[place]
        if joiner.copies_per_step > 1:
            traits.add("duplicate_ranks")
        if any(value > 1 for value in self.facts.get("final", RecordTable()).numbers("copies_of_final_dict")):
            traits.add("duplicate_ranks")
        if joiner.formats_per_step > 1 and not engine_only:
            traits.add("multiple_formats_same_step")
        if self._mostly_noise():
            traits.add("interleaved_noise")
        return LogReading(
            file=str(self.path),
            system=main.system,
            format=self._description(main, records),
            encoding=self.scanner.encoding,
            records=records,
            incomplete_records=self.incomplete,
            facts=self.facts,
            engine=self.engine.records,
            traits=frozenset(traits),
            copies_per_step=joiner.copies_per_step,
            formats_per_step=joiner.formats_per_step,
            tflops_convention=main.tflops_convention,
            damaged_lines=self.scanner.damaged_lines + self.num_unreadable,
            num_lines=self.scanner.num_lines,
            settings=self.settings,
        )

    def _main_format(self) -> int:
        """The format that tells of most steps; without any, the one that tells most else."""
        steps = self.steps.num_steps_of
        places = range(len(self.formats))
        if steps:
            return max(places, key=lambda place: (steps.get(place, 0), -place))
        best = max(places, key=self._told_by)
        if not self.num_telling_of[best]:
            raise RecordError(
                f"{self.path}: {self.scanner.num_lines} lines, none of a known system; known: {', '.join(KNOWN_SYSTEMS)}"
            )
        return best

    def _told_by(self, place: int) -> tuple[int, int, int]:
        """How much a format tells of the trainer.

        DeepSpeed's engine works beneath a trainer, anybody's loop draws a bar without a loss, and any job ends.
        """
        told, plain_bars = self.num_telling_of[place], self.num_plain_bars_of[place]
        nearness = _BENEATH.get(type(self.formats[place]), 3 if told > plain_bars else 1)
        return nearness if told else -1, told, -place

    def _bars_with_loss(self) -> bool:
        """Bars with a loss are the records of trainers that print nothing else."""
        return "loss" in self.facts.get("bar", RecordTable()).names

    def _mostly_noise(self) -> bool:
        """True if most of the lines between the first and the last record say nothing to any format."""
        if len(self.steps.records) < 2:
            return False
        lines = self.steps.records.line_numbers
        return lines[-1] - lines[0] > _NOISE_RATIO * self._num_shown_at_last_record

    def _description(self, main: LogFormat, records: RecordTable) -> str:
        names = [name for name in records.names if name not in ("segment", "attempt", "rank_label")]
        wording = type(main).__name__.removesuffix("Format").lower()
        return f"{wording}: {', '.join(names)}" if names else wording


def _tells(kind: FactKind, fields: Mapping[str, object]) -> bool:
    """Not an empty bar, nor a skipped step in the words of any loss scaler."""
    if kind == "bar":
        return bool(fields.get("step"))
    return kind != "overflow" or fields.get("loss_scale_before") is not None


@dataclass(slots=True)
class _MegatronTaker:
    """Takes many records at once."""

    reader: _Reader
    place: int
    log_format: MegatronFormat

    def knows(self, shape: bytes) -> bool:
        return self.log_format.knows(shape)

    def take(self, lines: AlikeLines) -> bool:
        return self.reader.take_alike(self.place, self.log_format, lines)
