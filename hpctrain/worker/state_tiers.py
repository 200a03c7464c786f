"""What DeepSpeed's engine is told of NVMe before it is built, beyond its configuration."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import Any

from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime.swap_tensor.partitioned_param_swapper import AsyncPartitionedParameterSwapper as ParameterSwapper
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3

from hpctrain.plan.nvme.need import NvmeNeed
from hpctrain.plan.nvme.tier import num_off_nvme
from hpctrain.plan.run_plan import RunPlan
from hpctrain.worker.end_reasons import RankEnvironmentError


def prepare_tiers(plan: RunPlan) -> None:
    """Changes the engine's classes for all engines that this process builds; without NVMe nothing."""
    if plan.nvme is None:
        return
    _keep_first_off_nvme(plan.nvme)
    _write_shares(plan.layout.zero_degree)


def require_async_io(plan: RunPlan) -> None:
    """Whether DeepSpeed can compile its reads and writes of NVMe here; asked before it takes minutes, or of what it needs.

    Raises:
        RankEnvironmentError: there is no libaio to compile against.
    """
    if plan.nvme is None:
        return
    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise RankEnvironmentError(
            f"node {platform.node()}: libaio's headers are missing, with which DeepSpeed compiles its reads and writes of NVMe;"
            " install libaio-dev (Debian, Ubuntu) or libaio-devel (Red Hat, SUSE) on every node, or into the image"
        )
    print(
        "hpctrain: DeepSpeed's reads and writes of NVMe are compiled where env.TORCH_EXTENSIONS_DIR, a node-local folder that"
        " stays between runs, does not hold them yet: minutes on a busy node",
        flush=True,
    )


def _write_shares(num_ranks: int) -> None:
    """Makes the buffer that stepped parameters are written from as large as a rank's shares.

    DeepSpeed 0.19.8 asks for the parameters' whole sizes (stage3.py ``_create_fp16_partitions_with_defragmentation`` takes
    ``ds_numel`` of parameters, not of their partitions), as many times too much as there are ranks.
    """
    reserve = ParameterSwapper.reserve_partitioned_swap_space

    def reserve_shares(self: Any, sizes: Sequence[int]) -> None:
        reserve(self, [math.ceil(size / num_ranks) for size in sizes])

    ParameterSwapper.reserve_partitioned_swap_space = reserve_shares


def _keep_first_off_nvme(need: NvmeNeed) -> None:
    """Keeps the first sub-groups off NVMe.

    DeepSpeed 0.19.8 asks one method whether a sub-group is on NVMe (stage3.py ``_swappable_optimizer_subgroup``), which looks at
    its size alone, so that those of the GPU's share would be stepped there with tensors that are on NVMe. All else follows from
    the answer: what is not on NVMe is treated as with ``offload_optimizer=cpu``, by its ratio.
    """
    by_size = Stage3._swappable_optimizer_subgroup

    def is_on_nvme(self: Any, sub_group_id: int) -> bool:
        if not self.swap_optimizer:
            return False
        num_off = num_off_nvme(len(self.fp16_partitioned_groups_flat), self.partial_offload, need.ratio)
        answer: bool = sub_group_id >= num_off and by_size(self, sub_group_id)
        return answer

    Stage3._swappable_optimizer_subgroup = is_on_nvme
