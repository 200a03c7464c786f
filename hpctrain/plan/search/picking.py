"""Which candidates fit, down the list of their times: bounds first, then the exact rules, as few of them as decide."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from hpctrain.config.schema import Config
from hpctrain.plan.memory.estimate import USED_AT_MOST
from hpctrain.plan.search.columns import Floats, Numbers
from hpctrain.plan.search.plainness import NOISE, is_plainer, plainness
from hpctrain.plan.search.scores import ACTIVATIONS_MOVED, Booleans, Scores
from hpctrain.plan.search.verdict import Verdict, verdict_of

_AS_LEAN = 0.02
"""What needs so little more than the least needs as little."""
_REFUSED_BEFORE_LEANEST = 3
"""Candidates that differ in micro batch and passes alone, before the leanest of them is asked for all."""
_NEAR = 0.1
"""What needs so much more than the least is as near to fitting."""
_MOST_VERDICTS, _MOST_OF_A_FORM = 24, 4
"""On runner-ups that do not fit, in all and of one form; what needs more of them is left out of the list."""


class Picking:
    """The candidates of one space, with the verdicts that were asked for."""

    def __init__(self, config: Config, scores: Scores) -> None:
        self.scores = scores
        self._config = config
        self._verdicts: dict[int, Verdict] = {}

    def __len__(self) -> int:
        return len(self.scores)

    def verdict(self, number: int) -> Verdict:
        """By the exact rules."""
        if number not in self._verdicts:
            self._verdicts[number] = verdict_of(self.scores.candidate(number).applied(self._config))
        return self._verdicts[number]

    def fits_any(self, has_headroom: bool) -> bool:
        """Whether a candidate fits; asked of what needs least first."""
        walk = _Walk(self, has_headroom, self.scores.used_shares)
        return walk.next() is not None

    def best(self, has_headroom: bool, limit: int) -> list[int]:
        """Candidates that fit, each the best of its kind, the best first; empty: none fits.

        Args:
            has_headroom: a tenth of each tier must stay free.
            limit: so many at most.
        """
        walk = _Walk(self, has_headroom, None)
        fastest = walk.next()
        if fastest is None:
            return []
        found = [self._plainest(walk, fastest)]
        walk.drop_kind_of(found[0])
        walk.is_brief = True
        while len(found) < limit and (number := walk.next()) is not None:
            found.append(number)
            walk.drop_kind_of(number)
        return found

    def _plainest(self, walk: _Walk, fastest: int) -> int:
        """Of those as fast as the fastest."""
        times_s = self.scores.times_s
        if not np.isfinite(times_s[fastest]):
            return fastest  # they are in the order of their plainness
        as_fast = np.flatnonzero(walk.alive & (times_s <= (1 + NOISE) * times_s[fastest]))
        for number in sorted(
            as_fast.tolist(), key=lambda each: (plainness(self.scores.candidate(each)), times_s[each])
        ):
            if number == fastest or (walk.alive[number] and walk.fits(number)):
                return int(number)
        raise AssertionError("the fastest is among them")

    def nearest_plainer(self, best: int, has_headroom: bool) -> Verdict | None:
        """Of data parallelism and ZeRO alone, in a lower stage than the best, what is nearest to fitting and does not."""
        scores = self.scores
        plainer = [
            self._leanest((scores.forms == form) & (scores.moved <= ACTIVATIONS_MOVED))
            for form in _numbers_in(scores.forms)
            if is_plainer(scores.candidate(int(np.argmax(scores.forms == form))), scores.candidate(best))
        ]
        for number in sorted(plainer, key=lambda each: scores.used_shares[each]):
            if not (verdict := self.verdict(number)).fits(has_headroom):
                return verdict
        return None

    def leanest_kinds(self, limit: int) -> list[int]:
        """Of each kind what needs least, as far as it is among the first of them."""
        bounds = self.scores.used_shares
        return sorted((self._leanest(among) for among in self._kinds()), key=lambda number: bounds[number])[:limit]

    def _kinds(self) -> Iterator[Booleans]:
        """Candidates of one form that move the same off the GPU."""
        kinds = self.scores.forms * 8 + self.scores.moved
        return (kinds == kind for kind in _numbers_in(kinds))

    def _leanest(self, among: Booleans) -> int:
        """Of those whose bounds are hardly more than the least share of what there is, the plainest; of these the smallest micro
        batch, which the tier that is not the shortest may need."""
        shares = np.where(among, self.scores.used_shares, np.inf)
        near = np.flatnonzero(shares <= (1 + _AS_LEAN) * shares.min())

        def order(number: int) -> tuple[float, ...]:
            candidate = self.scores.candidate(number)
            return (*plainness(candidate)[:-1], candidate.spread.micro_batch_size)

        return int(min(near.tolist(), key=order))


def nearest_kinds(pickings: Sequence[Picking], limit: int) -> list[Verdict]:
    """Of each kind what needs least: those that are near to the nearest to fitting by plainness, then the others.

    Args:
        pickings: in none of which anything fits.
        limit: so many at most.
    """
    found = [
        (plainness(picking.scores.candidate(number)), picking.verdict(number))
        for picking in pickings
        for number in picking.leanest_kinds(2 * limit)
    ]
    shares = [_used_share(verdict) for _, verdict in found]
    order = sorted(
        range(len(found)), key=lambda each: (shares[each] > (1 + _NEAR) * min(shares), found[each][0], shares[each])
    )
    return [found[each][1] for each in order[:limit]]


def _numbers_in(small: Numbers) -> list[int]:
    """Each once, rising. ``numpy.unique`` imports numpy's masked arrays, which take as long as a small search."""
    return np.flatnonzero(np.bincount(small)).tolist()


def _used_share(verdict: Verdict) -> float:
    """Of the tier that is the shortest; what breaks a rule comes behind all that does not."""
    memory, nvme = verdict.memory, verdict.nvme
    tiers = list(memory.tiers.values())
    tiers += [(nvme.bytes_per_node, nvme.capacity_bytes)] if nvme else []
    share = max((needed / capacity for needed, capacity in tiers if capacity), default=0.0)
    return share if all(problem.kind == "memory" for problem in verdict.problems) else math.inf


class _Walk:
    """Down a list; what is known not to fit is taken out."""

    def __init__(self, picking: Picking, has_headroom: bool, order: Floats | None) -> None:
        """Starts at its head.

        Args:
            picking: of the candidates.
            has_headroom: a tenth of each tier must stay free.
            order: of them; None: by time.
        """
        self._picking, self._has_headroom = picking, has_headroom
        self._scores = picking.scores
        self._used_at_most = USED_AT_MOST if has_headroom else 1.0
        self.alive = self._scores.may_fit(self._used_at_most)
        self._order = _by_time(self._scores, self.alive) if order is None else order
        self.is_brief = False
        """Few verdicts are asked for."""
        self._refused = Counter[int]()
        self._families = Counter[int]()

    def next(self) -> int | None:
        """The first one that fits; None: there is none, or it is not looked for any longer."""
        while self.alive.any() and not (self.is_brief and self._refused.total() >= _MOST_VERDICTS):
            number = int(np.argmin(np.where(self.alive, self._order, np.inf)))
            if self._scores.learn(number):
                self.alive &= self._scores.may_fit(self._used_at_most)
                continue
            if self.fits(number):
                return number
            form = int(self._scores.forms[number])
            if self.is_brief:
                self._refused[form] += 1
                if self._refused[form] == _MOST_OF_A_FORM:
                    self.alive &= self._scores.forms != form
        return None

    def fits(self, number: int) -> bool:
        """By the exact rules; where it does not, others that need as much are taken out with it."""
        if self._picking.verdict(number).fits(self._has_headroom):
            return True
        self.alive[number] = False
        all_relatives = self._scores.relatives(number)
        family = int(np.argmax(all_relatives))
        self._families[family] += 1
        if self._families[family] < _REFUSED_BEFORE_LEANEST:
            return False
        by_tier: dict[Literal["gpu", "host"], Floats] = {
            "gpu": self._scores.floors.gpu,
            "host": self._scores.floors.host,
        }
        for tier, floors in by_tier.items():
            relatives = all_relatives & self.alive
            if relatives.any() and self._is_too_large(number, tier):
                leanest = int(np.argmin(np.where(relatives, floors, np.inf)))
                if self._is_too_large(leanest, tier):
                    self.alive &= ~relatives
        return False

    def _is_too_large(self, number: int, tier: Literal["gpu", "host"]) -> bool:
        """For a GPU, or for a node's memory, with the room that must stay free."""
        needed, capacity = self._picking.verdict(number).memory.tiers[tier]
        return capacity is not None and needed > self._used_at_most * capacity

    def drop_kind_of(self, number: int) -> None:
        """Its kind has its best; what is of the same form and only moves more off the GPU is none of its own."""
        scores = self._scores
        is_same_form = scores.forms == scores.forms[number]
        self.alive &= ~(is_same_form & (scores.moved & scores.moved[number] == scores.moved[number]))


def _by_time(scores: Scores, alive: Booleans) -> Floats:
    """By time; those without one behind, by plainness."""
    order, is_known = scores.times_s.copy(), np.isfinite(scores.times_s)
    unknown = np.flatnonzero(alive & ~is_known).tolist()
    by_plainness = sorted(unknown, key=lambda each: plainness(scores.candidate(each)))
    order[by_plainness] = 1 + np.max(order, where=is_known, initial=0.0) + np.arange(len(by_plainness))
    return order
