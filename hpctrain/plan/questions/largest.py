"""The largest model that fits: blocks are added at a given width until a tier of memory is full."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.questions.outcome import Outcome, PlanOf, check_capacity, outcome_of

MOST_LAYERS = 8192
"""Blocks beyond which the search ends: eighty times the deepest model that was ever trained."""
_LOOK_AHEAD = 8
"""Sizes above the first that does not fit which are tried: shares of states in steps of 5 % and pinned memory in powers of two
make the need jump, so that a larger model might fit again."""

FitsOf = Callable[[Config, bool], bool]
"""Whether the plan of a configuration fits, or fits with a tenth of each tier free, where that is known sooner than the plan."""


@dataclass(frozen=True)
class LargestModel:
    """The answer. Sizes are told by their outcomes."""

    largest: Outcome | None
    """The deepest model that fits; None: not even the shallowest does."""
    with_headroom: Outcome | None
    """The deepest that leaves a tenth of each tier free."""
    above: Outcome
    """One step deeper than ``largest``: does not fit."""

    @property
    def binds(self) -> tuple[str, ...]:
        """The tiers that the next size is short of, such as ``memory.host``."""
        return tuple(problem.key for problem in self.above.short)


def largest_model(config: Config, plan_of: PlanOf, fits_of: FitsOf | None = None) -> LargestModel:
    """Grows ``model.num_layers`` while hidden size, heads, feed-forward and vocabulary stay.

    Args:
        config: its own number of layers does not count. Layers are added in multiples of the pipeline stages.
        plan_of: what the planner makes of a configuration.
        fits_of: what its plan would say; None: each size that is looked at is planned.

    Raises:
        ConfigError: the configuration breaks a rule at any size, or no stated memory ever fills.
    """

    def outcome(num_layers: int) -> Outcome:
        return outcome_of(plan_of(with_layers(config, num_layers)))

    def fits(num_layers: int, has_headroom: bool) -> bool:
        assert fits_of is not None
        return fits_of(with_layers(config, num_layers), has_headroom)

    return grown(outcome, config.parallelism.pipeline_parallel_size, fits if fits_of else None)


def with_layers(config: Config, num_layers: int) -> Config:
    """The same with a model of so many blocks."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=num_layers))


def grown(
    outcome: Callable[[int], Outcome], step: int, fits: Callable[[int, bool], bool] | None = None
) -> LargestModel:
    """The answer by bisection over multiples of ``step`` layers.

    Args:
        outcome: of a number of layers.
        step: layers added at a time.
        fits: whether an outcome fits, or fits with a tenth free; None: the outcome itself says it.

    Raises:
        ConfigError: the hardware states no memory, or the deepest model that is looked at fits.
    """

    @functools.cache
    def at(multiple: int) -> Outcome:
        return outcome(multiple * step)

    @functools.cache
    def holds(has_headroom: bool, multiple: int) -> bool:
        if fits is not None:
            return fits(multiple * step, has_headroom)
        return at(multiple).has_headroom if has_headroom else at(multiple).fits

    most = max(1, MOST_LAYERS // step)
    check_capacity(at(1))
    last = _last(functools.partial(holds, False), most)
    if last == most:
        raise _unbound(at(most))
    spacious = _last(functools.partial(holds, True), last) if last else 0
    return LargestModel(at(last) if last else None, at(spacious) if spacious else None, at(last + 1))


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number up to ``most`` for which it holds, 0 for none; behind its end a few more are looked at."""
    last = 0
    while True:
        low, high = last, last + 1
        while high < most and holds(high):
            low, high = high, min(most, 2 * high)
        if high == most and holds(most):
            return most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        again = [number for number in range(low + 2, min(low + _LOOK_AHEAD, most) + 1) if holds(number)]
        if not again:
            return low
        last = again[-1]


def _unbound(deepest: Outcome) -> ConfigError:
    """Of a model so deep that nobody means it: too narrow to fill anything, or what grows lies where no memory is stated."""
    rule = f"does not bind: {deepest.num_layers:,} layers of this width fit, and the search ends there"
    fix = "a wider model, such as another model.hidden_size"
    if deepest.host_capacity_bytes is None:
        fix = "state hardware.host_memory_gib, or take " + fix
    return ConfigError([Problem("model.num_layers", "", rule, fix)])
