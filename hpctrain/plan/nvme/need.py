"""The third tier as a run needs it: bytes on each node's NVMe, locked host memory, and the rules about both."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config.schema import HardwareConfig, ParallelismConfig
from hpctrain.errors import Problem
from hpctrain.plan.layout import Layout
from hpctrain.plan.model_shape import ModelShape
from hpctrain.plan.nvme.config import uses_nvme
from hpctrain.plan.nvme.tier import NvmeTier, smallest_swapped_bytes
from hpctrain.plan.rank_parameters import rank_parameters
from hpctrain.units import GIB, gib


@dataclass(frozen=True)
class NvmeNeed:
    """What one rank has on NVMe, at its height, and what its node has room for. Bytes."""

    folder: str
    """Below which each rank makes its own; empty: nobody states it, which is a problem of the plan."""
    ratio: float
    """Share of what leaves the GPU that goes to NVMe, where the optimizer is there; the rest is in host memory."""
    state_bytes: int
    """The fp32 copy and Adam's moments."""
    gradient_bytes: int
    """fp32 gradients, from the backward pass to the step."""
    parameter_bytes: int
    """Parameters in the training type."""
    locked_bytes: int
    """Host memory that reads and writes pass through; locked, so the limit of ``ulimit -l`` holds."""
    ranks_per_node: int
    capacity_bytes: int | None
    """Of a node; None: not stated, and looked at when the ranks start."""

    @property
    def bytes_per_rank(self) -> int:
        return self.state_bytes + self.gradient_bytes + self.parameter_bytes

    @property
    def bytes_per_node(self) -> int:
        return self.ranks_per_node * self.bytes_per_rank


def nvme_need(
    parallelism: ParallelismConfig, hardware: HardwareConfig, shape: ModelShape, layout: Layout, width: int
) -> NvmeNeed | None:
    """None: nothing is moved to NVMe.

    Args:
        parallelism: with its sub-group size and NVMe path.
        hardware: of the nodes.
        shape: the model.
        layout: the ranks.
        width: bytes of an element in the training type.
    """
    if not uses_nvme(parallelism) or parallelism.zero_stage != 3:
        return None
    tier = NvmeTier(parallelism, rank_parameters(shape, layout), layout.zero_degree, width)
    capacity = hardware.nvme_gib_per_node
    return NvmeNeed(
        folder=parallelism.nvme_path or "",
        ratio=parallelism.nvme_ratio,
        state_bytes=tier.state_bytes,
        gradient_bytes=tier.gradient_bytes,
        parameter_bytes=tier.parameter_bytes,
        locked_bytes=tier.state_buffer_bytes + tier.parameter_buffer_bytes,
        ranks_per_node=layout.gpus_per_node,
        capacity_bytes=None if capacity is None else int(capacity * GIB),
    )


def room_problem(need: NvmeNeed, free_bytes: int, place: str) -> Problem | None:
    """What is short on one node; of kind ``memory``, like the other tiers.

    Args:
        need: of the plan.
        free_bytes: for all ranks of a node together.
        place: whose room it is, for the message.
    """
    if need.bytes_per_node <= free_bytes:
        return None
    parts = {"optimizer states": need.state_bytes, "gradients": need.gradient_bytes, "parameters": need.parameter_bytes}
    told = ", ".join(f"{name} {gib(each * need.ranks_per_node)}" for name, each in parts.items() if each)
    rule = f"estimated need of {need.ranks_per_node} ranks ({told}); {place} has {gib(free_bytes)}"
    rule += f", short by {gib(need.bytes_per_node - free_bytes)}"
    fix = (
        "more nodes, a smaller parallelism.nvme_ratio, parallelism.offload_param=cpu, or another parallelism.nvme_path"
    )
    return Problem("memory.nvme", gib(need.bytes_per_node), rule, fix, kind="memory")


def nvme_problems(parallelism: ParallelismConfig, hardware: HardwareConfig, need: NvmeNeed | None) -> list[Problem]:
    """What an offload to NVMe wants from the other keys and from the hardware."""
    problems = []

    def add(key: str, rule: str, fix: str) -> None:
        value = getattr(parallelism, key)
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        problems.append(Problem(f"parallelism.{key}", text, rule, fix))

    moved = [f"{name}=nvme" for name in ("offload_optimizer", "offload_param") if getattr(parallelism, name) == "nvme"]
    optimizer, stage = parallelism.offload_optimizer, parallelism.zero_stage
    if optimizer == "nvme" and stage != 3:
        rule = f"needs ZeRO stage 3, here it is {stage}: below it DeepSpeed moves states to host memory alone"
        add("offload_optimizer", rule, "set parallelism.zero_stage=3, or offload_optimizer=cpu")
    if parallelism.nvme_ratio < 1 and optimizer != "nvme":
        rule = f"is a share of what offload_optimizer=nvme moves, and that is {optimizer}"
        add("nvme_ratio", rule, "add parallelism.offload_optimizer=nvme, or leave it out")
    if parallelism.offload_param == "nvme" and (parallelism.offload_ratio < 1 or parallelism.fit_offload_ratio):
        rule = (
            "keeps no optimizer state on the GPU: DeepSpeed makes the fp32 copies of parameters on NVMe in host memory"
        )
        kept = "fit_offload_ratio=false" if parallelism.fit_offload_ratio else "offload_ratio=1"
        add("offload_param", rule, f"set parallelism.offload_param=cpu, or parallelism.{kept}")
    if parallelism.offload_param == "nvme" and parallelism.hpz_partition_size > 1:
        rule = (
            f"does not go with hpz_partition_size={parallelism.hpz_partition_size}, whose second partition is in memory"
        )
        add("offload_param", rule, "set parallelism.hpz_partition_size=1")
    if moved and parallelism.nvme_path is None:
        rule = f"{' and '.join(moved)} needs a folder on each node's own NVMe, and hardware={hardware.name} states none"
        add("nvme_path", rule, "set parallelism.nvme_path=/FOLDER, or hardware.nvme_path")
    elif parallelism.nvme_path is not None and not parallelism.nvme_path.startswith("/"):
        path = parallelism.nvme_path
        fix = (
            f"set parallelism.nvme_path=/{path}"
            if path[0] not in "$~."
            else "write it out: no shell reads it on the nodes"
        )
        add("nvme_path", "must be absolute: each node looks for it", fix)
    if need is not None and need.capacity_bytes is not None:
        short = room_problem(need, need.capacity_bytes, f"a node's NVMe (hardware={hardware.name})")
        problems += [short] if short else []
    return problems


def nvme_warnings(parallelism: ParallelismConfig, need: NvmeNeed | None) -> list[str]:
    """Where nothing is moved to NVMe though keys speak of it, or nothing is large enough."""
    if need is None:
        stated = {"nvme_path": parallelism.nvme_path is not None, "aio": parallelism.aio != type(parallelism.aio)()}
        where = f"offload_optimizer={parallelism.offload_optimizer}, offload_param={parallelism.offload_param}"
        idle = [key for key, is_stated in stated.items() if is_stated]
        return [f"parallelism.{key} has no effect: nothing is on NVMe ({where})" for key in idle]
    least = smallest_swapped_bytes(parallelism)
    parts = {"offload_optimizer": need.state_bytes, "offload_param": need.parameter_bytes}
    return [
        f"parallelism.{name}=nvme moves nothing: no piece of a rank has {least:,} bytes, below which DeepSpeed keeps it in memory"
        for name, num_bytes in parts.items()
        if getattr(parallelism, name) == "nvme" and num_bytes == 0
    ]


def nvme_notes(need: NvmeNeed | None) -> list[str]:
    """What is on NVMe, a node."""
    if need is None:
        return []
    parts = {"optimizer states": need.state_bytes, "gradients": need.gradient_bytes, "parameters": need.parameter_bytes}
    told = ", ".join(f"{name} {gib(each * need.ranks_per_node)}" for name, each in parts.items() if each)
    return [f"on NVMe of each node {gib(need.bytes_per_node)} at the height ({told or 'nothing'})"]
