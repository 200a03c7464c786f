"""The frozen plan: everything that a run will be, and every rule it breaks, from one configuration."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain.config.schema import (
    ActivationCheckpointing,
    Config,
    DeviceKind,
    HardwareConfig,
    Precision,
)
from hpctrain.errors import Problem
from hpctrain.plan.azureml_job import AzureMlRequest, azureml_problems, build_azureml_request
from hpctrain.plan.chain_rules import chain_notes, chain_problems, chain_warnings
from hpctrain.plan.ds_config import build_ds_config
from hpctrain.plan.flops import StepFlops, step_flops
from hpctrain.plan.layout import Batch, Layout, resolve_batch
from hpctrain.plan.memory import MemoryEstimate, estimate_memory
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.plan.parallelism_rules import parallelism_problems, parallelism_warnings, resolve_layout
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.slurm_request import SlurmRequest, build_slurm_request, request_warnings
from hpctrain.plan.step_time import StepPrediction, predict_step
from hpctrain.plan.sub_groups import sub_group_notes, with_sub_group_size
from hpctrain.secret_text import redact_text

PLAN_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RunPlan:
    """Complete: what is printed is what runs. A plan with problems is not submitted, unless memory is all and it is forced."""

    schema_version: int
    name: str
    assumptions: tuple[str, ...]
    """What nobody stated and the plan therefore chose, one sentence each."""
    warnings: tuple[str, ...]
    """What is allowed and often not meant, one sentence each."""
    model: ModelShape
    num_parameters: int
    layout: Layout
    batch: Batch
    num_steps: int
    precision: Precision
    activation_checkpointing: ActivationCheckpointing
    parallelism_name: str
    zero_stage: int
    hardware_name: str
    device: DeviceKind
    peak_tflops_per_gpu: float | None
    """Dense peak of the hardware in ``precision``; None: not stated, so no MFU."""
    flops_per_step: StepFlops
    memory: MemoryEstimate
    ds_config: dict[str, Any]
    data_name: str
    cluster_name: str
    cluster_kind: Literal["slurm", "local", "azureml"]
    slurm: SlurmRequest
    """What Slurm would be asked for; cluster_kind=local takes its ranks and environment from here too."""
    problems: tuple[Problem, ...]
    prediction: StepPrediction | None = None
    """Predicted time of one step; None: the hardware states too little, ``prediction_gap`` says what."""
    prediction_gap: str = ""
    achievable_tflops_per_gpu: float | None = None
    """Best measured matmul rate of the hardware in ``precision``; None: not stated."""
    payload: Literal["train", "launch_check"] = "train"
    """What the ranks do: train, or only meet and measure themselves."""
    start_timeout_min: int = 30
    """Minutes that ranks wait for each other at the start."""
    offload_activations: bool = False
    """Inputs of recomputed blocks wait in host memory; runs of before this was possible do not say."""
    azureml: AzureMlRequest | None = None
    """What AzureML would be asked for, where the job goes there."""

    def blocking_problems(self, force: bool) -> tuple[Problem, ...]:
        """What keeps it from being submitted; ``force`` lets pass what is short by the estimate or by the site's word."""
        return tuple(problem for problem in self.problems if not (force and problem.kind in ("memory", "site")))

    def to_json(self) -> str:
        """The plan for machines; derived totals are written beside their terms."""
        plan = dataclasses.asdict(self)
        plan["layout"] |= {
            "world_size": self.layout.world_size,
            "data_parallel_degree": self.layout.data_parallel_degree,
        }
        plan["batch"]["tokens_per_step"] = self.batch.tokens_per_step
        plan["memory"] |= {
            "gpu_bytes": self.memory.gpu_bytes,
            "allocator_bytes": self.memory.allocator_bytes,
            "host_bytes_per_node": self.memory.host_bytes_per_node,
        }
        return json.dumps(plan, indent=2) + "\n"


def build_run_plan(config: Config, assumptions: tuple[str, ...] = ()) -> RunPlan:
    """The plan of one configuration, pure: the same configuration always gives the same plan.

    Args:
        config: typed and checked value by value.
        assumptions: what the caller chose for the user (such as the hardware); told in the plan.
    """
    shape, shape_problems = resolve_model_shape(config.model)
    layout, layout_problems = resolve_layout(config)
    parallelism = with_sub_group_size(config.parallelism, shape, layout)
    sub_groups = sub_group_notes(config.parallelism, parallelism, shape, layout)
    config = dataclasses.replace(config, parallelism=parallelism)
    training, hardware, use_cuda = config.training, config.hardware, config.hardware.device == "cuda"
    seq_len = training.seq_len or shape.max_seq_len
    precision = training.precision or hardware.default_precision
    choice = _choose_memory_settings(config, shape, layout, precision)
    batch, batch_problems = resolve_batch(training, choice.micro_batch_size, layout.data_parallel_degree, seq_len)
    work = _rank_work(config, shape, layout, batch, precision, choice.checkpointing)
    memory = estimate_memory(work)
    flops = step_flops(shape, seq_len, batch.global_batch_size, choice.checkpointing, parallelism.zero_stage)
    prediction, prediction_gap = predict_step(work, flops)
    ds_config = build_ds_config(shape.num_parameters, batch, parallelism, training, precision, use_cuda)
    name = redact_text(config.run.name or f"{shape.name}-{config.nodes}n-{parallelism.name}")
    slurm, slurm_problems = build_slurm_request(name, config, layout)
    joint_problems = (*layout_problems, *_joint_problems(config, shape, layout, seq_len, slurm))
    # Of a layout that the ranks cannot have, the memory says nothing.
    memory_problems = () if layout_problems else _memory_problems(config, memory)
    return RunPlan(
        schema_version=PLAN_SCHEMA_VERSION,
        name=name,
        assumptions=(*assumptions, *_notes(config, choice, prediction), *sub_groups),
        warnings=_warnings(config, layout, batch),
        model=shape,
        num_parameters=shape.num_parameters,
        layout=layout,
        batch=batch,
        num_steps=training.num_steps,
        precision=precision,
        activation_checkpointing=choice.checkpointing,
        offload_activations=training.offload_activations,
        parallelism_name=parallelism.name,
        zero_stage=parallelism.zero_stage,
        hardware_name=hardware.name,
        device=hardware.device,
        peak_tflops_per_gpu=hardware.peak_tflops.get(precision),
        flops_per_step=flops,
        memory=memory,
        ds_config=ds_config,
        data_name=config.data.name,
        cluster_name=config.cluster.name,
        cluster_kind=config.cluster.kind,
        slurm=slurm,
        problems=(*shape_problems, *batch_problems, *joint_problems, *slurm_problems, *memory_problems),
        prediction=prediction,
        prediction_gap=prediction_gap,
        achievable_tflops_per_gpu=hardware.achievable_tflops.get(precision),
        payload=training.payload,
        start_timeout_min=training.start_timeout_min,
        azureml=build_azureml_request(config, layout, slurm.environment) if config.cluster.kind == "azureml" else None,
    )


def with_memory_of(rank: int, plan: RunPlan, config: Config) -> RunPlan:
    """The plan with the memory of one rank in place of that rank's which needs most.

    Args:
        rank: of the plan's layout.
        plan: of the configuration.
        config: what the plan was built from.
    """
    parallelism = with_sub_group_size(config.parallelism, plan.model, plan.layout)
    config = dataclasses.replace(config, parallelism=parallelism)
    work = _rank_work(config, plan.model, plan.layout, plan.batch, plan.precision, plan.activation_checkpointing)
    return dataclasses.replace(plan, memory=estimate_memory(work, rank))


def _rank_work(
    config: Config,
    shape: ModelShape,
    layout: Layout,
    batch: Batch,
    precision: Precision,
    checkpointing: ActivationCheckpointing,
) -> RankWork:
    """What one rank works on; of the configuration, whose sub-group size is filled in, what is not derived."""
    offload = config.training.offload_activations and checkpointing == "full"
    return RankWork(shape, layout, batch, config.parallelism, config.hardware, precision, checkpointing, offload)


def _notes(config: Config, choice: _MemorySettings, prediction: StepPrediction | None) -> tuple[str, ...]:
    """What the plan chose; a launch check builds no model, so nothing is chosen for one."""
    of_memory = choice.assumptions if config.training.payload == "train" else ()
    return (*of_memory, *chain_notes(config, prediction.step_time_s if prediction else None))


def _joint_problems(
    config: Config, shape: ModelShape, layout: Layout, seq_len: int, slurm: SlurmRequest
) -> tuple[Problem, ...]:
    """Rules that join several values."""
    return (
        *parallelism_problems(config, shape, layout, seq_len),
        *_value_problems(config, shape, seq_len),
        *_launch_problems(config, slurm),
    )


def _memory_problems(config: Config, memory: MemoryEstimate) -> tuple[Problem, ...]:
    """A launch check builds no model, so its memory is no matter."""
    return tuple(memory.problems()) if config.training.payload == "train" else ()


@dataclass(frozen=True)
class _MemorySettings:
    micro_batch_size: int
    checkpointing: ActivationCheckpointing
    assumptions: tuple[str, ...]


def _choose_memory_settings(config: Config, shape: ModelShape, layout: Layout, precision: Precision) -> _MemorySettings:
    """Micro batch and checkpointing: what is stated stays; what is left out is the largest batch that fits.

    A micro batch of at most 8 is tried, without recomputation before with it. A stated global batch bounds it.
    """
    training = config.training
    seq_len = training.seq_len or shape.max_seq_len
    sizes: tuple[int, ...] = (training.micro_batch_size,) if training.micro_batch_size else (8, 4, 2, 1)
    modes: tuple[ActivationCheckpointing, ...] = (
        (training.activation_checkpointing,) if training.activation_checkpointing else ("none", "full")
    )
    if training.micro_batch_size is None and training.global_batch_size is not None:
        per_micro_step = layout.data_parallel_degree * (training.gradient_accumulation_steps or 1)
        per_rank, rest = divmod(training.global_batch_size, per_micro_step)
        sizes = tuple(size for size in sizes if not rest and per_rank and per_rank % size == 0) or (1,)

    def fits(size: int, mode: ActivationCheckpointing) -> bool:
        batch, _ = resolve_batch(training, size, layout.data_parallel_degree, seq_len)
        return estimate_memory(_rank_work(config, shape, layout, batch, precision, mode)).fits_with_headroom

    candidates = [(size, mode) for size in sizes for mode in modes]
    chosen = next((candidate for candidate in candidates if fits(*candidate)), None)
    size, mode = chosen or candidates[-1]
    has_capacity = config.hardware.gpu_memory_gib is not None or config.hardware.host_memory_gib is not None
    why = "memory not stated by the hardware" if not has_capacity else "with a tenth of the memory free"
    assumptions = []
    if training.micro_batch_size is None:
        tried = ", ".join(map(str, sizes))
        choice = f"{size}, the largest of {tried}" if chosen else f"{size}, and even that does not fit"
        assumptions.append(f"training.micro_batch_size not stated: {choice} ({why})")
    if training.activation_checkpointing is None:
        reason = "it fits without recomputation" if mode == "none" else "without recomputation it does not fit"
        assumptions.append(
            f"training.activation_checkpointing not stated: {mode}" + (f", {reason}" if has_capacity else "")
        )
    return _MemorySettings(size, mode, tuple(assumptions))


def _value_problems(config: Config, shape: ModelShape, seq_len: int) -> list[Problem]:
    """Rules that join two groups."""
    problems = []
    if shape.architecture == "gpt" and seq_len > shape.max_seq_len:
        problems.append(
            Problem(
                "training.seq_len",
                str(seq_len),
                f"is longer than the {shape.max_seq_len} learned positions of model={shape.name}",
                f"nearest: {shape.max_seq_len}, or set model.max_seq_len={seq_len}",
            )
        )
    if config.cluster.kind == "local" and config.nodes != 1:
        problems.append(
            Problem("nodes", str(config.nodes), "cluster=local is this one machine", "nearest: 1, or cluster=slurm")
        )
    training = config.training
    if training.min_learning_rate > training.learning_rate:
        problems.append(
            Problem(
                "training.min_learning_rate",
                str(training.min_learning_rate),
                f"is above training.learning_rate={training.learning_rate}",
                f"nearest: {training.learning_rate}",
            )
        )
    if config.data.kind == "text" and config.data.path is None:
        problems.append(Problem("data.path", "null", "data=text reads a file or folder", "set data.path=FILE"))
    if config.data.kind != "text" and config.data.path is not None:
        rule = f"is read by data=text only, and this is data={config.data.name}"
        problems.append(Problem("data.path", config.data.path, rule, "add data=text"))
    if config.run.name is not None and not config.run.name.isprintable():
        problems.append(
            Problem("run.name", repr(config.run.name), "must be printable, on one line", "take the sign out")
        )
    return problems


_SLURM_ONLY = (
    "time partition account qos constraint reservation nodelist exclude comment exclusive memory_per_node setup srun_args extra"
).split()


def _launch_problems(config: Config, slurm: SlurmRequest) -> tuple[Problem, ...]:
    """What the cluster's kind has not, or cannot carry."""
    return (
        *_slurm_only_problems(config),
        *azureml_problems(config, slurm.secret_names),
        *chain_problems(config),
    )


def _slurm_only_problems(config: Config) -> list[Problem]:
    """Keys that ask something of Slurm, where there is none."""
    kind = config.cluster.kind
    if kind == "slurm":
        return []
    # AzureML has a time limit, too.
    keys = [key for key in _SLURM_ONLY if not (kind == "azureml" and key == "time")]
    return [
        Problem(f"cluster.{key}", str(value), f"is asked of Slurm, and cluster={kind} has none", "leave it out")
        for key in keys
        if (value := getattr(config.cluster, key))
    ]


def no_cpus_warning(hardware: HardwareConfig) -> str:
    """Told where nobody says how many CPUs a rank gets; a site that was asked may."""
    return (
        f"hardware={hardware.name} states no cores and cluster.cpus_per_task is not set:"
        " Slurm gives its default, often one core a rank"
    )


def _warnings(config: Config, layout: Layout, batch: Batch) -> tuple[str, ...]:
    """What is allowed and often not meant."""
    training = config.training
    warnings = [
        *request_warnings(config.cluster, config.hardware, layout),
        *chain_warnings(config),
        *parallelism_warnings(config.parallelism, layout, batch.gradient_accumulation_steps),
    ]
    if training.warmup_steps >= training.num_steps:
        warnings.append(
            f"training.warmup_steps={training.warmup_steps} is not below training.num_steps={training.num_steps}:"
            " the learning rate never reaches its full value"
        )
    if (
        config.cluster.kind == "slurm"
        and config.cluster.cpus_per_task is None
        and config.hardware.cpu_cores_per_node is None
    ):
        warnings.append(no_cpus_warning(config.hardware))
    return tuple(warnings)
