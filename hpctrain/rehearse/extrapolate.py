"""From two depths to the plan's: every number is a + b x layers, and a third depth says how true that is. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpctrain.rehearse.result import (
    OWNERS,
    Collective,
    CountedFlops,
    LinearityCheck,
    LiveTensors,
    Rehearsal,
    TierPhase,
)


@dataclass(frozen=True)
class _Line:
    """Through two depths."""

    shallow: int
    deep: int
    wanted: int

    def at(self, low: float, high: float) -> int:
        """The value at the wanted depth of what was ``low`` at the shallow and ``high`` at the deep one; never below zero."""
        slope = (high - low) / (self.deep - self.shallow)
        return max(0, round(low + slope * (self.wanted - self.shallow)))


def extrapolated(
    shallow: Rehearsal, deep: Rehearsal, check: Rehearsal, num_layers: int, num_parameters: int, planned_flops: float
) -> Rehearsal:
    """The rehearsal of ``num_layers`` layers, on the line through the two deepest of three.

    Where a peak wanders with the depth, from the loss to a block, say, it is the greater of two lines: the deeper the better. One
    that wanders beyond the deepest is missed, and the answer is then too low.

    Args:
        shallow: the least deep one; with the next it says whether things are linear, see ``linearity``.
        deep: the next.
        check: the deepest; the time line and the shapes of tensors are its.
        num_layers: of the plan.
        num_parameters: of the plan's model.
        planned_flops: of the plan, one rank.
    """
    line = _Line(deep.num_layers, check.num_layers, num_layers)
    return dataclasses.replace(
        check,
        num_layers=num_layers,
        num_parameters=num_parameters,
        way="quick",
        memory=_memory(line, deep.memory, check.memory),
        collectives=_collectives(line, deep.collectives, check.collectives),
        flops=_flops(line, deep.flops, check.flops, planned_flops),
        largest=_largest(line, deep.largest, check.largest),
        late_free_margin_bytes=check.late_free_margin_bytes,
        wall_s=max(shallow.wall_s, deep.wall_s, check.wall_s),
        process_peak_bytes=shallow.process_peak_bytes + deep.process_peak_bytes + check.process_peak_bytes,
        linearity=linearity(shallow, deep, check),
    )


def linearity(shallow: Rehearsal, deep: Rehearsal, check: Rehearsal) -> LinearityCheck:
    """How far the line through the two shallower depths misses the deepest, in fractions of what was found there.

    Of memory, tiers and phases of the reported step with a thousandth of the fullest one or more are looked at.
    """
    line = _Line(shallow.num_layers, deep.num_layers, check.num_layers)
    expected = {_place(row): row for row in _memory(line, shallow.memory, deep.memory)}
    greatest = max(row.peak_bytes for row in check.memory)
    worst, quantity, peak_deviation = 0.0, "", 0.0
    for row in check.memory:
        if row.step not in (0, check.reported_step):
            continue
        guess = expected.get(_place(row))
        for name, found, value in (
            ("peak", row.peak_bytes, guess.peak_bytes if guess else 0),
            ("resting", row.resting_bytes, guess.resting_bytes if guess else 0),
        ):
            if max(found, value) < greatest / 1000:
                continue
            deviation = abs(value - found) / max(found, 1)
            if deviation > worst or not quantity:
                worst, quantity = max(worst, deviation), f"{row.tier} {name}, {row.phase} of step {row.step}"
    found_peak = check.peak(check.main_tier)
    guess_peak = max(
        (
            row.peak_bytes
            for row in expected.values()
            if row.tier == check.main_tier and row.step == check.reported_step
        ),
        default=0,
    )
    if found_peak is not None:
        peak_deviation = abs(guess_peak - found_peak.peak_bytes) / found_peak.peak_bytes
    return LinearityCheck(
        depths=(shallow.num_layers, deep.num_layers),
        checked_depth=check.num_layers,
        worst_deviation=worst,
        worst_quantity=quantity,
        largest_peak_deviation=peak_deviation,
    )


def _place(row: TierPhase) -> tuple[int, str, str]:
    return (row.step, row.phase, row.tier)


def _memory(line: _Line, low: Iterable[TierPhase], high: Iterable[TierPhase]) -> tuple[TierPhase, ...]:
    lows = {_place(row): row for row in low}
    found = []
    for row in high:
        former = lows.get(_place(row))
        peak = _by_owner(line, former.peak_by_owner if former else {}, row.peak_by_owner)
        resting = _by_owner(line, former.resting_by_owner if former else {}, row.resting_by_owner)
        found.append(
            dataclasses.replace(
                row,
                peak_bytes=sum(peak.values()),
                peak_by_owner=peak,
                resting_bytes=sum(resting.values()),
                resting_by_owner=resting,
            )
        )
    return tuple(found)


def _by_owner(line: _Line, low: Mapping[str, int], high: Mapping[str, int]) -> dict[str, int]:
    return {owner: line.at(low.get(owner, 0), high.get(owner, 0)) for owner in OWNERS if owner in low or owner in high}


def _collectives(line: _Line, low: Sequence[Collective], high: Sequence[Collective]) -> tuple[Collective, ...]:
    def key(row: Collective) -> tuple[int, str, str, int, bool]:
        return (row.step, row.phase, row.kind, row.group_size, row.is_world)

    lows = {key(row): row for row in low}
    found = []
    for row in high:
        former = lows.get(key(row))
        count = line.at(former.count if former else 0, row.count)
        num_bytes = line.at(former.num_bytes if former else 0, row.num_bytes)
        found.append(dataclasses.replace(row, count=count, num_bytes=num_bytes))
    return tuple(found)


def _flops(line: _Line, low: CountedFlops, high: CountedFlops, planned: float) -> CountedFlops:
    by_operator = {name: line.at(low.by_operator.get(name, 0), count) for name, count in high.by_operator.items()}
    return CountedFlops(sum(by_operator.values()), by_operator, planned)


def _largest(line: _Line, low: Iterable[LiveTensors], high: Iterable[LiveTensors]) -> tuple[LiveTensors, ...]:
    """Groups of tensors by owner, place and type; their shape where it is one, and the same at every depth."""
    lows, highs = _grouped(low), _grouped(high)
    found = []
    for group, members in highs.items():
        shapes = {member.shape for member in (*members, *lows.get(group, []))}
        count = line.at(
            _sum(lows.get(group, []), lambda member: member.count), _sum(members, lambda member: member.count)
        )
        num_bytes = line.at(
            _sum(lows.get(group, []), lambda member: member.num_bytes), _sum(members, lambda member: member.num_bytes)
        )
        shape = shapes.pop() if len(shapes) == 1 else ()
        found.append(dataclasses.replace(members[0], shape=shape, count=count, num_bytes=num_bytes))
    return tuple(sorted(found, key=lambda member: -member.num_bytes))


def _grouped(rows: Iterable[LiveTensors]) -> dict[tuple[str, str, str], list[LiveTensors]]:
    groups: dict[tuple[str, str, str], list[LiveTensors]] = {}
    for row in rows:
        groups.setdefault((row.owner, row.place, row.dtype), []).append(row)
    return groups


def _sum(members: Iterable[LiveTensors], value: Callable[[LiveTensors], int]) -> int:
    return sum(map(value, members))
