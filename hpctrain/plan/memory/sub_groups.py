"""The optimizer's sub-groups in ZeRO stage 3: how the engine forms them, and how many it moves to the host."""

from __future__ import annotations

import dataclasses
import functools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from hpctrain.config.schema import ParallelismConfig
from hpctrain.errors import Problem
from hpctrain.plan.layout import Layout
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.rank_parameters import RankParameters, rank_parameters

DEFAULT_SUB_GROUP_SIZE = 1_000_000_000
"""Elements of one rank. Source: DeepSpeed 0.19.8, runtime/zero/config.py."""
NVME_SUB_GROUP_SIZE = 100_000_000
"""The same where states pass through host memory on their way to NVMe, in up to 12 buffers of a sub-group: 4.8 GB. A choice."""
_MOST_SUB_GROUPS = 64
"""Each is a step of the optimizer of its own; a ratio needs few, see ``choose_sub_group_size``."""
_NEAR, _FAR = 0.01, 0.05
"""Of a rank's optimizer state: a share as near as this is taken at once, one as far as this is refused."""


def sub_groups(parameters: RankParameters, degree: int, size: int) -> list[int]:
    """Elements of every sub-group of one rank, in the engine's order.

    A rank has 1 / degree of every parameter, rounded up. Parameters are taken whole until a sub-group has ``size`` elements or
    more; those with weight decay (matrices) and those without are taken apart.
    Source: DeepSpeed 0.19.8, runtime/zero/stage3.py _create_fp16_sub_groups.

    >>> parameters = RankParameters(2, (48, 16, 128, 64), (4, 4), 40, 0, 0, (4,), True)
    >>> sub_groups(parameters, 2, 100)
    [116, 128, 32, 10]
    """
    return list(_sums(parameters, degree, size))


@functools.lru_cache(maxsize=512)
def _sums(parameters: RankParameters, degree: int, size: int) -> tuple[int, ...]:
    return tuple(
        before[end] - before[start] for _, before in _shares(parameters, degree) for start, end in _cuts(before, size)
    )


@functools.lru_cache(maxsize=64)
def sub_group_shares(parameters: RankParameters, degree: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The same, parameter by parameter: elements of this rank's share of each."""
    return tuple(
        shares[start:end] for shares, before in _shares(parameters, degree) for start, end in _cuts(before, size)
    )


@functools.lru_cache(maxsize=64)
def _shares(parameters: RankParameters, degree: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Of matrices and of vectors a rank's share of each, and the sums of those before each, with the sum of all at the end."""
    kinds = (parameters.matrices, parameters.vectors)
    of_kinds = (tuple(-(-elements // degree) for elements in kind) for kind in kinds)
    return tuple((shares, tuple(accumulate(shares, initial=0))) for shares in of_kinds)


def _cuts(before: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Where sub-groups begin and end, given the sums of the shares before each parameter."""
    start, number = 0, len(before) - 1
    while start < number:
        end = min(number, bisect_left(before, before[start] + size, start + 1))
        yield start, end
        start = end


def num_kept_on_gpu(num_sub_groups: int, ratio: float) -> int:
    """The first so many sub-groups stay on the GPU; the engine's own expression (stage3.py _create_fp32_partitions)."""
    return int((1 - ratio) * num_sub_groups)


def host_share(parameters: RankParameters, degree: int, size: int, ratio: float) -> float:
    """Share of a rank's optimizer state that is on the host, from 0 to 1.

    >>> parameters = RankParameters(2, (48, 16, 128, 64), (4, 4), 40, 0, 0, (4,), True)
    >>> round(host_share(parameters, 2, 100, 0.5), 3), host_share(parameters, 2, 10**9, 0.8)
    (0.147, 1.0)
    """
    groups = sub_groups(parameters, degree, size)
    return sum(groups[num_kept_on_gpu(len(groups), ratio) :]) / sum(groups)


def choose_sub_group_size(
    parameters: RankParameters, degree: int, ratio: float, most: int = DEFAULT_SUB_GROUP_SIZE
) -> int:
    """Size, in elements of one rank, with which the host gets that share: the largest that comes near it, or the nearest.

    With the engine's default most ranks have two sub-groups, the matrices and the vectors, and the host gets all or nothing.

    Args:
        parameters: of one rank.
        degree: ranks that share each parameter.
        ratio: the share that is asked for.
        most: larger ones are not taken.
    """
    (_, before), _ = _shares(parameters, degree)
    total = before[-1]
    fewest = -(-total // most)
    best, least = 0, math.inf
    for number in range(fewest, fewest + _MOST_SUB_GROUPS):
        size = -(-total // number)
        error = abs(host_share(parameters, degree, size, ratio) - ratio)
        if error <= _NEAR:
            return size
        if error < least:
            best, least = size, error
    return best


def with_sub_group_size(parallelism: ParallelismConfig, shape: ModelShape, layout: Layout) -> ParallelismConfig:
    """The same with ``sub_group_size`` filled in."""
    if parallelism.sub_group_size is not None:
        return parallelism
    size = most = DEFAULT_SUB_GROUP_SIZE if parallelism.offload_optimizer != "nvme" else NVME_SUB_GROUP_SIZE
    if parallelism.zero_stage == 3 and (parallelism.offload_ratio < 1 or parallelism.nvme_ratio < 1):
        parameters = rank_parameters(shape, layout)
        if parallelism.nvme_ratio < 1:
            # Whole sub-groups go to either tier: with twenty of them a share is met within 5 %.
            most = min(most, -(-parameters.partition(layout.zero_degree) // 20))
        size = choose_sub_group_size(parameters, layout.zero_degree, parallelism.offload_ratio, most)
    return dataclasses.replace(parallelism, sub_group_size=size)


def sub_group_notes(
    stated: ParallelismConfig, parallelism: ParallelismConfig, shape: ModelShape, layout: Layout
) -> list[str]:
    """What was chosen for a ratio, in one sentence.

    Args:
        stated: as configured.
        parallelism: as filled in.
        shape: the model.
        layout: the ranks.
    """
    size, ratio = parallelism.sub_group_size, parallelism.offload_ratio
    if stated.sub_group_size is not None or size is None or parallelism.zero_stage != 3 or ratio == 1:
        return []
    if parallelism.offload_optimizer == "none":
        return []  # all of it fits
    parameters, degree = rank_parameters(shape, layout), layout.zero_degree
    num_groups = len(sub_groups(parameters, degree, size))
    on_host = num_groups - num_kept_on_gpu(num_groups, ratio)
    share = host_share(parameters, degree, size, ratio)
    return [
        f"parallelism.sub_group_size not stated: {size:,}; of {num_groups} sub-groups {on_host} are on the host,"
        f" {share:.1%} of the optimizer's state"
    ]


def sub_group_problems(parallelism: ParallelismConfig, shape: ModelShape, layout: Layout) -> list[Problem]:
    """Where the host would get another share than ``offload_ratio`` asks for; whole sub-groups are moved."""
    size, ratio = parallelism.sub_group_size, parallelism.offload_ratio
    if size is None or parallelism.zero_stage != 3 or parallelism.offload_optimizer == "none" or ratio == 1:
        return []
    parameters, degree = rank_parameters(shape, layout), layout.zero_degree
    share = host_share(parameters, degree, size, ratio)
    if abs(share - ratio) <= _FAR:
        return []
    groups = sub_groups(parameters, degree, size)
    rule = (
        f"keeps int((1 - {ratio:g}) x {len(groups)}) = {num_kept_on_gpu(len(groups), ratio)} of {len(groups)} sub-groups of"
        f" {min(groups):,} to {max(groups):,} elements on the GPU with parallelism.sub_group_size={size}, so {share:.1%} of"
        f" the optimizer's state leave it"
    )
    best = choose_sub_group_size(parameters, degree, ratio)
    reached = host_share(parameters, degree, best, ratio)
    fix = f"leave parallelism.sub_group_size out, or set parallelism.sub_group_size={best}: {reached:.1%}"
    if abs(reached - ratio) > _FAR:
        fix = f"whole matrices are moved: nearest {reached:.2f}, with parallelism.sub_group_size={best}"
    return [Problem("parallelism.offload_ratio", f"{ratio:g}", rule, fix)]
