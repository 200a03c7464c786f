"""The fewest nodes on which a plan fits, beside other changes of it."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from hpctrain.config.schema import Config
from hpctrain.plan.changes.levers import Values
from hpctrain.plan.changes.trials import HEADROOM, Trials

MOST_DOUBLINGS = 6
"""Of the number of nodes: 64 times as many."""
_NEAR = 64
"""The number of nodes is found to one part in so many."""


def fewest_nodes(config: Config, trials: Trials, others: Values, below: int | None = None) -> int | None:
    """More nodes than there are, with which a tenth of each tier stays free.

    Twice as many till it does, then the fewest between; only counts over which ranks and batch can be spread.

    Args:
        config: of the refused plan.
        trials: of the same.
        others: what else is changed; does not fit with a tenth free.
        below: so many are too many.

    Returns:
        The number; None: so many are not found, or the cluster is one machine.
    """
    if config.cluster.kind == "local":
        return None
    before = others
    for counts in _ranges(config.nodes, below):
        legal = [others | {"nodes": count} for count in counts]
        legal = [values for values in legal if trials.keeps_rules(values)]
        if not legal:
            continue
        if trials.is_spent:
            return None
        if not trials.short_bytes(legal[-1], HEADROOM):
            place = bisect.bisect_left(
                range(len(legal) - 1), True, key=lambda place: not trials.short_bytes(legal[place], HEADROOM)
            )
            return int(legal[place]["nodes"])
        is_doubled = legal[-1]["nodes"] == 2 * before.get("nodes", config.nodes)
        if is_doubled and trials.is_hopeless(before, legal[-1]):
            return None
        before = legal[-1]
    return None


def some_counts(config: Config, below: int | None) -> list[int]:
    """A few more nodes than there are: half as many again, twice as many, and so on; without a bound up to four times.

    Args:
        config: of the refused plan.
        below: so many are too many.
    """
    if config.cluster.kind == "local":
        return []
    most = 4 * config.nodes if below is None else below - 1
    return [count for part in (3, 4, 6, 8) if config.nodes < (count := config.nodes * part // 2) <= most]


def _ranges(nodes: int, below: int | None) -> Iterator[range]:
    """Counts up to twice as many, from these up to twice as many, and so on."""
    low = nodes
    for _ in range(MOST_DOUBLINGS):
        high = 2 * low if below is None else min(2 * low, below - 1)
        step = max(1, low // _NEAR)
        yield range(low + step, high + 1, step)
        low = 2 * low
