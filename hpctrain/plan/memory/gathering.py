"""Whole parameters on one GPU in ZeRO-3: the engine's fetching, prefetching and releasing, replayed in elements.

No closed formula is known: what is prefetched and what stays depends on the sizes of the modules that follow. The replay takes
the steps of DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module,
__params_to_release) and runtime/zero/partition_parameters.py (_all_gather_sequential, _all_gather_dtype, wait), for the decoder
whose blocks are leaf modules, in its second and later steps, in which the order of modules is known.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Visit:
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


@dataclass(eq=False)
class _Parameter:
    numel: int
    buffer: int
    """Elements that it takes on the GPU where it is fetched alone."""
    is_available: bool = False
    handle: _Handle | None = None
    taken: int = 0
    """Elements that it takes now."""
    users: set[int] = field(default_factory=set)
    queued_until: int = -1
    was_released: bool = False


@dataclass(eq=False)
class _Handle:
    """One all-gather on its way."""

    parameters: tuple[_Parameter, ...]
    flat: int
    """Elements of the buffer that several parameters share; 0: there is one parameter, in a buffer of its own."""
    num_waiting: int
    """Parameters that no module has taken over yet; the shared buffer lives as long."""
    in_fp16: int = 0
    """Elements of the buffer into which int8 is turned; it lives as long, from when the handle is waited for."""
    is_complete: bool = False


@dataclass(frozen=True, eq=False)
class _Module:
    number: int
    block: int | None
    """None: it is no block."""
    direct: tuple[_Parameter, ...]
    """Parameters that belong to it and to no child."""
    direct_numel: int
    """Elements of these, with those that are never released."""
    inside: tuple[_Parameter, ...]
    """Parameters of it and of its children."""
    inside_numel: int

    @functools.cached_property
    def is_leaf(self) -> bool:
        """Its children's parameters are fetched and released with it."""
        return self.block is not None

    @functools.cached_property
    def own(self) -> tuple[_Parameter, ...]:
        """What is fetched for it."""
        return self.inside if self.is_leaf else self.direct


@functools.lru_cache(maxsize=64)
def gathered_visits(parameters: RankParameters, rules: GatherRules, is_recomputed: bool) -> tuple[Visit, ...]:
    """All modules of one micro step in the order in which they are visited.

    Args:
        parameters: of one rank.
        rules: the engine's settings.
        is_recomputed: each block's forward runs again in the backward pass.
    """
    return _Replay(parameters, rules, is_recomputed).run()


@functools.lru_cache(maxsize=64)
def most_gathered_at_once(parameters: RankParameters, rules: GatherRules, is_recomputed: bool, smallest: int) -> int:
    """Parameters of at least ``smallest`` elements that are gathered, or on their way, at once; at most."""
    replay = _Replay(parameters, rules, is_recomputed)
    replay.watch(smallest)
    replay.run()
    return replay.most_gathered


class _Replay:
    def __init__(self, parameters: RankParameters, rules: GatherRules, is_recomputed: bool) -> None:
        self._rules = rules
        self._trace = _trace(parameters, rules, is_recomputed)
        self._queue = deque(
            (parameter, step) for step, (module, _, _) in enumerate(self._trace) for parameter in module.own
        )
        self._live = 0
        own = (parameter for module, _, _ in self._trace for parameter in module.own)
        self._unreleased = sum(parameter.numel for parameter in dict.fromkeys(own))
        self._num_available = 0
        self._watched: tuple[_Parameter, ...] = ()
        self.most_gathered = 0
        """Watched parameters that were gathered, or on their way, at once."""

    def watch(self, smallest: int) -> None:
        """Counts parameters of at least so many elements."""
        own = (parameter for module, _, _ in self._trace for parameter in module.own)
        self._watched = tuple(parameter for parameter in dict.fromkeys(own) if parameter.numel >= smallest)

    def run(self) -> tuple[Visit, ...]:
        visits = []
        for step, (module, is_backward, is_released) in enumerate(self._trace):
            fetching = self._fetch(module, step)
            self._prefetch()
            visits.append(Visit(is_backward, module.block, fetching, self._live, self._unreleased))
            if self._watched:
                num_gathered = sum(1 for one in self._watched if one.is_available or one.handle)
                self.most_gathered = max(self.most_gathered, num_gathered)
            if is_released:
                self._release(module, step + 1)
        return tuple(visits)

    def _fetch(self, module: _Module, step: int) -> int:
        """Fetches what the module needs; returns the elements on the GPU at the height."""
        self._gather([parameter for parameter in module.own if not parameter.is_available and not parameter.handle])
        done, peak = [], 0
        for parameter in module.own:
            parameter.users.add(module.number)
            handle, parameter.handle = parameter.handle, None
            if handle is None:
                continue
            peak = max(peak, self._wait(handle))
            handle.num_waiting -= 1
            if handle.num_waiting == 0:
                done.append(handle)
        height = max(peak, self._live)
        self._live -= sum(handle.flat for handle in done)
        not_fetched = {id(parameter) for parameter in module.own if parameter.queued_until < step}
        while self._queue and not_fetched:
            parameter, used_at = self._queue.popleft()
            parameter.queued_until = used_at
            not_fetched.discard(id(parameter))
        return height

    def _gather(self, parameters: list[_Parameter]) -> None:
        if not parameters:
            return
        self._num_available += sum(parameter.numel for parameter in parameters)
        is_alone, int8 = len(parameters) == 1, self._rules.int8
        size = sum(parameter.buffer for parameter in parameters)
        if int8 is not None:
            handle = _Handle(
                tuple(parameters), int8.gathered(size), len(parameters), 0 if is_alone else int8.in_fp16(size)
            )
            self._live += handle.flat
        else:
            handle = _Handle(tuple(parameters), 0 if is_alone else size, len(parameters))
            self._live += size
        for parameter in parameters:
            parameter.handle = handle
            parameter.taken = parameter.buffer if is_alone and int8 is None else 0

    def _wait(self, handle: _Handle) -> int:
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
        wanted: list[_Parameter] = []
        numel = 0
        while self._queue and numel < limit:
            parameter, used_at = self._queue.popleft()
            parameter.queued_until = max(parameter.queued_until, used_at)
            if not parameter.is_available and parameter.handle is None and parameter not in wanted:
                wanted.append(parameter)
                numel += parameter.numel
        self._gather(wanted)

    def _release(self, module: _Module, step: int) -> None:
        """Frees what does not come again within the reuse distance and was not passed over by the prefetcher."""
        released = {id(parameter) for parameter in module.own if parameter.queued_until <= step}
        passed = 0
        for place in range(step, len(self._trace)):  # a slice would copy all that follows
            following = self._trace[place][0]
            if passed >= self._rules.max_reuse_distance or not released:
                break
            # The look-ahead of a leaf goes into children, that of another module does not, and so passes blocks unseen.
            released -= {id(parameter) for parameter in (following.inside if module.is_leaf else following.direct)}
            passed += following.inside_numel if module.is_leaf else following.direct_numel
        for parameter in module.own:
            parameter.users.discard(module.number)
            if id(parameter) in released and parameter.is_available and not parameter.users:
                parameter.is_available = False
                self._live -= parameter.taken
                self._num_available -= parameter.numel
                self._unreleased -= 0 if parameter.was_released else parameter.numel
                parameter.was_released = True


_Step = tuple[_Module, bool, bool]
"""A module, whether the backward pass visits it, and whether its parameters are released behind it."""


def _trace(parameters: RankParameters, rules: GatherRules, is_recomputed: bool) -> list[_Step]:
    """Modules in the order in which the decoder runs them, once forward and once backward."""

    def make(sizes: Iterable[int]) -> tuple[_Parameter, ...]:
        return tuple(
            _Parameter(size, math.ceil(size / rules.num_ranks) * rules.num_ranks)
            for size in sizes
            if size > rules.persistence_threshold
        )

    numbers = iter(range(parameters.num_blocks + 8))

    def plain(own: tuple[_Parameter, ...], numel: int) -> _Module:
        return _Module(next(numbers), None, own, numel, own, numel)

    token = make([parameters.token_table])
    tables = [plain(token, parameters.token_table)]
    if parameters.position_table:
        tables.append(plain(make([parameters.position_table]), parameters.position_table))
    blocks = [
        _Module(next(numbers), index, (), 0, make(parameters.block_matrices), parameters.block)
        for index in range(parameters.num_blocks)
    ]
    final_norm = plain(make(parameters.final_norm), sum(parameters.final_norm))
    output = token if parameters.is_tied else make([parameters.head])
    head = plain(output, parameters.token_table if parameters.is_tied else parameters.head)
    everything = tuple(parameter for module in (*tables, *blocks, head) for parameter in module.inside)
    decoder = _Module(next(numbers), None, (), 0, everything, parameters.total)
    forward: list[_Step] = [(module, False, True) for module in (*tables, *blocks, final_norm, head)]
    backward: list[_Step] = [(decoder, True, False), (head, True, True), (final_norm, True, True)]
    for block in reversed(blocks):
        backward += [(block, True, False)] * is_recomputed + [(block, True, True)]
    backward += [(module, True, True) for module in reversed(tables)]
    return [(decoder, False, False), *forward, *backward]
