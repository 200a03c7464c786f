"""The best micro batch: every one that fits, with its predicted speed and what stays free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.divisors import divisors, powers_and_halves
from hpctrain.plan.layout import held_share
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.questions.outcome import Outcome, PlanOf, check_capacity, outcome_of
from hpctrain.plan.rules.parallelism import resolve_layout

_MOST = 4096
"""Sequences; where even this micro batch fits, nothing that is stated binds."""


@dataclass(frozen=True)
class BestMicroBatch:
    """The answer: rows by rising micro batch, the last one does not fit unless ``is_complete`` is false."""

    rows: tuple[Outcome, ...]
    best: Outcome | None
    """The fastest of those with headroom, else of those that fit; without predictions the largest. None: none fits."""
    why: str
    """By what ``best`` was chosen."""
    ends_by: str
    """Why no larger one is in the table."""


def best_micro_batch(config: Config, plan_of: PlanOf) -> BestMicroBatch:
    """Plans rising micro batches up to the first that does not fit.

    Without a global batch these are 1, 2, 3, 4, 6, 8, 12 and so on (powers of two and the halves between them), and with them
    the sequences of a step grow, but for a pipeline, whose accumulation holds them; with one, those that divide a rank's share
    of it, and accumulation makes up the rest.

    Args:
        config: its own micro batch does not count.
        plan_of: what the planner makes of a configuration.

    Raises:
        ConfigError: every micro batch breaks a rule other than that of memory, or the hardware states no memory.
    """
    rows: list[Outcome] = []
    ends_by = f"a micro batch above {_MOST:,} was not looked at"
    if config.training.global_batch_size is not None:
        ends_by = "no larger one divides a rank's share of the global batch"
    elif _holds_batch(config):
        ends_by = (
            "a larger one has more sequences than the step that a pipeline holds without a training.global_batch_size"
        )
    broken: list[ConfigError] = []
    for size in _sizes(config):
        training = dataclasses.replace(config.training, micro_batch_size=size)
        try:
            rows.append(outcome_of(plan_of(dataclasses.replace(config, training=training))))
        except ConfigError as error:
            broken.append(error)  # a stated batch ramp takes some sizes and not others
            continue
        check_capacity(rows[-1])
        if not rows[-1].fits:
            ends_by = f"{size} does not fit"
            break
    if not rows:
        raise broken[0]
    fitting = [row for row in rows if row.fits]
    spacious = [row for row in fitting if row.has_headroom]
    best, why = _best(spacious or fitting)
    if fitting and not spacious:
        why += "; none leaves a tenth of each tier free"
    return BestMicroBatch(tuple(rows), best, why, ends_by)


def _best(rows: list[Outcome]) -> tuple[Outcome | None, str]:
    if not rows:
        return None, "none fits"
    if any(row.tokens_per_s is None for row in rows):
        return max(rows, key=lambda row: row.micro_batch_size), "the largest, since no step time is predicted"
    return max(rows, key=lambda row: (row.tokens_per_s or 0.0, -row.micro_batch_size)), "the most tokens/s predicted"


def _holds_batch(config: Config) -> bool:
    """Whether the accumulation of each micro batch follows from the batch that a pipeline holds."""
    training = config.training
    is_open = training.global_batch_size is None and training.gradient_accumulation_steps is None
    return is_open and config.parallelism.pipeline_parallel_size > 1


def _sizes(config: Config) -> Iterator[int]:
    training = config.training
    layout, problems = resolve_layout(config)
    if problems:
        raise ConfigError(problems)
    if training.global_batch_size is None:
        seq_len = training.seq_len or resolve_model_shape(config.model)[0].max_seq_len
        yield from powers_and_halves(held_share(layout, seq_len) if _holds_batch(config) else _MOST)
        return
    degree = layout.data_parallel_degree
    share, rest = divmod(training.global_batch_size, degree)
    if rest:
        rule = f"must be a multiple of the data-parallel degree {degree}, each rank of which takes an equal share"
        below = training.global_batch_size // degree * degree
        fixes = " or ".join(str(value) for value in (below, below + degree) if value)
        raise ConfigError(
            [Problem("training.global_batch_size", str(training.global_batch_size), rule, f"nearest: {fixes}")]
        )
    if (accumulation := training.gradient_accumulation_steps) is not None:
        rule = f"leaves one micro batch with training.global_batch_size={training.global_batch_size}, so there is no best one"
        raise ConfigError([Problem("training.gradient_accumulation_steps", str(accumulation), rule, "leave it out")])
    yield from divisors(share)
