"""metaseq's and fairseq's lines of ``train_inner``, as JSON with numbers in quotes or as ``key=value``.

``wps`` counts the tokens of all workers. The loss is in bits (base 2), which is checked against the perplexity; ``loss`` is as
printed, and ``loss_nats_per_token`` is comparable with other systems. The first line's rates are 0: not measured yet.
``cuda_gb_...`` are GiB. Lines of ``train`` and ``valid`` are sums over an epoch. Source: metaseq/logging/progress_bar,
metaseq/criterions/cross_entropy.py, metaseq/trainer.py, fairseq/logging/progress_bar.py; metaseq pull request 507.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from hpctrain.analysis.logs.events import Event, FactEvent, IncompleteEvent, Line, StepEvent, Value
from hpctrain.analysis.logs.printed import (
    NUMBER,
    certain_text,
    glued,
    number,
    put_number,
    put_or_missing,
    put_rank,
    put_timestamp,
)

_EPOCH_STEP = re.compile(r"\bepoch (\d+):? +(\d+) / (\d+) ")
_VALID = re.compile(rf'\b(?:"|)(valid_loss|valid_ppl|num_updates|valid_num_updates)(?:"|)(?:: | |=)"?({NUMBER})')
_MEASURED = {
    "wps": "tokens_per_s",
    "ups": "batches_per_s",
    "wpb": "global_batch_tokens",
    "bsz": "global_batch_size",
    "cuda_gb_allocated": "mem_allocated_gb",
    "cuda_gb_reserved": "mem_gib",
}
_NAMES = {
    "num_updates": "iteration",
    "loss": "loss",
    "ppl": "perplexity",
    "lr": "learning_rate",
    "gnorm": "grad_norm",
    "loss_scale": "loss_scale",
    "epoch": "epoch",
    "tflops": "tflops_per_gpu",
}
_KEYS = "|".join([*_MEASURED, *_NAMES])
_JSON_PAIR = re.compile(rf'"({_KEYS})": (?:"({NUMBER})%?"|({NUMBER})(?=[,}}]))')
_EQUALS_PAIR = re.compile(rf"(?<![\w.])({_KEYS})=({NUMBER})(?=[,\s\]]|\Z)")
_EQUALS_PAIR_AT_CUT = re.compile(rf"(?<![\w.])({_KEYS})=({NUMBER})(?=[,\s\]])")
_FRAGMENT = re.compile(r'\A[^{|]*"num_updates": "?\d[^{]*\}')
"""The rest of a line whose start is lost."""
_BITS_TOLERANCE = 0.01
"""Relative difference of perplexity and 2**loss below which the loss is in bits; e**loss is 25 % off already at a loss of 1."""
_HEAD, _END = '{"epoch"', re.compile(r"(?<=\})")


class MetaseqFormat:
    """Reads the training lines of metaseq and fairseq."""

    system = "metaseq"
    markers: tuple[str, ...] = ("num_updates", "| train_inner |")
    tflops_convention = "unknown"
    wants_next = False

    def __init__(self) -> None:
        self._told_quotes = False

    def read(self, line: Line) -> Iterable[Event]:
        if line.text.count(_HEAD) <= 1:
            yield from self._one(line)
            return
        # A line end was lost: the next message begins behind the bracket.
        parts = [part for part in _END.split(line.text) if part]
        yield from glued(line, parts)
        for part in parts:
            yield from self._one(replace(line, text=part, whole=line.whole or part is not parts[-1]))

    def _one(self, line: Line) -> Iterable[Event]:
        text, certain = certain_text(line, ("}", "]"))
        if "valid_loss" in text:
            yield from _validation(line, text)
            return
        brace = text.find(_HEAD)
        if brace >= 0:
            found = _JSON_PAIR.findall(text, brace)
            pairs = [(key, quoted or bare) for key, quoted, bare in found]
            if not self._told_quotes and any(quoted for _, quoted, _ in found):
                self._told_quotes = True
                yield FactEvent(line.number, "trait", {"name": "numbers_as_strings"})
            certain = certain and "}" in text[brace:]
        elif _FRAGMENT.match(text):
            name = "truncated_first_line" if line.number == 1 else "orphan_fragment"
            yield FactEvent(line.number, "trait", {"name": name})
            return
        else:
            pairs = (_EQUALS_PAIR if certain else _EQUALS_PAIR_AT_CUT).findall(text)
        fields = _fields(pairs)
        if not ({"loss", "tokens_per_s"} & fields.keys()):
            return
        if "iteration" not in fields:
            # The number of updates comes late in the line.
            if brace >= 0 and not certain:
                put_timestamp(fields, text)
                yield IncompleteEvent(line.number, fields)
            return
        step = _EPOCH_STEP.search(text)
        if step:
            fields["epoch"] = int(step[1])
        put_timestamp(fields, text)
        put_rank(fields, line.label)
        yield (StepEvent if certain and "loss" in fields else IncompleteEvent)(line.number, fields)

    def end(self) -> Iterable[Event]:
        return ()


def _fields(pairs: list[tuple[str, str]]) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    for key, text in pairs:
        if key in _MEASURED:
            put_or_missing(fields, _MEASURED[key], text)
        elif key in _NAMES:
            put_number(fields, _NAMES[key], text)
    for name in ("iteration", "global_batch_size", "global_batch_tokens"):
        value = fields.get(name)
        if isinstance(value, float) and value.is_integer():
            fields[name] = int(value)
    nats = _loss_in_nats(fields.get("loss"), fields.get("perplexity"))
    if nats is not None:
        fields["loss_nats_per_token"] = nats
    return fields


def _loss_in_nats(loss: Value, perplexity: Value) -> float | None:
    """The loss in nats where the printed perplexity shows that it is in bits; None where nothing shows its base.

    >>> _loss_in_nats(15.878, 60214.8), _loss_in_nats(15.878, None), _loss_in_nats(11.006, 60214.8)
    (11.005791, None, 11.006)
    """
    if not isinstance(loss, float | int) or not isinstance(perplexity, float | int) or perplexity <= 0:
        return None
    if abs(math.log2(perplexity) - loss) <= _BITS_TOLERANCE:
        return round(loss * math.log(2), 6)
    if abs(math.log(perplexity) - loss) <= _BITS_TOLERANCE:
        return float(loss)
    return None


def _validation(line: Line, text: str) -> Iterable[Event]:
    found = {key.removeprefix("valid_"): number(value) for key, value in _VALID.findall(text)}
    if "loss" in found:
        fields = {"iteration": found.get("num_updates"), "val_loss": found["loss"], "ppl": found.get("ppl")}
        yield FactEvent(line.number, "validation", {key: value for key, value in fields.items() if value is not None})
