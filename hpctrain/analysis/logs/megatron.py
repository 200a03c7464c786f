"""Megatron's iteration line in all its generations and forks, wrapped, glued or cut, and the lines around it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hpctrain.analysis.logs.events import AlikeLines, Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.line_plan import (
    LinePlan,
    LinePlans,
    Place,
    Reader,
    float_or_none,
    number_reader,
    seconds_of_ms,
)
from hpctrain.analysis.logs.megatron_facts import FACT_MARKERS, MegatronFacts
from hpctrain.analysis.logs.megatron_fields import (
    SAMPLES_PER_SEC,
    TFLOPS,
    TIME_WITH_UNIT,
    Key,
    begins_a_key,
    find_key,
    is_number,
    put_value,
    split_part,
)
from hpctrain.analysis.logs.megatron_system import SystemEvidence
from hpctrain.analysis.logs.record_table import Column

_WORD = r"iteration(?<!, iteration)(?<![\w-]iteration)(?:=\s*|\s+)"
"""What must not stand before the word is asked behind it: a pattern that begins with plain letters is found ten times faster."""
_HEAD = re.compile(rf"{_WORD}(\d{{1,15}})\s*/\s*(\d{{1,15}})\s*\|")
"""Not «epoch 0, iteration 5/9 |» of NeMo, nor nanotron's «iteration: 5 / 9 |»."""
_CUT_HEAD = re.compile(rf"{_WORD}(\d{{1,15}})\s*/\s*\d*\s*$")
_RATE_BEFORE = re.compile(r"samples/sec:\s*([\d.]+|nan|inf)\s*\|\s*$")
_TIME_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)|\[(\d{4})(\d\d)(\d\d) (\d\d:\d\d:\d\d)\]")
_STEP_TIME = re.compile(
    r"Step Time\s*:\s*([\d.]+)\s*(ms|s)\b[^|]*?GPU utilization\s*:\s*([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU"
)
_ONLY_LABEL = re.compile(r"\[[A-Za-z][\w.-]*\]:?")
"""Of the record that follows in the same line."""
_TIMERS_2021 = frozenset({"forward-recv", "backward-send-forward-recv", "backward-params-all-reduce"})
_ORPHAN = re.compile(r"(?:number of (?:skipped|nan) iterations|samples per second):\s+[\d.]+ \|")
_ORPHAN_WORDS = ("number of ", "samples per second:")
_OWN_PARTS = re.compile(r"(?:\s*[A-Za-z][\w /().-]*[:=][^|]*\|)+")
"""Parts that a fork added to the end, whose values are no numbers: ``ETA: 1:02:03 |``."""
_LAST_KEYS = frozenset({"numberofskippediterations", "numberofnaniterations"})
"""Since 2020 the line ends in them, or in rates behind them."""
_MEGATRON_KEYS = frozenset(
    {"consumedsamples", "elapsedtimeperiteration(ms)", "elapsedtimeperiteration(s)", *_LAST_KEYS}
)
_SECONDS_KEYS = frozenset({"elapsedtimeperiteration(s)", "timeperiteration(s)", "elapsedtimeperiterationins"})
_AFTER_THE_LOSS = frozenset({"lossscale", "gradnorm", "numzeros", *_LAST_KEYS})
MAX_FOREIGN_LINES = 3
"""So many lines of other processes may stand between two pieces of a wrapped line."""
MAX_PIECES = 40
"""Of one wrapped line."""


@dataclass(slots=True)
class _Record:
    """One iteration line, as far as it has been read."""

    line_number: int
    label: str
    head: dict[str, Value]
    """What stands in front of the first bar."""
    body: str
    """The text behind it; pieces of a wrapped line are joined by line ends."""
    whole: bool
    fields: dict[str, Value] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Squeezed keys."""
    last_key: str = ""
    damaged: bool = False
    """A known key has no value of its kind."""
    rest: str = ""
    """What stands behind the last part that is ``key: value |``."""
    num_pieces: int = 1
    num_foreign_lines: int = 0
    places: list[Place] | None = None
    """Of the fields in the body; None where a value is not simply a number."""


class MegatronFormat:
    """Megatron-LM, Megatron-DeepSpeed, BigScience, GPT-NeoX, Megatron-Bridge, Primus and what else prints their line.

    Source: see ``megatron_fields``; wrapping and cutting as in bigscience train/tr11-176B-ml/chronicles.md,
    NVIDIA-NeMo/Megatron-Bridge#841, epfLLM/Megatron-LLM#11, #33.
    """

    markers = (
        "iteration ",
        "iteration= ",
        "Step Time",
        "number of nan",
        "samples per second: ",
        *FACT_MARKERS,
        *SystemEvidence.MARKERS,
    )

    def __init__(self) -> None:
        """For one file."""
        self.system = "megatron-lm"
        self.tflops_convention = "model"
        self.wants_next = False
        self._evidence = SystemEvidence()
        self._facts = MegatronFacts()
        self._keys: dict[str, Key | None] = {}
        self._open: _Record | None = None
        self._last_key = ""
        self._told_unit = False
        self._plans = LinePlans()

    def read(self, line: Line) -> Iterable[Event]:
        """The events of one line; a record is given when it is certain that nothing of it follows."""
        if self._open is not None or self._facts.wants_next or not line.whole:
            self._plans.last = None
            return self._read(line)
        fields = self._plans.fields(line.text)
        if fields is None:
            return self._read(line)
        if line.label:
            fields["rank_label"] = line.label
        return (StepEvent(line.number, fields),)

    @property
    def reads_alike(self) -> bool:
        """The last line was a record by itself, of a known shape: ``read_alike`` may read those after it."""
        return self._plans.last is not None

    def knows(self, shape: bytes) -> bool:
        """True if lines with this text, a 0 for every digit, have the fields of the last line."""
        return self._plans.knows(shape)

    def read_alike(self, lines: AlikeLines) -> dict[str, Column] | None:
        """The fields of the records in lines of known shapes; None: they are to be read one by one."""
        columns = self._plans.columns(lines)
        if columns is not None and lines.label:
            columns["rank_label"] = lines.label
        return columns

    def _read(self, line: Line) -> Iterator[Event]:
        if self._open is not None:
            if self._continues(self._open, line):
                yield from self._add_piece(self._open, line)
                self.wants_next = self._open is not None or self._facts.wants_next
                return
            foreign = _is_of_another(line.label, self._open.label)
            self._open.num_foreign_lines += 1
            if not foreign or self._open.num_foreign_lines > MAX_FOREIGN_LINES or _HEAD.search(line.text):
                yield from self._conclude(self._open)
        heads = list(_HEAD.finditer(line.text)) if "iteration" in line.text else []
        if heads:
            yield from self._facts.close(line.number)
            yield from self._records(line, heads)
        else:
            yield from self._other(line)
        self.wants_next = self._open is not None or self._facts.wants_next

    def end(self) -> Iterator[Event]:
        """A record whose end never came."""
        if self._open is not None:
            yield from self._conclude(self._open)
        yield from self._facts.close(0)
        self.system, self.tflops_convention = self._evidence.conclude()

    def _records(self, line: Line, heads: list[re.Match[str]]) -> Iterator[Event]:
        """One line may hold several records, and other text before and after each."""
        text = line.text
        if "Step Time" in text[: heads[0].start()]:
            yield from self._other(Line(line.number, text[: heads[0].start()], line.label))
        for place, head in enumerate(heads):
            last = place + 1 == len(heads)
            body = text[head.end() : None if last else heads[place + 1].start()]
            fields: dict[str, Value] = {"iteration": int(head[1]), "total_iterations": int(head[2])}
            self._read_before(text[heads[place - 1].end() if place else 0 : head.start()], fields)
            record = _Record(line.number, line.label, fields, body, line.whole or not last)
            self._fill(record)
            if line.whole and len(heads) == 1:
                self._plan(text, head, record)
            yield from self._judge(record, is_last=last)
        if len(heads) > 1 or _is_message(text[: heads[0].start()]):
            yield FactEvent(line.number, "trait", {"name": "glued_lines"})

    def _plan(self, text: str, head: re.Match[str], record: _Record) -> None:
        """Note where the values stand, for other lines of the same shape; only for a line that is complete in itself."""
        complete = not record.rest.strip() and record.last_key == self._last_key != ""
        if not complete or record.places is None:
            return
        places = [Place("iteration", *head.span(1), int), Place("total_iterations", *head.span(2), int)]
        before = text[: head.start()]
        if rate := _RATE_BEFORE.search(before):
            places.append(Place("samples_per_s", *rate.span(1), float_or_none))
        stamps = [stamp for stamp in _TIME_STAMP.finditer(before) if stamp[1]]
        if stamps:
            places.append(Place("timestamp", *stamps[-1].span(1), str))
        if {place.field for place in places} != set(record.head) or "|" in _RATE_BEFORE.sub("", before):
            return
        start = head.end()
        places += [Place(place.field, start + place.start, start + place.end, place.read) for place in record.places]
        self._plans.add(text, LinePlan(places, {} if "loss" in record.fields else {"loss": None}))

    def _read_before(self, before: str, fields: dict[str, Value]) -> None:
        """What a generation prints in front of the word: a rate, a time stamp."""
        if not before or before.isspace():
            return
        if rate := _RATE_BEFORE.search(before):
            put_value(fields, SAMPLES_PER_SEC, rate[1])
            self._evidence.keys.add(SAMPLES_PER_SEC.squeezed)
        stamps = list(_TIME_STAMP.finditer(before))
        if stamps:
            stamp = stamps[-1]
            self._evidence.signs.add("stamp")
            fields["timestamp"] = stamp[1] or f"{stamp[2]}-{stamp[3]}-{stamp[4]} {stamp[5]}"

    def _fill(self, record: _Record) -> None:
        """Read ``key: value |`` after ``key: value |``; what follows the last of them is the rest."""
        fields, seen = dict(record.head), set[str]()
        parts = record.body.split("|")
        num_good = offset = 0
        foreign, wrapped = False, record.num_pieces > 1
        places: list[Place] | None = None if wrapped else []
        record.damaged = False
        for place, part in enumerate(parts[:-1]):
            part_start, offset = offset, offset + len(part) + 1
            name, sign, value = part.replace("\n", "").partition(":") if wrapped else part.partition(":")
            key = self._key(name) if sign else None
            if key is None:
                split = split_part(part)
                name, value = split or (part, "")
                key = self._key(name) if split else None
                if key is None:
                    # A metric of somebody's own stands among the others; behind other words it is another message's.
                    foreign = foreign or not is_number(value)
                    num_good = num_good if foreign else place + 1
                    continue
            if key.squeezed in seen:
                break  # Two lines that lost the end between them.
            if not put_value(fields, key, value):
                record.damaged = True
                break
            seen.add(key.squeezed)
            record.last_key = key.squeezed
            num_good, foreign = place + 1, False
            places = _with_place(places, key, part, value, part_start, fields)
            if "/" in value or "(avg" in value:
                self._evidence.signs.add("averages")
            if "-" in name:
                self._evidence.signs.add("hyphen")
        record.fields, record.seen = fields, seen
        record.rest = "|".join(parts[num_good:])
        record.places = places

    def _key(self, name: str) -> Key | None:
        try:
            return self._keys[name]
        except KeyError:
            if len(self._keys) > 1000:
                self._keys.clear()
            return self._keys.setdefault(name, find_key(name))

    def _judge(self, record: _Record, is_last: bool) -> Iterator[Event]:
        """Complete, cut off, or still open because the next line may belong to it."""
        rest = record.rest.strip()
        if self._last_key:
            ended = self._last_key in record.seen
        else:
            before_label = not is_last and _ONLY_LABEL.fullmatch(rest) is not None
            ended = record.last_key in _LAST_KEYS or (before_label and bool(record.seen & _LAST_KEYS))
        if rest and (record.damaged or not begins_a_key(rest)):
            yield from self._give(record, complete=ended)
            if ended and not _OWN_PARTS.fullmatch(rest):
                yield FactEvent(record.line_number, "trait", {"name": "glued_lines"})
                yield from self._other(Line(record.line_number, record.rest, record.label, record.whole))
        elif not rest and record.last_key == self._last_key != "":
            yield from self._give(record, complete=True)
        elif not record.whole:
            first_of_file = not self._last_key
            yield from self._give(record, complete=not rest and first_of_file and bool(record.seen & _LAST_KEYS))
        elif is_last:
            self._open = record
        else:
            yield from self._conclude(record)

    def _conclude(self, record: _Record) -> Iterator[Event]:
        """Nothing follows an open record: without an open part it is complete if it has what its generation ends in."""
        self._open = None
        counted = bool(record.seen & _LAST_KEYS)
        before_counters = not self._last_key and "time_per_iteration_s" in record.fields  # 2019
        yield from self._give(record, complete=not record.rest.strip() and (counted or before_counters))

    def _give(self, record: _Record, complete: bool) -> Iterator[Event]:
        self._evidence.keys |= record.seen
        if record.fields.get("num_zeros"):
            self._evidence.signs.add("zeros counted")
        if record.label:
            record.fields["rank_label"] = record.label
        if not complete:
            if not self._last_key and not record.seen & _MEGATRON_KEYS:
                return  # Somebody else's «iteration 5/10 |».
            if record.seen & _AFTER_THE_LOSS:
                record.fields.setdefault("loss", None)
            yield IncompleteEvent(record.line_number, record.fields)
            return
        self._last_key = record.last_key
        if not self._told_unit and record.seen & _SECONDS_KEYS:
            self._told_unit = True
            yield FactEvent(record.line_number, "trait", {"name": "time_unit_seconds"})
        record.fields.setdefault("loss", None)
        yield StepEvent(record.line_number, record.fields)

    def _continues(self, record: _Record, line: Line) -> bool:
        """True if the line goes on where the record stopped: its first part completes a known ``key: value``."""
        if _is_of_another(line.label, record.label) or _HEAD.search(line.text) or record.num_pieces >= MAX_PIECES:
            return False
        first, bar, _ = line.text.partition("|")
        joined = f"{record.rest}\n{first}"
        if not bar:
            return begins_a_key(joined)
        split = split_part(joined)
        return split is not None and find_key(split[0]) is not None and is_number(split[1])

    def _add_piece(self, record: _Record, line: Line) -> Iterator[Event]:
        if record.num_pieces == 1:
            yield FactEvent(line.number, "trait", {"name": "wrapped_lines"})
        record.body = f"{record.body}\n{line.text}"
        record.num_pieces += 1
        record.whole = line.whole
        self._open = None
        self._fill(record)
        yield from self._judge(record, is_last=True)

    def _other(self, line: Line) -> Iterator[Event]:
        """Lines without a whole head."""
        text = line.text
        self._evidence.look_at(text)
        if "Step Time" in text and not line.whole and not _STEP_TIME.search(text):
            yield IncompleteEvent(line.number, {"iteration": None})
        elif speeds := list(_STEP_TIME.finditer(text)) if "Step Time" in text else []:
            self._evidence.signs.add("step time")
            for speed in speeds:
                fields: dict[str, Value] = {"iteration": None}
                put_value(fields, TIME_WITH_UNIT, speed[1] + speed[2])
                put_value(fields, TFLOPS, speed[3])
                yield StepEvent(line.number, fields)
            if len(speeds) > 1:
                yield FactEvent(line.number, "trait", {"name": "glued_lines"})
        elif not line.whole and (match := _CUT_HEAD.search(text)):
            yield IncompleteEvent(line.number, {"iteration": int(match[1])})
        elif any(words in text for words in _ORPHAN_WORDS) and _ORPHAN.search(text) and "valid" not in text:
            name = "truncated_first_line" if line.number == 1 else "orphan_fragment"
            yield FactEvent(line.number, "trait", {"name": name})
        else:
            for event in self._facts.read(line):
                if isinstance(event, FactEvent) and event.kind == "timers" and event.fields.keys() & _TIMERS_2021:
                    self._evidence.signs.add("timers 2021")
                yield event


def _is_of_another(label: str, first_label: str) -> bool:
    """True if two process labels differ; wrapped pieces carry none, or only the outer one of two kinds."""
    return bool(label) and label != first_label and label.isdigit() == first_label.isdigit()


def _with_place(
    places: list[Place] | None, key: Key, part: str, value: str, part_start: int, fields: dict[str, Value]
) -> list[Place] | None:
    """The places and one more; None if this value needs more than a look at digits."""
    if places is None or not key.field:
        return places if key.field or is_number(value) else None
    number = value.strip()
    plain, read = number_reader(number), _READERS.get(key.kind)
    if plain is None or read is None or fields.get(key.field) is None:
        return None
    if (read is int and plain is not int) or (read is seconds_of_ms and "e" in number.lower()):
        return None
    start = part_start + part.rindex(number)
    return [*places, Place(key.field, start, start + len(number), read)]


_READERS: dict[str, Reader] = {
    "int": int,
    "float": float,
    "loss": float,
    "s": float_or_none,
    "ms": seconds_of_ms,
    "rate": float_or_none,
}
"""Kinds of keys whose values are simply numbers."""


def _is_message(text: str) -> bool:
    """True if more than a rate, a time stamp and names in brackets stands before a record."""
    return "|" in _RATE_BEFORE.sub("", text)
