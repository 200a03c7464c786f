"""What one rank updates of each parameter group in ZeRO-1 and 2, and which ranks have most of it.

A group's parameters are laid end to end and cut into equal parts, so that a part begins and ends inside of parameters. Of each
that it touches the engine keeps the whole gradient: ranks differ by that, and by the matrix whose gradient comes to them first.
Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py get_partition_info.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

from hpctrain.plan.rank_parameters import RankParameters

_ALIGNMENT = 2
"""Elements to which each rank's share is rounded up. Source: nccl_start_alignment_factor."""


class GroupShare(NamedTuple):
    """One rank's part of one parameter group."""

    numel: int
    """Elements of the flat share, padding included; the same on every rank."""
    whole: int
    """Elements of all parameters that lie in it at least in part: their gradients are kept whole."""
    last_block: int
    """The last block that it touches; -1: none; as many as there are: the output matrix or the final norm behind them."""
    last_parameter: int
    """The last of that block's parameters in it, counted over those of the group; of no block the table, -1: nothing."""
    first_block: int = -1
    """As ``last_block``, of the first."""
    first_parameter: int = -1
    largest_part: int = 0
    """Elements of one parameter that lie in it, at most; without the token table."""
    table_part: int = 0
    """Elements of the token table that lie in it."""
    is_one_piece: bool = False
    """It lies inside of one parameter, so that its gradients are flat as they are."""


class RankShare(NamedTuple):
    """One rank's parts of matrices and of vectors."""

    groups: tuple[GroupShare, GroupShare]

    @property
    def numel(self) -> int:
        return sum(group.numel for group in self.groups)

    @property
    def whole(self) -> int:
        return sum(group.whole for group in self.groups)

    @property
    def largest_group(self) -> int:
        return max(group.numel for group in self.groups)

    @property
    def matrices(self) -> GroupShare:
        return self.groups[0]

    @property
    def last_matrix(self) -> tuple[int, int]:
        """Its last block, see ``GroupShare``, and the last matrix of that in it, from the block's first on; -1: vectors only.

        Its gradient is the first that comes.
        """
        matrices, block = self.matrices, max(group.last_block for group in self.groups)
        return block, matrices.last_parameter if matrices.last_block == block else -1


class _Group(NamedTuple):
    """One parameter group, laid end to end."""

    sizes: tuple[int, ...]
    before: tuple[int, ...]
    """Elements before each parameter, and of all at the end."""
    num_tables: int
    """Parameters before those of the blocks."""
    per_block: int
    num_blocks: int

    def numel(self, degree: int) -> int:
        return math.ceil(self.before[-1] / (_ALIGNMENT * degree)) * _ALIGNMENT

    def share(self, data_rank: int, degree: int) -> GroupShare:
        numel, total = self.numel(degree), self.before[-1]
        start, end = data_rank * numel, min((data_rank + 1) * numel, total)
        if start >= end:
            return GroupShare(numel, 0, -1, -1)
        first, last = bisect_right(self.before, start) - 1, bisect_left(self.before, end) - 1
        whole = self.before[last + 1] - self.before[first]
        parts = [min(end, self.before[first + 1]) - start, *self.sizes[first + 1 : last]]
        parts += [end - self.before[last]] if last > first else []
        in_table = parts.pop(0) if first == 0 and self.num_tables else 0
        return GroupShare(
            *(numel, whole, *self._place(last), *self._place(first)),
            largest_part=max(parts, default=0),
            table_part=in_table,
            is_one_piece=first == last and end - start == numel,
        )

    def _place(self, number: int) -> tuple[int, int]:
        """Block, and parameter of it; see ``GroupShare``."""
        behind_tables = number - self.num_tables
        return divmod(behind_tables, self.per_block) if behind_tables >= 0 else (-1, number)

    def ranks_at_borders(self, degree: int) -> set[int]:
        """Ranks whose part holds the first element of a parameter, and those behind them, whose parts lie inside of it."""
        numel = self.numel(degree)
        holders = {first // numel for first in self.before[:-1]}
        return {rank for holder in holders for rank in (holder, holder + 1) if rank < degree}


@functools.lru_cache(maxsize=64)
def _groups(parameters: RankParameters) -> tuple[_Group, _Group]:
    matrices, vectors = parameters.matrices, parameters.vectors
    num_tables = bool(parameters.token_table) + bool(parameters.position_table)
    blocks, of_matrices, of_vectors = parameters.num_blocks, parameters.block_matrices, parameters.block_vectors
    return (
        _Group(matrices, tuple(accumulate(matrices, initial=0)), num_tables, len(of_matrices), blocks),
        _Group(vectors, tuple(accumulate(vectors, initial=0)), 0, len(of_vectors), blocks),
    )


@functools.lru_cache(maxsize=4096)
def rank_share(parameters: RankParameters, data_rank: int, degree: int) -> RankShare:
    """What one rank updates.

    Args:
        parameters: of a rank of its stage and tensor-parallel part.
        data_rank: counted over the ranks that share the states.
        degree: how many these are.

    >>> parameters = RankParameters(2, (48, 16, 128, 64), (4, 4), 40, 0, 0, (4,), True)
    >>> share = rank_share(parameters, 1, 4).groups[0]
    >>> share.numel, share.whole, (share.first_block, share.first_parameter), (share.last_block, share.last_parameter)
    (138, 192, (0, 2), (0, 3))
    """
    matrices, vectors = _groups(parameters)
    return RankShare((matrices.share(data_rank, degree), vectors.share(data_rank, degree)))


@functools.lru_cache(maxsize=256)
def fullest_data_ranks(parameters: RankParameters, degree: int, is_offloaded: bool = False) -> tuple[int, ...]:
    """Ranks of which one needs most memory, whatever the step is.

    In the backward pass one needs the more the more whole gradients it keeps and the later the matrix is whose gradient comes to
    it first; in the optimizer's step its whole gradients are there.

    Args:
        parameters: of a rank of its stage and tensor-parallel part.
        degree: ranks that share the states.
        is_offloaded: the optimizer is on the host; then the GPU keeps no gradients, but copies the largest part of one.
    """
    # Vectors are left out: what a rank keeps of them is little beside a matrix.
    candidates = sorted({0, degree - 1, *_groups(parameters)[0].ranks_at_borders(degree)})
    shares = {rank: rank_share(parameters, rank, degree) for rank in candidates}
    sizes = [{rank: share.whole for rank, share in shares.items()}]
    if is_offloaded:
        sizes.append({rank: share.matrices.largest_part for rank, share in shares.items()})
        sizes.append({rank: share.matrices.table_part for rank, share in shares.items()})
    found: list[int] = []
    for size_of in sizes:
        last_matrix = (-2, -1)
        order = sorted((size_of[rank], shares[rank].last_matrix, -rank) for rank in candidates)
        for rank in (-number for _, _, number in reversed(order)):
            if shares[rank].last_matrix > last_matrix:
                found.append(rank)
                last_matrix = shares[rank].last_matrix
    return tuple(dict.fromkeys(found))
