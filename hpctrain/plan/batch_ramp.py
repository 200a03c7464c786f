"""Batch-size ramp-up: the global batch of each step, and which samples came before it.

The rule is Megatron-LM's ``--rampup-batch-size START INCREMENT SAMPLES``: the batch grows by equal increments, after equal
numbers of consumed samples, and is the full one once ``samples`` are consumed. A step has the batch of the samples consumed
before it, so a stage ends with the first whole step at or after its share. Megatron-LM takes the share as a rounded quotient,
here it is exact.

Source: Megatron-LM, megatron/core/num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpctrain.config.schema import BatchRampConfig
from hpctrain.errors import Problem
from hpctrain.plan.divisors import divisors, nearest_spread


@dataclass(frozen=True)
class RampStage:
    """Steps in a row with the same global batch."""

    first_step: int
    """Optimizer step, from 1."""
    first_sample: int
    """Sequences that the steps before consumed."""
    global_batch_size: int
    """Sequences a step."""


def ramp_stages(start: int, increment: int, samples: int, full: int) -> tuple[RampStage, ...]:
    """The stages of a ramp, the last one with the full batch.

    Args:
        start: sequences of the first step, below ``full``.
        increment: sequences by which the batch grows; divides ``full - start``.
        samples: consumed sequences from which on the batch is the full one.
        full: ``training.global_batch_size``.

    Two increments over 20 samples: 4 sequences until 10 are consumed (3 steps, 12 samples), 8 until 20, then 12:

    >>> [(stage.first_step, stage.first_sample, stage.global_batch_size) for stage in ramp_stages(4, 4, 20, 12)]
    [(1, 0, 4), (4, 12, 8), (5, 20, 12)]
    """
    num_increments, rest = divmod(full - start, increment)
    assert start < full and not rest, "the plan refuses such a ramp"
    stages: list[RampStage] = []
    step, consumed = 1, 0
    while consumed < samples:
        # Whole increments of the samples; a batch larger than a share jumps over one.
        number = consumed * num_increments // samples
        size = start + number * increment
        stages.append(RampStage(step, consumed, size))
        share_ends = -((number + 1) * samples // -num_increments)
        num_steps = -((share_ends - consumed) // -size)
        step, consumed = step + num_steps, consumed + num_steps * size
    return (*stages, RampStage(step, consumed, full))


def stage_of(stages: Sequence[RampStage], step: int) -> RampStage:
    """The stage that a step is in.

    Args:
        stages: of ``ramp_stages``, at least one.
        step: optimizer step, from 1.
    """
    return stages[bisect_right(stages, step, key=lambda stage: stage.first_step) - 1]


def samples_before(stages: Sequence[RampStage], step: int) -> int:
    """Sequences that the steps before ``step`` consumed, on all ranks together.

    >>> [samples_before(ramp_stages(4, 4, 20, 12), step) for step in (1, 2, 4, 5, 6)]
    [0, 4, 12, 20, 32]
    """
    stage = stage_of(stages, step)
    return stage.first_sample + (step - stage.first_step) * stage.global_batch_size


def steps_for_samples(stages: Sequence[RampStage], samples: float) -> int:
    """Whole steps that consume at least ``samples`` sequences.

    >>> [steps_for_samples(ramp_stages(4, 4, 20, 12), samples) for samples in (0, 4, 5, 20, 21, 33)]
    [0, 1, 2, 4, 5, 6]
    """
    stage = stages[max(0, bisect_right(stages, samples, key=lambda stage: stage.first_sample) - 1)]
    return stage.first_step - 1 + int(-((samples - stage.first_sample) // -stage.global_batch_size))


def ramp_problems(ramp: BatchRampConfig, full: int, micro_batch_size: int, degree: int) -> list[Problem]:
    """Why ``training.batch_ramp`` makes no ramp: each batch must be whole micro steps, and the increments meet the full one.

    Args:
        ramp: as stated.
        full: ``training.global_batch_size``.
        micro_batch_size: sequences.
        degree: data-parallel ranks.
    """
    problems = []
    per_micro_step = micro_batch_size * degree
    unit = f"training.micro_batch_size x data-parallel degree = {micro_batch_size} x {degree} = {per_micro_step}"
    # Of the whole ramp, so that this way leaves no other problem.
    spread = nearest_spread(math.gcd(ramp.start, ramp.increment, full), micro_batch_size, degree)
    for name, value in (("start", ramp.start), ("increment", ramp.increment)):
        if value % per_micro_step:
            rule = f"must be a multiple of {unit} ({value} mod {per_micro_step} = {value % per_micro_step})"
            problems.append(_problem(name, value, rule, f"{_multiples(value, per_micro_step, full)}, or {spread}"))
    if ramp.start >= full:
        rule = f"must be below training.global_batch_size={full}, to which it grows"
        fix = f"set training.global_batch_size={ramp.start + ramp.increment} or more"
        if full > per_micro_step:
            fix = f"nearest: {full - per_micro_step}, or {fix}"
        return [*problems, _problem("start", ramp.start, rule, fix)]
    rest = (full - ramp.start) % ramp.increment
    if not problems and rest:
        rule = (
            f"must divide training.global_batch_size - training.batch_ramp.start = {full} - {ramp.start} = {full - ramp.start}"
            f" ({full - ramp.start} mod {ramp.increment} = {rest})"
        )
        fits = [count * per_micro_step for count in divisors((full - ramp.start) // per_micro_step)]
        below = [value for value in fits if value < ramp.increment][-1:]
        above = [value for value in fits if value > ramp.increment][:1]
        problems.append(_problem("increment", ramp.increment, rule, f"nearest: {', '.join(map(str, below + above))}"))
    return problems


def ramp_warnings(stages: Sequence[RampStage], num_steps: int, increment: int) -> list[str]:
    """What a ramp does that is often not meant.

    Args:
        stages: of ``ramp_stages``; empty: there is no ramp.
        num_steps: of the run.
        increment: ``training.batch_ramp.increment``.
    """
    warnings = []
    if stages and stages[-1].first_step > num_steps:
        reached = stage_of(stages, num_steps).global_batch_size
        warnings.append(
            f"training.batch_ramp: the full batch of {stages[-1].global_batch_size} comes with step {stages[-1].first_step}, and"
            f" training.num_steps={num_steps} ends at {reached}"
        )
    jumps = [after.global_batch_size - before.global_batch_size for before, after in pairwise(stages)]
    if any(jump > increment for jump in jumps):
        warnings.append(
            "training.batch_ramp: a step has more sequences than a stage, so that some of the batch sizes are jumped over; a"
            " larger increment or more samples take them all"
        )
    return warnings


def _problem(name: str, value: int, rule: str, fix: str) -> Problem:
    return Problem(f"training.batch_ramp.{name}", str(value), rule, fix)


def _multiples(value: int, unit: int, limit: int) -> str:
    """The multiples of ``unit`` next to ``value``, below ``limit`` where there is one."""
    below = value // unit * unit
    found = [number for number in (below, below + unit) if 0 < number < limit]
    return f"nearest: {', '.join(map(str, found))}" if found else f"nearest: {unit}"
