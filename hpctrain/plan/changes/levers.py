"""What of a configuration can be changed so that it needs less memory: one lever a kind, its settings from mild to strong.

A setting is stated values by dotted key. Only what the keys may be is known here; whether a setting keeps the rules, and whether
it fits, is asked of the plan. The global batch that is stated, or that a stated micro batch gives, is held.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpctrain.config.schema import Config
from hpctrain.plan.divisors import divisors
from hpctrain.plan.memory.loss_chunks import loss_chunk_size
from hpctrain.plan.rules.capacity import may_use_host
from hpctrain.plan.rules.compile import recomputation_modes
from hpctrain.plan.run_plan import RunPlan

Values = dict[str, Any]
"""Dotted key to what it is set to."""

MICRO, ACCUMULATION = "training.micro_batch_size", "training.gradient_accumulation_steps"
GLOBAL_BATCH = "training.global_batch_size"
CHECKPOINTING = "training.activation_checkpointing"
STAGE, OPTIMIZER, PARAMETERS = (f"parallelism.{name}" for name in ("zero_stage", "offload_optimizer", "offload_param"))
STAGE_KIND, PIPELINE_KIND = "ZeRO stage", "pipeline parallel"
_SMALL_CHUNK = 1024
_RATIO_STEPS = 10


@dataclass(frozen=True)
class Lever:
    """One kind of change."""

    kind: str
    settings: tuple[Values, ...]
    """From the mildest to the strongest; at least one."""
    unpriced: str = ""
    """Why the predicted step does not know what the change costs; empty: it does."""


def with_values(config: Config, values: Values) -> Config:
    """The configuration with other values; a key is of one section, or of none."""
    sections: dict[str, Values] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    plain = sections.pop("", {})
    changed = {name: dataclasses.replace(getattr(config, name), **own) for name, own in sections.items()}
    return dataclasses.replace(config, **plain, **changed)


def levers(config: Config, plan: RunPlan) -> list[Lever]:
    """All levers of a configuration but the number of nodes, the least invasive first.

    Args:
        config: what its plan was built from.
        plan: short of memory, and of nothing else.
    """
    return [
        *_recomputation(config),
        *_loss_chunks(plan),
        *_micro_batch(config, plan),
        *_second_partition(config),
        *_stage(config),
        *_host_activations(config),
        *_host_optimizer(config),
        *_host_parameters(config),
        *_back_to_the_gpu(config),
        *_unpinned(config),
        *_degrees(config, plan),
        *_nvme(config),
        *_fewer_ranks(config, plan),
    ]


def _recomputation(config: Config) -> Iterator[Lever]:
    """Where the plan chooses it, all of it has been tried."""
    stated = config.training.activation_checkpointing
    if stated in (None, "full"):
        return
    modes = recomputation_modes(dataclasses.replace(config.training, activation_checkpointing=None))
    after = modes[modes.index(stated) + 1 :] if stated in modes else ("full",)
    yield Lever("recomputation", tuple({CHECKPOINTING: mode} for mode in after))


def _loss_chunks(plan: RunPlan) -> Iterator[Lever]:
    tokens = plan.batch.micro_batch_size * plan.batch.seq_len // plan.layout.sequence_parallel_size
    now = plan.loss_chunk_size or tokens
    chosen = loss_chunk_size(None, plan.model, tokens)
    sizes = [size for size in dict.fromkeys((chosen, _SMALL_CHUNK)) if 0 < size < now]
    if sizes:
        yield Lever("loss chunks", tuple({"training.loss_chunk_size": size} for size in sizes))


def _micro_batch(config: Config, plan: RunPlan) -> Iterator[Lever]:
    """Divisors of the stated one, with as much more accumulation."""
    stated = config.training.micro_batch_size
    if stated is None or stated == 1:
        return
    smaller = [size for size in reversed(divisors(stated)) if size < stated]
    yield Lever("micro batch", tuple({MICRO: size} | held_batch(config, plan, stated // size) for size in smaller))


def held_batch(config: Config, plan: RunPlan, factor: int) -> Values:
    """The accumulation that holds the global batch where a micro step has a ``factor`` of its sequences no more."""
    training = config.training
    is_derived = training.global_batch_size is not None and training.gradient_accumulation_steps is None
    if training.micro_batch_size is None or is_derived:
        return {}
    return {ACCUMULATION: plan.batch.gradient_accumulation_steps * factor}


def _second_partition(config: Config) -> Iterator[Lever]:
    if config.parallelism.hpz_partition_size > 1:
        yield Lever("no second partition", ({"parallelism.hpz_partition_size": 1},))


def _stage(config: Config) -> Iterator[Lever]:
    parallelism = config.parallelism
    highest = 1 if parallelism.pipeline_parallel_size > 1 else 3
    stages = range(parallelism.zero_stage + 1, highest + 1)
    if stages:
        yield Lever(STAGE_KIND, tuple({STAGE: stage} for stage in stages))


def _host_activations(config: Config) -> Iterator[Lever]:
    if config.hardware.device == "cpu" or not may_use_host(config) or config.training.offload_activations:
        return
    stated = {} if config.training.activation_checkpointing == "full" else {CHECKPOINTING: "full"}
    yield Lever("activations on the host", (stated | {"training.offload_activations": True},))


def _host_optimizer(config: Config) -> Iterator[Lever]:
    """Moved to the host, in stage 3 as much as it takes; or more of it."""
    parallelism = config.parallelism
    if config.hardware.device == "cpu" or not may_use_host(config):
        return
    if parallelism.offload_optimizer == "none":
        fitted: Values = {OPTIMIZER: "cpu", "parallelism.fit_offload_ratio": True}
        if parallelism.zero_stage == 3:
            yield Lever("optimizer on the host", (fitted,))
            return
        lowest: Values = {STAGE: 1} if parallelism.zero_stage == 0 else {}
        higher = [{STAGE: 3} | fitted] if parallelism.pipeline_parallel_size == 1 else []
        yield Lever("optimizer on the host", (lowest | {OPTIMIZER: "cpu"}, *higher))
    elif parallelism.offload_ratio < 1:
        first = math.floor(parallelism.offload_ratio * _RATIO_STEPS) + 1
        ratios = [step / _RATIO_STEPS for step in range(first, _RATIO_STEPS + 1)]
        if ratios:
            own = {} if parallelism.sub_group_size is None else {"parallelism.sub_group_size": None}
            yield Lever(
                "more of the optimizer on the host",
                tuple(own | {"parallelism.offload_ratio": ratio} for ratio in ratios),
            )


def _host_parameters(config: Config) -> Iterator[Lever]:
    is_offered = config.hardware.device == "cuda" and may_use_host(config)
    if is_offered and config.parallelism.offload_param == "none":
        stage = {} if config.parallelism.zero_stage == 3 else {STAGE: 3}
        yield Lever("parameters on the host", (stage | {PARAMETERS: "cpu"},))


def _back_to_the_gpu(config: Config) -> Iterator[Lever]:
    """Where the host is short: as little of the optimizer there as the GPU allows, or no parameters."""
    parallelism = config.parallelism
    if config.hardware.device == "cpu":
        return
    if parallelism.offload_param != "none":
        yield Lever("parameters on the GPU", ({PARAMETERS: "none"},))
    if parallelism.offload_optimizer == "none" or parallelism.fit_offload_ratio:
        return
    if parallelism.zero_stage == 3:
        whole = {"parallelism.offload_ratio": 1.0} if parallelism.offload_ratio < 1 else {}
        near = {PARAMETERS: "cpu"} if parallelism.offload_param == "nvme" else {}
        fitted = whole | near | {"parallelism.fit_offload_ratio": True}
        yield Lever("as much of the optimizer on the GPU as fits", (fitted,))
    else:
        yield Lever("optimizer on the GPU", ({OPTIMIZER: "none"},))


def _unpinned(config: Config) -> Iterator[Lever]:
    parallelism = config.parallelism
    is_offloaded = {parallelism.offload_optimizer, parallelism.offload_param} != {"none"}
    if config.hardware.device == "cuda" and parallelism.pin_memory and is_offloaded:
        why = "copies of unpinned memory are slower, by how much is not predicted"
        yield Lever("host memory not pinned", ({"parallelism.pin_memory": False},), why)


def _degrees(config: Config, plan: RunPlan) -> Iterator[Lever]:
    """Tensor and sequence degrees inside a node, stages of a pipeline; more ranks a replica, so fewer replicas."""
    parallelism = config.parallelism
    per_node = config.hardware.gpus_per_node
    of_names = {
        "tensor": divisors(per_node),
        "sequence": divisors(per_node) if parallelism.pipeline_parallel_size == 1 else [],
        "pipeline": divisors(plan.model.num_layers) if parallelism.sequence_parallel_size == 1 else [],
    }
    for name, sizes in of_names.items():
        now = getattr(parallelism, f"{name}_parallel_size")
        others = plan.layout.ranks_per_replica // now
        larger = [
            size for size in sizes if size > now and size % now == 0 and plan.layout.world_size % (size * others) == 0
        ]
        stage = {STAGE: 1} if name == "pipeline" and parallelism.zero_stage != 1 else {}
        settings = tuple(
            {f"parallelism.{name}_parallel_size": size} | stage | held_batch(config, plan, size // now)
            for size in larger
        )
        if settings:
            yield Lever(f"{name} parallel", settings)


def _nvme(config: Config) -> Iterator[Lever]:
    """Where somebody states its folder."""
    parallelism, hardware = config.parallelism, config.hardware
    if hardware.device == "cpu" or not may_use_host(config) or not (parallelism.nvme_path or hardware.nvme_path):
        return
    stage = {} if parallelism.zero_stage == 3 else {STAGE: 3}
    if parallelism.offload_optimizer != "nvme":
        yield Lever("optimizer on NVMe", (stage | {OPTIMIZER: "nvme"},))
    if parallelism.offload_param != "nvme":
        whole = {"parallelism.offload_ratio": 1.0} if parallelism.offload_ratio < 1 else {}
        whole |= {"parallelism.fit_offload_ratio": False} if parallelism.fit_offload_ratio else {}
        yield Lever("parameters on NVMe", (stage | whole | {PARAMETERS: "nvme"},))


def _fewer_ranks(config: Config, plan: RunPlan) -> Iterator[Lever]:
    """On processors, whose ranks share the host's memory; GPUs are what the node has."""
    ranks = config.hardware.gpus_per_node
    if config.hardware.device == "cpu" and ranks > 1:
        fewer = [number for number in reversed(divisors(ranks)) if number < ranks]
        yield Lever(
            "fewer ranks",
            tuple({"hardware.gpus_per_node": number} | held_batch(config, plan, ranks // number) for number in fewer),
        )
