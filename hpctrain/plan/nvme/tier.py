"""What of one rank's states is on NVMe, in which files, and the buffers in host memory through which it passes.

Source: DeepSpeed 0.19.8, runtime/swap_tensor/optimizer_utils.py, partitioned_param_swapper.py, pipelined_optimizer_swapper.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hpctrain.config.schema import ParallelismConfig
from hpctrain.plan.memory.gathering import GatherRules, most_gathered_at_once
from hpctrain.plan.memory.sub_groups import DEFAULT_SUB_GROUP_SIZE, num_kept_on_gpu, sub_group_shares
from hpctrain.plan.rank_parameters import RankParameters

_FP32 = 4
_MIN_BYTES = 2**20
"""What is smaller stays in memory. Source: runtime/swap_tensor/utils.py MIN_AIO_BYTES."""
_ALIGNED_BYTES = 1024
"""Of each thread's part of a request. Source: runtime/swap_tensor/utils.py AIO_ALIGNED_BYTES."""
STATES = 3
"""Tensors of a sub-group that stay on NVMe: the fp32 copy and Adam's two moments; the gradient comes beside them."""
PLAIN_BUFFERS, PIPELINED_BUFFERS = 4, 12
"""Of a sub-group each: the states and the gradient; and the same for what is read ahead and what is written behind.

Run with DeepSpeed 0.19.8: 10 end in «ran out of swap buffers».
"""


@dataclass(frozen=True)
class SubGroup:
    """One sub-group of the optimizer."""

    shares: tuple[int, ...]
    """Elements of this rank's share of each parameter."""
    tier: str
    """``gpu``, ``host`` or ``nvme``: where its states are kept."""

    @cached_property
    def elements(self) -> int:
        return sum(self.shares)


def num_off_nvme(num_sub_groups: int, offload_ratio: float, nvme_ratio: float) -> int:
    """The first so many sub-groups are kept off NVMe: on the GPU, then in host memory.

    >>> num_off_nvme(20, 1.0, 1.0), num_off_nvme(20, 0.5, 0.5)
    (0, 15)
    """
    on_gpu = num_kept_on_gpu(num_sub_groups, offload_ratio)
    return on_gpu + int((1 - nvme_ratio) * (num_sub_groups - on_gpu))


def tiered_sub_groups(parallelism: ParallelismConfig, parameters: RankParameters, degree: int) -> list[SubGroup]:
    """Every sub-group of one rank with the tier of its states.

    Args:
        parallelism: with its sub-group size.
        parameters: of one rank.
        degree: ranks that share each parameter.
    """
    groups = sub_group_shares(parameters, degree, parallelism.sub_group_size or DEFAULT_SUB_GROUP_SIZE)
    if parallelism.offload_optimizer == "none":
        return [SubGroup(group, "gpu") for group in groups]
    on_gpu = num_kept_on_gpu(len(groups), parallelism.offload_ratio)
    off_nvme = len(groups)
    if parallelism.offload_optimizer == "nvme":
        off_nvme = num_off_nvme(len(groups), parallelism.offload_ratio, parallelism.nvme_ratio)

    def tier(number: int, elements: int) -> str:
        if number < on_gpu:
            return "gpu"
        is_swapped = number >= off_nvme and _FP32 * elements >= smallest_swapped_bytes(parallelism)
        return "nvme" if is_swapped else "host"

    return [SubGroup(group, tier(number, sum(group))) for number, group in enumerate(groups)]


def smallest_swapped_bytes(parallelism: ParallelismConfig) -> int:
    """Tensors below it never go to NVMe."""
    return max(_MIN_BYTES, parallelism.aio.block_size)


class NvmeTier:
    """One rank's part of NVMe."""

    def __init__(self, parallelism: ParallelismConfig, parameters: RankParameters, degree: int, width: int) -> None:
        """Counts nothing yet.

        Args:
            parallelism: with its sub-group size.
            parameters: of one rank.
            degree: ranks that share each parameter.
            width: bytes of an element in the training type.
        """
        self._parallelism, self._parameters, self._degree, self._width = parallelism, parameters, degree, width
        self._smallest = smallest_swapped_bytes(parallelism)
        self.sub_groups = tiered_sub_groups(parallelism, parameters, degree)
        self._swapped = [group for group in self.sub_groups if group.tier == "nvme"]
        self.holds_parameters = parallelism.offload_param == "nvme"

    def _aligned(self, elements: int, width: int) -> int:
        """Elements of a file, or of a buffer's part, rounded up to what all threads' requests share evenly."""
        step = _ALIGNED_BYTES * self._parallelism.aio.threads // width
        return math.ceil(elements / step) * step

    @property
    def state_bytes(self) -> int:
        """Of the fp32 copy and Adam's moments."""
        return STATES * _FP32 * sum(self._aligned(group.elements, _FP32) for group in self._swapped)

    @property
    def gradient_bytes(self) -> int:
        """Of gradients between the backward pass and the step, in fp32."""
        return sum(_FP32 * self._swapped_gradient(share) for group in self._swapped for share in group.shares)

    @property
    def unswapped_gradient_bytes(self) -> int:
        """Of gradients of the same sub-groups that are too small, or the rest of an aligned part; they wait on the device."""
        return _FP32 * sum(share - self._swapped_gradient(share) for group in self._swapped for share in group.shares)

    def _swapped_gradient(self, share: int) -> int:
        """Elements of a parameter's gradient that are written; the rest beyond the alignment is not.

        Source: runtime/swap_tensor/optimizer_utils.py _adjust_for_misaligned_lengths.
        """
        step = _ALIGNED_BYTES * self._parallelism.aio.threads // _FP32
        aligned = share // step * step
        return aligned if _FP32 * aligned >= self._smallest else 0

    @property
    def parameter_bytes(self) -> int:
        """Of parameters in the training type."""
        return sum(self._width * self._aligned(share, self._width) for share in self._parameter_shares(True))

    def _parameter_shares(self, are_swapped: bool) -> Iterator[int]:
        """This rank's share of every parameter that is, or is not, on NVMe."""
        for size in (*self._parameters.matrices, *self._parameters.vectors):
            share = math.ceil(size / self._degree)
            if self._is_swapped_parameter(share) == are_swapped:
                yield share

    def _is_swapped_parameter(self, share: int) -> bool:
        return self.holds_parameters and self._width * share >= self._smallest

    @property
    def num_bytes(self) -> int:
        """Of all files, at their height."""
        return self.state_bytes + self.gradient_bytes + self.parameter_bytes

    @property
    def resident_parameters(self) -> tuple[int, int]:
        """Elements of shares too small for NVMe: on the GPU, those that stay whole there anyway, and in host memory."""
        if not self.holds_parameters:
            return 0, 0
        sizes = (*self._parameters.matrices, *self._parameters.vectors)
        small = [size for size in sizes if not self._is_swapped_parameter(math.ceil(size / self._degree))]
        threshold = self._parallelism.param_persistence_threshold
        on_gpu = sum(math.ceil(size / self._degree) for size in small if size <= threshold)
        return on_gpu, sum(math.ceil(size / self._degree) for size in small if size > threshold)

    @property
    def num_state_buffers(self) -> int:
        """Of the largest sub-group each."""
        return PIPELINED_BUFFERS if self._parallelism.pipeline_swaps else PLAIN_BUFFERS

    @property
    def state_buffer_bytes(self) -> int:
        """Locked host memory through which optimizer states pass; the engine makes it as soon as NVMe is asked for."""
        if self._parallelism.offload_optimizer != "nvme":
            return 0
        largest = max(group.elements for group in self.sub_groups)
        return self.num_state_buffers * _FP32 * self._aligned(largest, _FP32)

    @property
    def parameter_buffer_elements(self) -> int:
        """Elements of one buffer for a parameter's share; at least 1."""
        return max(self._parameter_shares(True), default=1)

    @property
    def num_parameter_buffers(self) -> int:
        """As many as parameters can be gathered at once, whose buffers stay taken, and a block's to read ahead."""
        if not self.holds_parameters:
            return 0
        parallelism = self._parallelism
        rules = GatherRules(
            num_ranks=self._degree,
            prefetch_bucket_size=parallelism.prefetch_bucket_size,
            max_live_parameters=parallelism.max_live_parameters,
            max_reuse_distance=parallelism.max_reuse_distance,
            persistence_threshold=parallelism.param_persistence_threshold,
        )
        smallest = math.ceil(self._smallest / self._width) * self._degree - self._degree + 1
        ahead = sum(self._is_swapped_parameter(math.ceil(size / self._degree)) for size in self._block())
        at_once = max(
            most_gathered_at_once(self._parameters, rules, is_recomputed, smallest) for is_recomputed in (False, True)
        )
        return max(1, at_once + ahead)

    def _block(self) -> tuple[int, ...]:
        return (*self._parameters.block_matrices, *self._parameters.block_vectors)

    @property
    def parameter_buffer_bytes(self) -> int:
        """Locked host memory of these buffers, and of one that a stepped sub-group's parameters are written from."""
        if not self.holds_parameters:
            return 0
        each = self._aligned(self.parameter_buffer_elements, self._width)
        largest = max(self.sub_groups, key=lambda group: group.elements)
        written = sum(self._aligned(share, self._width) for share in largest.shares)
        return self._width * (self.num_parameter_buffers * each + written)
