"""Moments of a micro step in ZeRO-3 that differ in what is gathered and in which gradients are there.

Most blocks of a deep model are alike: what two replays say of each is put together once, and each moment named once. The
estimate of a run, of which a search makes thousands, then goes through the few that differ.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from hpctrain.plan.memory.gathering import GatherRules, gathered_visits
from hpctrain.plan.memory.gradient_buckets import Gradients, gradient_flow
from hpctrain.plan.rank_parameters import RankParameters

_Key = TypeVar("_Key", bound=Hashable)


class ForwardMoment(NamedTuple):
    """The forward pass of blocks at which the same is gathered, in elements."""

    fetching: int
    """At the height of the fetch."""
    held: int
    """While the block computes."""
    unreleased: int
    """Of parameters not given up since the micro step began; 0: not counted."""
    blocks: tuple[int, ...]
    """The two highest of them. The higher the block, the more is kept of those before it, but for the last one where block
    inputs wait on the host."""


class BackwardMoment(NamedTuple):
    """One visit of the backward pass to blocks at which the same is there, in elements."""

    fetching: int
    held: int
    waiting: int
    """Gradients in storages of their own from before."""
    computes: bool
    """The block's own backward pass comes with this visit, not only the fetch for its recomputation."""
    unreleased: int
    """See ``ForwardMoment``."""
    at_matrix: tuple[Gradients, ...]
    """See ``gradient_buckets.BlockGradients``."""
    behind: Gradients
    blocks: tuple[int, ...]
    """The two highest of them, as in the forward pass."""


class Stage3Moments(NamedTuple):
    """One micro step."""

    forward: tuple[ForwardMoment, ...]
    at_loss: tuple[int, int]
    """Elements held when the forward pass is over, and unreleased ones."""
    at_backward: tuple[int, int]
    """When the backward pass begins."""
    at_end: tuple[int, int]
    """At the last module of the backward pass."""
    backward: tuple[BackwardMoment, ...]
    before: Gradients
    """At the height of the reductions before the last block's turn."""
    end: Gradients
    """At the height of the reductions behind the first block."""


@functools.lru_cache(maxsize=256)
def stage3_moments(
    parameters: RankParameters, rules: GatherRules, is_recomputed: bool, bucket_size: int, counts_unreleased: bool
) -> Stage3Moments:
    """The moments of one micro step, from its second step on.

    Args:
        parameters: of one rank.
        rules: the engine's settings.
        is_recomputed: each block's forward runs again in the backward pass.
        bucket_size: elements of the bucket in which gradients are reduced.
        counts_unreleased: these matter; they differ from block to block, and so make many moments.
    """
    visits = gathered_visits(parameters, rules, is_recomputed)
    flow = gradient_flow(parameters, bucket_size, rules.num_ranks, 3)
    forward = [visit for visit in visits if not visit.is_backward]
    backward = [visit for visit in visits if visit.is_backward]
    visited: set[int] = set()
    of_backward: dict[tuple[int, int, bool, int, int], list[int]] = {}
    for visit in backward:
        if visit.block is not None:
            computes = visit.block in visited or not is_recomputed
            visited.add(visit.block)
            unreleased = visit.unreleased if counts_unreleased else 0
            # Blocks whose gradients meet the same bucket share what it says of them.
            same_gradients = id(flow.blocks[-1 - visit.block].at_matrix)
            key = (visit.fetching, visit.held, computes, unreleased, same_gradients)
            of_backward.setdefault(key, []).append(visit.block)
    of_forward: dict[tuple[int, int, int], list[int]] = {}
    for visit in forward:
        if visit.block is not None:
            unreleased = visit.unreleased if counts_unreleased else 0
            of_forward.setdefault((visit.fetching, visit.held, unreleased), []).append(visit.block)

    def backward_moment(key: tuple[int, int, bool, int, int], block: int) -> BackwardMoment:
        (fetching, held, computes, unreleased, _), gradients = key, flow.blocks[-1 - block]
        behind = (gradients.at_matrix, gradients.behind)
        return BackwardMoment(fetching, held, gradients.waiting, computes, unreleased, *behind, ())

    in_backward = ((backward_moment(key, blocks[0]), blocks) for key, blocks in of_backward.items())
    in_forward = ((ForwardMoment(*key, ()), blocks) for key, blocks in of_forward.items())
    return Stage3Moments(
        forward=tuple(moment._replace(blocks=blocks) for moment, blocks in _distinct(in_forward)),
        at_loss=(forward[-1].held, forward[-1].unreleased),
        at_backward=(backward[0].held, backward[0].unreleased),
        at_end=(backward[-1].held, backward[-1].unreleased),
        backward=tuple(moment._replace(blocks=blocks) for moment, blocks in _distinct(in_backward)),
        before=flow.before,
        end=flow.end,
    )


def _distinct(moments: Iterable[tuple[_Key, Iterable[int]]]) -> list[tuple[_Key, tuple[int, ...]]]:
    """Each moment once, in the order of the pass, with the two highest of its blocks."""
    blocks: dict[_Key, set[int]] = {}
    for key, found in moments:
        blocks.setdefault(key, set()).update(found)
    return [(key, tuple(sorted(found)[-2:])) for key, found in blocks.items()]
