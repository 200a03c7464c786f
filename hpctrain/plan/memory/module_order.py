"""The decoder's modules in the order in which the engine visits them, once forward and once backward, with their parameters.

A deep decoder has thousands of blocks, of which the engine has few in its hands at a time: those are made when they are first
met and dropped when nothing of them is there any more. Source: hpctrain/worker/model/decoder.py.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hpctrain.plan.rank_parameters import RankParameters


@dataclass(eq=False)
class Gathering:
    """One all-gather on its way."""

    parameters: tuple[Parameter, ...]
    flat: int
    """Elements of the buffer that several parameters share; 0: there is one parameter, in a buffer of its own."""
    num_waiting: int
    """Parameters that no module has taken over yet; the shared buffer lives as long."""
    in_fp16: int = 0
    """Elements of the buffer into which int8 is turned; it lives as long, from when the gathering is waited for."""
    is_complete: bool = False


@dataclass(eq=False)
class Parameter:
    """What the engine knows of one."""

    numel: int
    buffer: int
    """Elements that it takes on the GPU where it is fetched alone."""
    is_available: bool = False
    handle: Gathering | None = None
    taken: int = 0
    """Elements that it takes now."""
    users: set[Module] = field(default_factory=set)
    queued_until: int = -1
    """Step of the last visit that the prefetcher has seen it in."""
    was_released: bool = False

    def state(self, step: int) -> Hashable:
        """What decides what becomes of it from a step on, but for what it is gathered with."""
        handle = self.handle
        buffer = None if handle is None else (handle.flat, handle.num_waiting, handle.in_fp16, handle.is_complete)
        # How long ago the prefetcher saw it is all the same.
        ahead = max(self.queued_until - step, -1)
        return self.is_available, self.taken, self.was_released, len(self.users), ahead, buffer


@dataclass(eq=False)
class Module:
    """A leaf module of the engine: its parameters are fetched and released together."""

    block: int | None
    """None: it is no block."""
    own: tuple[Parameter, ...]
    """Parameters that do not stay whole all the time."""
    numel: int
    """Elements of these, with those that do."""

    @property
    def is_idle(self) -> bool:
        """Nothing of it is gathered, on its way or in use."""
        return not any(each.is_available or each.handle or each.users for each in self.own)

    def state(self, step: int) -> Hashable:
        """Of its parameters."""
        return tuple(each.state(step) for each in self.own)


class Visited(NamedTuple):
    """One step."""

    module: Module
    is_backward: bool
    is_released: bool
    """Its parameters are, behind it."""


class ModuleOrder:
    """Steps by number, from 0."""

    def __init__(self, parameters: RankParameters, num_ranks: int, threshold: int, is_recomputed: bool) -> None:
        """Makes all modules but the blocks.

        Args:
            parameters: of one rank.
            num_ranks: that share each parameter.
            threshold: elements up to which a parameter stays whole all the time.
            is_recomputed: each block's forward runs again in the backward pass.
        """
        self._parameters, self._num_ranks, self._threshold = parameters, num_ranks, threshold
        self.num_blocks = parameters.num_blocks
        self.backward_visits = 2 if is_recomputed else 1
        token = self._made([parameters.token_table])
        tables = [Module(None, token, parameters.token_table)]
        if parameters.position_table:
            tables.append(Module(None, self._made([parameters.position_table]), parameters.position_table))
        norm = Module(None, self._made(parameters.final_norm), sum(parameters.final_norm))
        output = token if parameters.is_tied else self._made([parameters.head])
        head = Module(None, output, parameters.token_table if parameters.is_tied else parameters.head)
        decoder = Module(None, (), 0)
        self._first = [Visited(decoder, False, False), *(Visited(each, False, True) for each in tables)]
        self._turn = [Visited(norm, False, True), Visited(head, False, True), Visited(decoder, True, False)]
        self._turn += [Visited(head, True, True), Visited(norm, True, True)]
        self._last = [Visited(each, True, True) for each in reversed(tables)]
        self.others = (*tables, norm, head)
        """Modules outside of the blocks that have parameters."""
        self._is_block_empty = max(parameters.block_matrices) <= threshold
        self.blocks: dict[int, Module] = {}
        """Those that were met and are not dropped."""
        self.forward_from = len(self._first)
        """Step of the first block's forward pass; the next is that of the last block's backward pass."""
        self.backward_from = self.forward_from + self.num_blocks + len(self._turn)
        self._last_from = self.backward_from + self.backward_visits * self.num_blocks
        self.num_steps = self._last_from + len(self._last)

    def _made(self, sizes: Iterable[int]) -> tuple[Parameter, ...]:
        ranks = self._num_ranks
        return tuple(Parameter(size, math.ceil(size / ranks) * ranks) for size in sizes if size > self._threshold)

    @property
    def numel(self) -> int:
        """Elements of all parameters that do not stay whole."""
        in_blocks = sum(size for size in self._parameters.block_matrices if size > self._threshold)
        others = dict.fromkeys(each for module in self.others for each in module.own)
        return self.num_blocks * in_blocks + sum(each.numel for each in others)

    def at(self, step: int) -> Visited:
        """Which module is visited."""
        if step < self.forward_from:
            return self._first[step]
        number = step - self.forward_from
        if number < self.num_blocks:
            return Visited(self._block(number, False), False, True)
        if step < self.backward_from:
            return self._turn[number - self.num_blocks]
        if step < self._last_from:
            behind, visit = divmod(step - self.backward_from, self.backward_visits)
            return Visited(self._block(self.num_blocks - 1 - behind, True), True, visit == self.backward_visits - 1)
        return self._last[step - self._last_from]

    def _block(self, number: int, is_backward: bool) -> Module:
        """What the backward pass meets anew was dropped behind its forward pass."""
        if number not in self.blocks:
            made = Module(number, self._made(self._parameters.block_matrices), self._parameters.block)
            for each in made.own:
                each.was_released = is_backward
            self.blocks[number] = made
        return self.blocks[number]

    def past_empty_blocks(self, step: int) -> int:
        """The same step, or where all parameters of blocks stay whole the one behind them."""
        if not self._is_block_empty:
            return step
        is_in_blocks = self.forward_from <= step <= self.last_block_step(self.forward_from)
        is_in_blocks |= self.backward_from <= step <= self.last_block_step(self.backward_from)
        return self.last_block_step(step) + 1 if is_in_blocks else step

    def others_behind(self, step: int) -> Iterable[Module]:
        """Modules outside of the blocks that are visited from a step on, which is outside of the blocks too."""
        steps = [*range(self.forward_from), *range(self.forward_from + self.num_blocks, self.backward_from)]
        steps += range(self._last_from, self.num_steps)
        return (self.at(each).module for each in steps if each >= step)

    def numel_to_turn(self, block: int) -> int:
        """Elements that pass by between a block's forward pass and the beginning of the backward pass."""
        norm, head, *_ = self._turn
        return (self.num_blocks - 1 - block) * self._parameters.block + norm.module.numel + head.module.numel

    def begins_block(self, step: int) -> bool:
        """Whether a block's first visit of a pass comes."""
        if step >= self.backward_from:
            return step < self._last_from and (step - self.backward_from) % self.backward_visits == 0
        return self.forward_from <= step < self.forward_from + self.num_blocks

    def last_block_step(self, step: int) -> int:
        """Of the pass that a block's step is in, the last step that is a block's."""
        return (self._last_from if step >= self.backward_from else self.forward_from + self.num_blocks) - 1

    def steps_alike(self, step: int, reuse_distance: int) -> int:
        """Steps from a block's on whose blocks are released as those before them.

        Args:
            step: of ``begins_block``.
            reuse_distance: a block whose turn in the backward pass is farther in elements is released behind the forward pass.
        """
        if step >= self.backward_from:
            return self._last_from - step
        first_kept = bisect.bisect_left(
            range(self.num_blocks), True, key=lambda block: self.numel_to_turn(block) < reuse_distance
        )
        return max(0, self.forward_from + first_kept - step)

    def skip(self, step: int, num_steps: int) -> int:
        """Takes the blocks that are there for those visited so many steps later; returns by how many blocks.

        Args:
            step: of ``begins_block``.
            num_steps: a multiple of a block's visits in this pass.
        """
        by = num_steps if step < self.backward_from else -num_steps // self.backward_visits
        self.blocks = {number + by: module for number, module in self.blocks.items()}
        for number, module in self.blocks.items():
            module.block = number
            for each in module.own:
                each.queued_until += num_steps
        return by
