"""The options of ``plan`` that ask what a run costs, from plain words: ``--tokens 300B --price 2.10USD``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, get_args

from hpctrain.errors import ConfigError, Problem, known_names_hint
from hpctrain.plan.flop_conventions import FlopConvention


@dataclass(frozen=True)
class CostOptions:
    """What was asked on the command line; None: not stated."""

    tokens: float | None = None
    price_per_gpu_hour: float | None = None
    price_currency: str | None = None
    node_mtbf_hours: float | None = None
    checkpoint_write_s: float | None = None
    restart_s: float | None = None
    checkpoint_interval_s: float | None = None
    step_time_s: float | None = None
    """A measured time, in place of the prediction."""
    convention: FlopConvention | None = None

    @property
    def is_asked(self) -> bool:
        """Whether any of time, money, energy or failures was asked for; a convention alone asks none of them."""
        return dataclasses.replace(self, convention=None) != CostOptions()


_STEP_TIME, _CONVENTION = "--step-time-s", "--convention"
_NUMBERS: dict[str, tuple[str, float, str]] = {
    "--tokens": ("tokens", 1e18, "300B"),
    "--price": ("price_per_gpu_hour", 1e6, "2.10 or 2.10USD"),
    "--mtbf-hours": ("node_mtbf_hours", 1e7, "20000"),
    "--checkpoint-write-s": ("checkpoint_write_s", 1e7, "60"),
    "--restart-s": ("restart_s", 1e7, "600"),
    "--checkpoint-interval-s": ("checkpoint_interval_s", 1e9, "3600"),
    _STEP_TIME: ("step_time_s", 1e7, "3.2"),
}
"""Option: field, greatest value, example. The limits keep every result a number that can be printed."""
_LEAST = 1e-9

COST_OPTIONS = (*_NUMBERS, _CONVENTION)

COST_HELP = """\
  --tokens N               time, GPU-hours, money and energy for N tokens (300B); else for the run's own steps
  --price P                price of one GPU for one hour (2.10USD), else hardware.price_per_gpu_hour
  --mtbf-hours H           hours of one node between failures, else hardware.node_mtbf_hours
  --checkpoint-write-s S   seconds that training stands still for one checkpoint
  --restart-s S            seconds from a failure to the next step
  --checkpoint-interval-s S  training between two checkpoints; else the best interval is chosen
  --step-time-s S          a measured step time, in place of the prediction
  --convention NAME        FLOP convention of the rates in the table of a sweep (model)
"""
"""Lines for ``--help``."""

_MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBER = re.compile(r"[+-]?([0-9]+(_[0-9]+)*(\.[0-9]+)?([eE][+-]?[0-9]+)?|\.[0-9]+)")
_PRICE = re.compile(r"(?P<number>(.*?[0-9.][KMBT]?)?)\s*(?P<currency>[A-Z]{3})?", re.DOTALL)


def take_cost_options(words: Sequence[str]) -> tuple[CostOptions, tuple[str, ...]]:
    """The cost options among the words of a command line, and the other words.

    Raises:
        ConfigError: an option has no value, is given twice, its value is no number above zero within its limit, or it has no
            meaning for a sweep or for a single plan.

    >>> options, rest = take_cost_options(["model=530b", "--tokens", "300B", "--price=2.10USD", "-m"])
    >>> options.tokens, options.price_per_gpu_hour, options.price_currency, rest
    (300000000000.0, 2.1, 'USD', ('model=530b', '-m'))
    """
    stated: dict[str, str] = {}
    rest = []
    remaining = iter(words)
    for word in remaining:
        option, equals, value = word.partition("=")
        if option not in COST_OPTIONS:
            rest.append(word)
            continue
        if option in stated:
            raise ConfigError(f"{option}: is given twice")
        stated[option] = value if equals else next(remaining, "")
    is_sweep = not {"-m", "--multirun"}.isdisjoint(rest)
    if _STEP_TIME in stated and is_sweep:
        raise ConfigError(f"{_STEP_TIME}: is the measured time of one plan, and a sweep has several; leave out -m")
    if _CONVENTION in stated and not is_sweep:
        raise ConfigError(f"{_CONVENTION}: is for the table of a sweep; add -m, or read the three rates of the plan")
    return _read(stated), tuple(rest)


def _read(stated: dict[str, str]) -> CostOptions:
    fields: dict[str, float] = {}
    currency = None
    for option, (field, limit, example) in _NUMBERS.items():
        if (text := stated.get(option)) is None:
            continue
        if option == "--price" and (match := _PRICE.fullmatch(text)):
            text, currency = match["number"], match["currency"]
        fields[field] = positive_number(option, text, limit, example)
    return CostOptions(**fields, price_currency=currency, convention=_convention(stated.get(_CONVENTION)))


def _convention(name: str | None) -> FlopConvention | None:
    known: tuple[FlopConvention, ...] = get_args(FlopConvention)
    for convention in known:
        if name == convention:
            return convention
    if name is None:
        return None
    raise ConfigError([Problem(_CONVENTION, name, "is no FLOP convention", known_names_hint(name, known))])


def positive_number(option: str, text: str, limit: float, example: str) -> float:
    """A number above zero, with K, M, B or T for a thousand, million, billion or trillion.

    Args:
        option: named in the message.
        text: as typed; ``_`` may part digits.
        limit: the greatest value that makes sense.
        example: a value for the message.

    Raises:
        ConfigError: ``text`` is no such number.

    >>> positive_number("--tokens", "1.5T", 1e18, "300B"), positive_number("--tokens", "300_000", 1e18, "300B")
    (1500000000000.0, 300000.0)
    """
    typed = text.strip()
    letter = typed[-1:].upper()
    digits, multiple = (typed[:-1], _MULTIPLES[letter]) if letter in _MULTIPLES and letter else (typed, 1.0)
    if not typed:
        _refuse(option, "", "must be followed by a number above zero", example)
    if not _NUMBER.fullmatch(digits):
        _refuse(option, typed, "must be a number above zero; K, M, B and T stand for 1e3, 1e6, 1e9 and 1e12", example)
    value = float(digits) * multiple
    if value <= 0:
        _refuse(option, typed, "must be above zero", example)
    if not _LEAST <= value <= limit:
        _refuse(option, typed, f"must be between {_LEAST:g} and {limit:g}", example)
    return value


def _refuse(option: str, value: str, rule: str, example: str) -> NoReturn:
    raise ConfigError([Problem(option, value, rule, f"for example {option} {example}")])
