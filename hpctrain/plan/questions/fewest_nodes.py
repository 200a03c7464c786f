"""The fewest nodes on which a model fits, and what more nodes would bring."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.divisors import divisors
from hpctrain.plan.model_shape import resolve_model_shape
from hpctrain.plan.questions.outcome import Outcome, PlanOf, check_capacity, outcome_of
from hpctrain.plan.rules.parallelism import sequence_wholes, tensor_wholes

MOST_NODES = 1024
"""Where ``--max-nodes`` does not state another number."""
_MULTIPLES = (1.25, 1.5, 2.0, 3.0, 4.0)
"""Of the fewest nodes: the rows of the table, beside the very next count."""
_LOOK_AHEAD = 16
"""Counts of which one must break no rule; where none does, the rule that the first breaks is told."""


@dataclass(frozen=True)
class FewestNodes:
    """The answer."""

    fewest: Outcome | None
    """None: on none of the counts does it fit with headroom."""
    more: tuple[Outcome, ...]
    """Larger counts, rising, up to four times as many nodes."""
    nearest: Outcome | None
    """The largest count looked at that does not fit with headroom; None: one node is enough."""
    max_nodes: int
    tried: tuple[int, ...]
    """Counts of nodes that were planned, rising."""
    refused: tuple[tuple[int, str], ...]
    """Counts that break a rule other than memory's, each with the first of its rules."""


class _Counts:
    """Plans by number of nodes, each made once."""

    def __init__(self, config: Config, plan_of: PlanOf) -> None:
        self._config, self._plan_of = config, plan_of
        self._known: dict[int, Outcome | ConfigError] = {}

    def outcome(self, nodes: int) -> Outcome | None:
        """None: so many nodes break a rule."""
        if nodes not in self._known:
            try:
                self._known[nodes] = outcome_of(self._plan_of(dataclasses.replace(self._config, nodes=nodes)))
            except ConfigError as error:
                if any(problem.kind == "rate" for problem in error.problems):
                    raise  # no count of nodes mends it
                self._known[nodes] = error
        found = self._known[nodes]
        return None if isinstance(found, ConfigError) else found

    @property
    def tried(self) -> tuple[int, ...]:
        return tuple(sorted(nodes for nodes, found in self._known.items() if isinstance(found, Outcome)))

    @property
    def errors(self) -> dict[int, ConfigError]:
        return {nodes: found for nodes, found in sorted(self._known.items()) if isinstance(found, ConfigError)}


def fewest_nodes(
    config: Config, plan_of: PlanOf, max_nodes: int = MOST_NODES, open_keys: Collection[str] = ()
) -> FewestNodes:
    """The fewest nodes on which a tenth of each tier stays free.

    Counts are multiples of what one replica of the stated degrees needs, and where a global batch is stated they divide it.
    Of these every count may be the answer, powers of two or not: the search doubles until one fits and then halves the gap,
    which is right since a rank's share of the states only falls with the nodes. Where batch, micro batch and accumulation are
    stated and the degrees are not, more nodes only split the model further, and every count is looked at.

    Args:
        config: its own number of nodes does not count.
        plan_of: what the planner makes of a configuration.
        max_nodes: the largest count that is looked at.
        open_keys: what ``plan_of`` chooses anew for each count, of ``Point.open_keys``.

    Raises:
        ConfigError: the first counts all break a rule other than that of memory, a bandwidth is missing, or no count is possible.
    """
    counts, found = possible_counts(config, max_nodes, open_keys), _Counts(config, plan_of)
    if not counts:
        raise _no_count(config, max_nodes)
    if not any(found.outcome(nodes) for nodes in counts[:_LOOK_AHEAD]):
        raise found.errors[counts[0]]
    check_capacity(next(outcome for nodes in found.tried if (outcome := found.outcome(nodes))))
    if open_keys and _states_whole_batch(config):
        place = next(
            (number for number, nodes in enumerate(counts) if _has_headroom(found.outcome(nodes))), len(counts)
        )
    else:
        place = _first(lambda number: _has_headroom(found.outcome(counts[number])), len(counts))
    fewest = found.outcome(counts[place]) if place < len(counts) else None
    below = [outcome for nodes in found.tried if (outcome := found.outcome(nodes)) and not outcome.has_headroom]
    more = [] if fewest is None else [found.outcome(nodes) for nodes in _larger(counts[place:])]
    refused = {nodes: str(error.problems[0]) if error.problems else str(error) for nodes, error in found.errors.items()}
    return FewestNodes(
        fewest,
        tuple(outcome for outcome in more if outcome is not None),
        max(below, key=lambda outcome: outcome.nodes, default=None),
        max_nodes,
        found.tried,
        tuple(refused.items()),
    )


def possible_counts(config: Config, max_nodes: int, open_keys: Collection[str] = ()) -> tuple[int, ...]:
    """Counts of nodes that hold whole replicas of the stated degrees and can share a stated global batch.

    Args:
        config: open degrees are 1 in it.
        max_nodes: the largest count.
        open_keys: degrees among them may be any that the model's shape allows.

    >>> from hpctrain.config.compose import compose_points
    >>> words = ["model=tiny", "cluster=local", "hardware.gpus_per_node=2", "parallelism.tensor_parallel_size=1"]
    >>> possible_counts(compose_points([*words, "training.global_batch_size=12"], False, ())[0].config, 7)
    (1, 2, 3, 6)
    """
    training, per_node = config.training, config.hardware.gpus_per_node
    replicas = _replicas(config, open_keys)
    if training.global_batch_size is None:
        step = math.lcm(min(replicas), per_node) // per_node
        return tuple(range(step, max_nodes + 1, step))
    unit = (training.micro_batch_size or 1) * (training.gradient_accumulation_steps or 1)
    share, rest = divmod(training.global_batch_size, unit)
    if rest:
        return ()
    data_degrees = [share] if _states_whole_batch(config) else divisors(share)
    counts = {divmod(degree * replica, per_node) for degree in data_degrees for replica in replicas}
    return tuple(sorted(nodes for nodes, odd_ranks in counts if not odd_ranks and nodes <= max_nodes))


def _states_whole_batch(config: Config) -> bool:
    """Whether what is stated leaves one data-parallel degree."""
    training = config.training
    return None not in (training.global_batch_size, training.micro_batch_size, training.gradient_accumulation_steps)


def _replicas(config: Config, open_keys: Collection[str]) -> set[int]:
    """Ranks that one replica may have: of stated degrees one number, of open ones all that the model's shape allows."""
    parallelism, (shape, _) = config.parallelism, resolve_model_shape(config.model)
    seq_len = config.training.seq_len or shape.max_seq_len

    def options(name: str, wholes: Iterable[int]) -> list[int]:
        is_open = f"parallelism.{name}" in open_keys
        return divisors(math.gcd(*wholes)) if is_open else [getattr(parallelism, name)]

    return {
        tensor * pipeline * sequence
        for tensor in options("tensor_parallel_size", tensor_wholes(shape, config.hardware.gpus_per_node).values())
        for sequence in options("sequence_parallel_size", sequence_wholes(shape, tensor, seq_len).values())
        for pipeline in options("pipeline_parallel_size", (shape.num_layers,))
    }


def _first(holds: Callable[[int], bool | None], length: int) -> int:
    """The first place for which it holds, ``length`` for none; places of which nothing is known (None) are passed over.

    A place that is passed over counts as the next one above it that is not.
    """

    def holds_from(place: int) -> bool:
        answers = (holds(each) for each in range(place, length))
        return next((answer for answer in answers if answer is not None), False)

    high = 0
    while high < length and not holds_from(high):
        high = 2 * high + 1
    if high >= length:
        if not length or not holds_from(length - 1):
            return length
        high = length - 1
    low = (high - 1) // 2 if high else -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds_from(middle) else (middle, high)
    return next(place for place in range(high, length) if holds(place))


def _has_headroom(outcome: Outcome | None) -> bool | None:
    return None if outcome is None else outcome.has_headroom


def _larger(counts: Sequence[int]) -> list[int]:
    """The counts above the first that the table shows."""
    wanted = {counts[1]} if len(counts) > 1 else set()
    for multiple in _MULTIPLES:
        wanted |= {next((count for count in counts if count >= multiple * counts[0]), counts[0])}
    return sorted(wanted - {counts[0]})


def _no_count(config: Config, max_nodes: int) -> ConfigError:
    rule = f"is below the nodes that one replica needs, or no count of at most {max_nodes:,} nodes divides the global batch"
    batch = config.training.global_batch_size
    fix = "a larger --max-nodes" if batch is None else "a larger --max-nodes, or another training.global_batch_size"
    return ConfigError([Problem("--max-nodes", str(max_nodes), rule, fix)])
