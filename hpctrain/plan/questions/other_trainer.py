"""The largest model under another trainer's habits of memory, such as those of Megatron-DeepSpeed in 2022."""

from __future__ import annotations

from typing import Literal

from hpctrain.config.schema import Config, ParallelismConfig
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.plan.nvme.config import uses_nvme
from hpctrain.plan.questions.largest import LargestModel, grown, with_layers
from hpctrain.plan.questions.outcome import Outcome
from hpctrain.plan.rules.capacity import capacity_problems, counted_hardware
from hpctrain.plan.rules.parallelism import resolve_layout
from hpctrain.plan.speed.software import SOFTWARE
from hpctrain.plan.speed.step_parts import Setup
from hpctrain.plan.speed.step_time import OWN_SOFTWARE
from hpctrain.plan.stated.host_copies import with_host_copies
from hpctrain.plan.stated.memory_habits import HABITS
from hpctrain.plan.stated.tier_memory import TierMemory, tier_memory
from hpctrain.units import GIB, gib

TRAINERS = tuple(name for name in HABITS if name != OWN_SOFTWARE)
"""Names of other trainers, each with its generation; our own worker is asked without one."""
_MICRO_BATCH_SIZE = 1
"""Where none is stated: the smallest, with which most fits."""
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def largest_of_trainer(config: Config, trainer: str) -> LargestModel:
    """Grows ``model.num_layers`` as ``largest_model``, by the closed rules of ``tier_memory``; no step time.

    Args:
        config: with nothing open. A micro batch that is not stated is 1, recomputation that is not stated is full.
        trainer: one of ``TRAINERS``.

    Raises:
        ConfigError: the configuration asks for what these rules do not have, breaks a rule of the layout or the shape, or
            nobody knows the memory of its GPU.
    """
    layout, problems = resolve_layout(config)
    _, of_shape = resolve_model_shape(config.model)
    problems += (*of_shape, *capacity_problems(config.hardware), *_unknown_to_rules(config.parallelism, trainer))
    if problems:
        raise ConfigError(problems)

    def outcome(num_layers: int) -> Outcome:
        shape, _ = resolve_model_shape(with_layers(config, num_layers).model)
        setup = _setup(config, shape, layout.world_size)
        memory = tier_memory(setup, SOFTWARE[trainer], HABITS[trainer], _states(config), layout.gpus_per_node)
        return _outcome(config, setup, with_host_copies(memory, setup, HABITS[trainer]), trainer)

    return grown(outcome, config.parallelism.pipeline_parallel_size)


def _unknown_to_rules(parallelism: ParallelismConfig, trainer: str) -> list[Problem]:
    problems = []
    offload = {"offload_optimizer": parallelism.offload_optimizer, "offload_param": parallelism.offload_param}
    moved = [name for name, place in offload.items() if place != "none"]
    if moved and "deepspeed" not in HABITS[trainer].name:
        rule = f"--trainer {trainer} keeps all states on the GPUs"
        problems += [Problem(f"parallelism.{name}", offload[name], rule, "set it to none") for name in moved]
    if uses_nvme(parallelism):
        rule = "the rules of --trainer know GPU and host memory, no NVMe"
        problems += [
            Problem(f"parallelism.{name}", "nvme", rule, "set it to cpu") for name in moved if offload[name] == "nvme"
        ]
    if parallelism.fit_offload_ratio or parallelism.offload_ratio < 1:
        key = "fit_offload_ratio" if parallelism.fit_offload_ratio else "offload_ratio"
        value = "true" if parallelism.fit_offload_ratio else f"{parallelism.offload_ratio:g}"
        rule = "the rules of --trainer know states that are moved whole"
        problems.append(Problem(f"parallelism.{key}", value, rule, "set parallelism=zero3_offload"))
    return problems


def _states(config: Config) -> Literal["mixed", "fp32"]:
    return "fp32" if config.precision == "fp32" else "mixed"


def _setup(config: Config, shape: ModelShape, num_gpus: int) -> Setup:
    parallelism, training = config.parallelism, config.training
    return Setup(
        shape=shape,
        seq_len=training.seq_len or shape.max_seq_len,
        micro_batch_size=training.micro_batch_size or _MICRO_BATCH_SIZE,
        num_micro_steps=training.gradient_accumulation_steps or parallelism.pipeline_parallel_size,
        num_gpus=num_gpus,
        tensor_degree=parallelism.tensor_parallel_size,
        pipeline_degree=parallelism.pipeline_parallel_size,
        sequence_degree=parallelism.sequence_parallel_size,
        zero_stage=parallelism.zero_stage,
        recomputation=training.activation_checkpointing or "full",
        offload_optimizer=parallelism.offload_optimizer != "none",
        offload_param=parallelism.offload_param != "none",
        offload_activations=training.offload_activations,
        bytes_per_element=_BYTES[config.precision],
    )


def _outcome(config: Config, setup: Setup, memory: TierMemory, trainer: str) -> Outcome:
    hardware = counted_hardware(config)
    gpu, host = _capacity(hardware.gpu_memory_gib), _capacity(hardware.host_memory_gib)
    needs = (
        ("memory.gpu", memory.needed_bytes, gpu, "a GPU"),
        ("memory.host", memory.host_bytes_per_node, host, "a node"),
    )
    short = tuple(
        Problem(
            key,
            gib(needed),
            f"is needed by the rules for {trainer}; {place} has {gib(there)}, short by {gib(needed - there)}",
            "",
            kind="memory",
        )
        for key, needed, there, place in needs
        if there is not None and needed > there
    )
    return Outcome(
        num_layers=setup.shape.num_layers,
        num_parameters=setup.shape.num_parameters,
        nodes=config.nodes,
        gpus=setup.num_gpus,
        parallelism=config.parallelism.name,
        micro_batch_size=setup.micro_batch_size,
        gradient_accumulation_steps=setup.num_micro_steps,
        global_batch_size=setup.micro_batch_size * setup.num_micro_steps * setup.data_degree,
        seq_len=setup.seq_len,
        activation_checkpointing=setup.recomputation,
        step_time_s=None,
        tokens_per_s=None,
        gpu_bytes=memory.needed_bytes,
        gpu_capacity_bytes=gpu,
        host_bytes=memory.host_bytes_per_node,
        host_capacity_bytes=host,
        fits=not short,
        has_headroom=all(there is None or needed <= 0.9 * there for _, needed, there, _ in needs),
        short=short,
    )


def _capacity(size_gib: float | None) -> int | None:
    return None if size_gib is None else int(size_gib * GIB)
