"""Whole parameters on one GPU in ZeRO-3: the engine's fetching, prefetching and releasing, replayed in elements.

No closed formula is known: what is prefetched and what stays depends on the sizes of the modules that follow. The replay takes
the steps of DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module,
__params_to_release) and runtime/zero/partition_parameters.py (_all_gather_sequential, _all_gather_dtype, wait), for the decoder
whose blocks are leaf modules, in its second and later steps, in which the order of modules is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from hpctrain.plan.memory.module_order import Gathering, Module, ModuleOrder, Parameter
from hpctrain.plan.rank_parameters import RankParameters


@dataclass(frozen=True)
class Int8:
    """Gathering in int8, with sizes in elements of the training type.

    What comes as int8 is turned into fp16 at once, in a buffer that lives as long as the gathered one, and each parameter copied
    out of it in fp16, then, where that is another type, in the training type. Left out: scales, one for up to 16,000 elements.
    Source: runtime/zero/partition_parameters.py (_all_gather_coalesced, _all_gather_sequential, AllGatherCoalescedHandle.wait).
    """

    bytes_per_element: int
    """Of the training type."""
    is_fp16: bool

    def gathered(self, numel: int) -> int:
        """Of so many elements in int8."""
        return math.ceil(numel / self.bytes_per_element)

    def in_fp16(self, numel: int) -> int:
        """The same in fp16."""
        return math.ceil(2 * numel / self.bytes_per_element)

    def scratch(self, numel: int) -> int:
        """Of a parameter in fp16 while it is made in the training type."""
        return 0 if self.is_fp16 else self.in_fp16(numel)


@dataclass(frozen=True)
class GatherRules:
    """The engine's settings, in elements."""

    num_ranks: int
    prefetch_bucket_size: int
    max_live_parameters: int
    max_reuse_distance: int
    persistence_threshold: int
    int8: Int8 | None = None
    """How parameters are gathered as int8; None: they are gathered in the training type."""


class Visit(NamedTuple):
    """Elements gathered on the GPU when one module's turn comes."""

    is_backward: bool
    block: int | None
    """None: a module outside of the blocks."""
    fetching: int
    """At the height of the fetch: flat buffers beside what is copied out of them."""
    held: int
    """While the module computes, prefetched parameters included."""
    unreleased: int
    """Of parameters that may be given up those that have not been since the micro step began, gathered or not."""


@functools.lru_cache(maxsize=64)
def gathered_visits(parameters: RankParameters, rules: GatherRules, is_recomputed: bool) -> tuple[Visit, ...]:
    """All modules of one micro step in the order in which they are visited.

    Args:
        parameters: of one rank.
        rules: the engine's settings.
        is_recomputed: each block's forward runs again in the backward pass.
    """
    return Replay(parameters, rules, is_recomputed).run()


@functools.lru_cache(maxsize=64)
def most_gathered_at_once(parameters: RankParameters, rules: GatherRules, is_recomputed: bool, smallest: int) -> int:
    """Parameters of at least ``smallest`` elements that are gathered, or on their way, at once; at most."""
    replay = Replay(parameters, rules, is_recomputed)
    replay.smallest_watched = smallest
    replay.run()
    return replay.most_gathered


class _Anchor(NamedTuple):
    """A block's turn against which later ones are held."""

    step: int
    state: tuple[Hashable, ...]
    num_visits: int
    unreleased: int
    patience: int
    """Turns after which another takes its place."""


class Replay:
    """One micro step."""

    def __init__(self, parameters: RankParameters, rules: GatherRules, is_recomputed: bool, skips: bool = True) -> None:
        """Starts before the first module.

        Args:
            parameters: of one rank.
            rules: the engine's settings.
            is_recomputed: each block's forward runs again in the backward pass.
            skips: blocks at which the same happens as at some before them are not replayed one by one. The result is the same.
        """
        self._rules, self._skips, self._is_skipping = rules, skips, skips
        self._order = ModuleOrder(parameters, rules.num_ranks, rules.persistence_threshold, is_recomputed)
        self._queued = (0, 0)
        """The prefetcher has looked at all before this step and this place among its module's parameters."""
        self._live = 0
        self._unreleased = self._order.numel
        self._num_available = 0
        self._anchor: _Anchor | None = None
        self._turns_since = 0
        self.smallest_watched: int | None = None
        """Elements from which on parameters are counted; None: none is."""
        self.most_gathered = 0
        """Watched parameters that were gathered, or on their way, at once."""

    def run(self) -> tuple[Visit, ...]:
        visits: list[Visit] = []
        step = 0
        while step < self._order.num_steps:
            step = self._skipped(step, visits)
            module, is_backward, is_released = self._order.at(step)
            fetching = self._fetch(module, step)
            self._prefetch()
            visits.append(Visit(is_backward, module.block, fetching, self._live, self._unreleased))
            if self.smallest_watched is not None:
                self._watch(self.smallest_watched)
            if is_released:
                self._release(module, is_backward, step + 1)
            step += 1
        return tuple(visits)

    def _watch(self, smallest: int) -> None:
        modules = (*self._order.others, *self._order.blocks.values())
        known = {each for module in modules for each in module.own if each.numel >= smallest}
        num_gathered = sum(1 for each in known if each.is_available or each.handle)
        self.most_gathered = max(self.most_gathered, num_gathered)

    def _fetch(self, module: Module, step: int) -> int:
        """Fetches what the module needs; returns the elements on the GPU at the height."""
        self._gather([parameter for parameter in module.own if not parameter.is_available and not parameter.handle])
        done, peak = [], 0
        for parameter in module.own:
            parameter.users.add(module)
            handle, parameter.handle = parameter.handle, None
            if handle is None:
                continue
            peak = max(peak, self._wait(handle))
            handle.num_waiting -= 1
            if handle.num_waiting == 0:
                done.append(handle)
        height = max(peak, self._live)
        self._live -= sum(handle.flat for handle in done)
        not_fetched = {parameter for parameter in module.own if parameter.queued_until < step}
        while not_fetched and (queued := self._next_queued()) is not None:
            parameter, used_at = queued
            parameter.queued_until = used_at
            not_fetched.discard(parameter)
        return height

    def _next_queued(self) -> tuple[Parameter, int] | None:
        """A parameter that comes again, and at which step; None: none comes any more."""
        step, place = self._queued
        while (step := self._order.past_empty_blocks(step)) < self._order.num_steps:
            own = self._order.at(step).module.own
            if place < len(own):
                # Not behind it: a block that was dropped would be made anew.
                self._queued = (step, place + 1) if place + 1 < len(own) else (step + 1, 0)
                return own[place], step
            step, place = step + 1, 0
        self._queued = (step, 0)
        return None

    def _gather(self, parameters: list[Parameter]) -> None:
        if not parameters:
            return
        self._num_available += sum(parameter.numel for parameter in parameters)
        is_alone, int8 = len(parameters) == 1, self._rules.int8
        size = sum(parameter.buffer for parameter in parameters)
        if int8 is not None:
            handle = Gathering(
                tuple(parameters), int8.gathered(size), len(parameters), 0 if is_alone else int8.in_fp16(size)
            )
            self._live += handle.flat
        else:
            handle = Gathering(tuple(parameters), 0 if is_alone else size, len(parameters))
            self._live += size
        for parameter in parameters:
            parameter.handle = handle
            parameter.taken = parameter.buffer if is_alone and int8 is None else 0

    def _wait(self, handle: Gathering) -> int:
        """Parameters that share a buffer are copied out of it, all at once; returns the elements at the height."""
        if handle.is_complete:
            return 0
        handle.is_complete = True
        self._live += handle.in_fp16
        handle.flat += handle.in_fp16
        peak, int8 = 0, self._rules.int8
        for parameter in handle.parameters:
            parameter.is_available = True
            if handle.flat:
                parameter.taken = parameter.numel
                self._live += parameter.numel
                peak = max(peak, self._live + (int8.scratch(parameter.numel) if int8 is not None else 0))
        return peak

    def _prefetch(self) -> None:
        """Takes parameters while their sum is below the limit: the last one may pass it by far."""
        limit = min(
            self._rules.max_live_parameters - self._num_available,
            self._rules.prefetch_bucket_size,
        )
        wanted: list[Parameter] = []
        numel = 0
        while numel < limit and (queued := self._next_queued()) is not None:
            parameter, used_at = queued
            parameter.queued_until = max(parameter.queued_until, used_at)
            if not parameter.is_available and parameter.handle is None and parameter not in wanted:
                wanted.append(parameter)
                numel += parameter.numel
        self._gather(wanted)

    def _release(self, module: Module, is_backward: bool, step: int) -> None:
        """Frees what does not come again within the reuse distance and was not passed over by the prefetcher."""
        soon = self._coming_soon(module, is_backward, step)
        for parameter in module.own:
            parameter.users.discard(module)
            is_wanted = parameter in soon or parameter.queued_until > step or bool(parameter.users)
            if parameter.is_available and not is_wanted:
                parameter.is_available = False
                self._live -= parameter.taken
                self._num_available -= parameter.numel
                self._unreleased -= 0 if parameter.was_released else parameter.numel
                parameter.was_released = True
        if module.block is not None and module.is_idle and all(each.queued_until < step for each in module.own):
            del self._order.blocks[module.block]

    def _coming_soon(self, module: Module, is_backward: bool, step: int) -> set[Parameter]:
        """What is visited again from a step on before so many elements have passed as the reuse distance has.

        The look-ahead of a block goes into children, so that it meets every block at the turn, where the whole decoder is
        visited; that of another module does not, and passes blocks unseen.
        """
        most = self._rules.max_reuse_distance
        if module.block is not None:
            is_soon = not is_backward and self._order.numel_to_turn(module.block) < most
            return set(module.own) if is_soon else set()
        passed, soon = 0, set[Parameter]()
        for following in self._order.others_behind(step):
            if passed >= most:
                break
            soon.update(following.own)
            passed += following.numel
        return soon

    def _skipped(self, step: int, visits: list[Visit]) -> int:
        """The step to go on with: where all is as it was at a block before, what came since comes again, block by block."""
        if step == self._order.backward_from:
            self._anchor, self._is_skipping = None, self._skips
        if not self._is_skipping or not self._order.begins_block(step):
            return step
        anchor = self._anchor_met(step, len(visits))
        if anchor is None:
            return step
        self._is_skipping = False  # behind the skipped ones nothing comes as often
        period, ahead = step - anchor.step, self._queued_ahead(step)
        alike = self._order.steps_alike(step, self._rules.max_reuse_distance)
        if ahead is not None:
            alike = min(alike, self._order.last_block_step(step) - step - ahead)
        times = alike // period
        if times < 1:
            return step
        blocks = self._order.skip(step, times * period) // times
        released = self._unreleased - anchor.unreleased
        again = visits[anchor.num_visits :]
        for time in range(1, times + 1):
            for is_backward, block, fetching, held, unreleased in again:
                assert block is not None, "between two blocks of a pass there are blocks alone"
                visits.append(Visit(is_backward, block + time * blocks, fetching, held, unreleased + time * released))
        self._unreleased += times * released
        if ahead is not None:
            self._queued = (self._queued[0] + times * period, self._queued[1])
        return step + times * period

    def _queued_ahead(self, step: int) -> int | None:
        """By how many steps the prefetcher looks ahead; None: it has seen all blocks of this pass, and waits behind them."""
        queued = self._queued[0]
        return queued - step if queued <= self._order.last_block_step(step) else None

    def _anchor_met(self, step: int, num_visits: int) -> _Anchor | None:
        """The turn before at which all was as it is.

        Each anchor is kept twice as long as the one before it, so that a cycle of any length is found behind any beginning.
        Source: Brent 1980, An improved Monte Carlo factorization algorithm (BIT 20, 176 to 184).
        """
        anchor = self._anchor
        self._turns_since += 1
        if anchor is not None and all(now == then for now, then in zip_longest(self._state(step), anchor.state)):
            return anchor
        if anchor is None or self._turns_since == anchor.patience:
            patience = 1 if anchor is None else 2 * anchor.patience
            self._anchor = _Anchor(step, tuple(self._state(step)), num_visits, self._unreleased, patience)
            self._turns_since = 0
        return None

    def _state(self, step: int) -> Iterator[Hashable]:
        """All that decides what comes: each parameter as it is, blocks and steps by their distance."""
        handles: dict[Gathering | None, int] = {}
        ahead = self._queued_ahead(step)
        yield self._live, self._num_available, ahead, self._queued[1], self._queued[0] if ahead is None else 0
        here = self._order.at(step).module.block or 0
        for module in (*self._order.others, *self._order.blocks.values()):
            yield None if module.block is None else module.block - here
            yield module.state(step)
            yield tuple(handles.setdefault(each.handle, len(handles)) for each in module.own)
