"""When gradients of a rank's share are there in the backward pass of ZeRO-1 and 2, and what else is then.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (reduce_ipg_grads, copy_grads_in_partition).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable
from typing import NamedTuple

from hpctrain.plan.memory.gradient_buckets import BlockGradients, GradientFlow, gradient_flow
from hpctrain.plan.rank_parameters import RankParameters


class Arrivals(NamedTuple):
    """Which collectives, counted from 1, bring gradients of the rank's share."""

    first: int
    last: int
    """Of what does not stay; else no matter."""
    stay: bool
    """What they bring is kept; else it is there while one of them is dealt with."""

    def are_there(self, *counts: int) -> tuple[bool, ...]:
        """Whether some are at each moment but the first, by how many collectives there were up to it."""
        if self.stay:
            return tuple(now >= self.first for now in counts[1:])
        return tuple(before < min(now, self.last) and now >= self.first for before, now in itertools.pairwise(counts))


class BlockMoment(NamedTuple):
    """The backward pass of blocks at which the same gradients are there."""

    gradients: BlockGradients
    has_arrived: tuple[bool, ...]
    """Something of the rank's share is there: before the first matrix's gradient is handed over, then behind each."""
    blocks: tuple[int, ...]
    """The two highest of them: the higher the block the more is kept of those before it, but for the last where block inputs
    wait on the host."""


@functools.lru_cache(maxsize=256)
def block_moments(
    parameters: RankParameters, bucket: int, degree: int, stage: int, arrivals: Arrivals
) -> tuple[BlockMoment, ...]:
    """From the last block to the first, those that are alike once.

    Args:
        parameters: of one rank.
        bucket: elements in which gradients are reduced.
        degree: ranks that share the states.
        stage: 1 or 2.
        arrivals: of the rank's share; what does not stay is of an optimizer on the host.
    """
    flow = gradient_flow(parameters, bucket, degree, stage, not arrivals.stay)
    found: dict[Hashable, BlockMoment] = {}
    before = flow.starts[-1].reductions
    for number, gradients in enumerate(flow.blocks):
        block = parameters.num_blocks - 1 - number
        has_arrived = arrivals.are_there(before, *gradients.counts)
        before = gradients.counts[-1]
        key = (gradients.waiting, gradients.at_matrix, has_arrived)
        known = found.get(key)
        blocks = (block,) if known is None else tuple(sorted({*known.blocks, block})[-2:])
        found[key] = BlockMoment(gradients, has_arrived, blocks)
    return tuple(found.values())


def reductions_before(flow: GradientFlow, first_matrix: tuple[int, int]) -> int:
    """Collectives before the one that brings the first gradient of a share."""
    block, matrix = first_matrix
    if block < 0:
        # The token table comes last, behind the table of positions.
        return flow.ends[1 if matrix == 0 else 0].reductions
    if block == len(flow.blocks):
        # The output matrix, or the final norm alone.
        return flow.starts[0 if matrix >= 0 else 1].reductions
    gradients = flow.blocks[-1 - block]
    # From the last matrix to the first, then the vectors.
    return gradients.counts[-1 - max(matrix, 0)]
