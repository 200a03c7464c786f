"""Units and factors of a log, checked against each other: batch / time = samples/s, tokens, GPUs, TFLOP/s.

The unit of a number is taken from its key; a number that contradicts the others is kept beside the one that follows from them.
Reports: bigscience-workshop/Megatron-DeepSpeed#223 (milliseconds taken for seconds), deepspeedai/DeepSpeed#2565 (off by the
model-parallel factor).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpctrain.analysis.logs.events import Value
from hpctrain.analysis.logs.record_table import Column
from hpctrain.units import TERA

SAMPLES_TOLERANCE = 0.2
"""Relative. Two digits of a printed rate are 5 %, a batch that grows inside the interval 10 %; a wrong unit is a factor of 2
at least."""
WHOLE_TOLERANCE = 0.03
"""Relative, for a quotient that must be a whole number: three digits of «14.2K» and «1.78K» are up to 0.6 % each."""
WHOLE_MAX_DISTANCE = 0.25
"""Of a quotient from its whole number: at one half every large number would pass."""
TFLOPS_TOLERANCE_FACTOR = 2.0
"""Between conventions: recomputation is at most 4/3, dense against causal attention at most 2 where attention is everything."""
MAX_WHOLE = 2**53
"""Beyond it every float is a whole number, and none of a log's counts is so large."""
_FACTORS = {1000.0: "milliseconds or GFLOPs taken for seconds or TFLOPs", 1024.0: "a binary prefix"}
_FACTOR_TOLERANCE = 0.15


@dataclass(frozen=True)
class RateCheck:
    """A rate to use, and the printed one where it contradicts it."""

    samples_per_s: float | None
    samples_per_s_printed: float | None
    """None: nothing was printed, or it agrees."""

    @property
    def consistent(self) -> bool:
        """Nothing contradicts."""
        return self.samples_per_s_printed is None


@dataclass(frozen=True)
class TflopsCheck:
    """Printed TFLOP/s a GPU against a count of FLOPs, both kept."""

    printed: float
    expected: float
    """From FLOPs, time and GPUs, in 1e12 FLOP/s a GPU."""
    hint: str
    """What the factor between them may be; empty if they agree within ``TFLOPS_TOLERANCE_FACTOR``."""

    @property
    def consistent(self) -> bool:
        """The two are the same within the factor that conventions leave."""
        return not self.hint


def check_samples_per_s(global_batch_size: Value, time_s: Value, printed: Value) -> RateCheck:
    """Samples/s of the whole job: batch / time where both are there and the printed rate is off by more than the tolerance.

    >>> check_samples_per_s(2048, 423.0423, 0.005)
    RateCheck(samples_per_s=4.841123452666554, samples_per_s_printed=0.005)
    >>> check_samples_per_s(2048, 111.0, 18.451).samples_per_s
    18.451
    """
    batch, time, rate = _positive(global_batch_size), _positive(time_s), _positive(printed)
    expected = 0.0 if batch is None or time is None else batch / time
    if rate is None or not 0 < expected < math.inf or abs(rate / expected - 1) <= SAMPLES_TOLERANCE:
        return RateCheck(rate, None)
    return RateCheck(expected, rate)


def samples_per_s_agree(global_batch_size: Column, time_s: Column, printed: Column) -> bool:
    """True if no row's printed rate is off by more than the tolerance; also where one of the columns is missing.

    >>> samples_per_s_agree(2048, np.array([111.0, 423.0]), np.array([18.451, 4.841]))
    True
    >>> samples_per_s_agree(2048, np.array([111.0, 423.0]), np.array([18.451, 0.005]))
    False
    """
    if global_batch_size is None or time_s is None or printed is None:
        return True
    batch = np.asarray(global_batch_size)
    return bool((np.abs(np.asarray(printed) * np.asarray(time_s) - batch) <= SAMPLES_TOLERANCE * batch).all())


def whole_quotient(numerator: Value, denominator: Value) -> int | None:
    """The whole number that the quotient is within both tolerances; None if it is none, or nothing to divide.

    >>> whole_quotient(14200.0, 1780.0), whole_quotient(100.0, 30.0), whole_quotient(None, 2)
    (8, None, None)
    """
    top, bottom = _positive(numerator), _positive(denominator)
    if top is None or bottom is None:
        return None
    quotient = top / bottom
    if quotient > MAX_WHOLE:
        return None
    whole = round(quotient)
    near = abs(quotient - whole) <= min(WHOLE_MAX_DISTANCE, WHOLE_TOLERANCE * whole)
    return whole if whole >= 1 and near else None


def global_batch_from_rate(samples_per_s: Value, time_s: Value) -> int | None:
    """Sequences a step, from samples/s and the seconds of a step.

    >>> global_batch_from_rate(6.805, 150.4713)
    1024
    """
    rate, time = _positive(samples_per_s), _positive(time_s)
    return None if rate is None or time is None else whole_quotient(rate * time, 1)


def check_tflops(printed: float, num_gpus: int, time_s: float, flops_per_step: float) -> TflopsCheck:
    """Printed TFLOP/s a GPU against FLOPs a step / (time x GPUs).

    Leaves out which convention the log counts in: the tolerance covers them all.

    >>> check_tflops(125.18, 128, 1.0, 128 * 100e12).consistent
    True
    >>> check_tflops(13.36, 128, 1.0, 128 * 106.9e12).hint
    'printed value is 1/8.0 of it: perhaps a parallel degree of 8'
    """
    expected = flops_per_step / (num_gpus * time_s) / TERA
    factor = printed / expected
    if 1 / TFLOPS_TOLERANCE_FACTOR <= factor <= TFLOPS_TOLERANCE_FACTOR:
        return TflopsCheck(printed, expected, "")
    size = factor if factor > 1 else 1 / factor
    shown = f"{size:.1f} times it" if factor > 1 else f"1/{size:.1f} of it"
    return TflopsCheck(printed, expected, f"printed value is {shown}: {_factor_words(size)}")


def _factor_words(size: float) -> str:
    for factor, words in _FACTORS.items():
        if abs(size / factor - 1) <= _FACTOR_TOLERANCE:
            return f"perhaps {words}"
    power = 2 ** round(math.log2(size))
    if abs(size / power - 1) <= _FACTOR_TOLERANCE:
        return f"perhaps a parallel degree of {power}"
    return "unit or model differ"


def _positive(value: Value) -> float | None:
    """A usable number above zero; a rounded zero in the log is none."""
    if value is None or isinstance(value, bool | str):
        return None
    number = float(value)
    return number if math.isfinite(number) and number > 0 else None
