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
    TrainingConfig,
)
from hpctrain.errors import FORCED_KINDS, Problem
from hpctrain.plan.auto.alternatives import CHOICE_NOTE, AutoChoice
from hpctrain.plan.batch_ramp import ramp_warnings
from hpctrain.plan.ds_config import build_ds_config
from hpctrain.plan.flops import StepFlops, step_flops
from hpctrain.plan.job.azureml import AzureMlRequest, azureml_problems, build_azureml_request
from hpctrain.plan.job.slurm_request import SlurmRequest, build_slurm_request, request_warnings
from hpctrain.plan.layout import Batch, Layout
from hpctrain.plan.memory.estimate import MemoryEstimate, estimate_memory
from hpctrain.plan.memory.loss_chunks import loss_chunk_notes
from hpctrain.plan.memory.settings import resolved_work, with_passes, with_tiers
from hpctrain.plan.model_shape import ModelShape, resolve_model_shape
from hpctrain.plan.nvme.config import with_nvme
from hpctrain.plan.nvme.need import NvmeNeed, nvme_need, nvme_notes, nvme_problems, nvme_warnings
from hpctrain.plan.open_settings import choose_settings
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.rules.capacity import asked_memory, capacity_notes, capacity_problems
from hpctrain.plan.rules.chain import chain_notes, chain_problems, chain_warnings
from hpctrain.plan.rules.compile import compile_notes, compile_problems
from hpctrain.plan.rules.data import data_problems
from hpctrain.plan.rules.first_weights import first_weights_problems
from hpctrain.plan.rules.hardware import hardware_problems, hardware_warnings
from hpctrain.plan.rules.parallelism import parallelism_problems, parallelism_warnings, resolve_layout
from hpctrain.plan.rules.precision import precision_problems, precision_warnings
from hpctrain.plan.rules.rates import rate_problems
from hpctrain.plan.rules.shape import shape_warnings
from hpctrain.plan.rules.track import track_problems, track_warnings
from hpctrain.plan.rules.values import place_problems, slurm_only_problems, value_problems
from hpctrain.plan.speed.step_time import StepPrediction, predict_step
from hpctrain.secret_text import redact_text

PLAN_SCHEMA_VERSION = 1

_DERIVED = (
    "model num_parameters layout batch activation_checkpointing zero_stage flops_per_step memory ds_config slurm prediction nvme"
    " loss_chunk_size azureml choice"
).split()
"""Fields of a plan that shape, layout, batch and hardware decide."""
_OFFLOADED = {"optimizer": "offload_optimizer", "parameters": "offload_param"}


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
    trackers: tuple[str, ...] = ()
    """What gets the step records beside the run folder, see ``track``."""
    nvme: NvmeNeed | None = None
    """What is on each node's NVMe; None: nothing."""
    loss_chunk_size: int = 0
    """Tokens of which the loss has scores at a time; 0: all of a micro batch, as in runs of before."""
    compile: bool = False
    """Blocks are compiled; runs of before this was possible do not say."""
    azureml: AzureMlRequest | None = None
    """What AzureML would be asked for, where the job goes there."""
    choice: AutoChoice | None = None
    """What ``parallelism=auto`` chose among; None: all was stated."""
    is_impossible: bool = False
    """Shape, layout, batch or hardware contradict themselves: the numbers are of another run, and nobody is told them."""

    @property
    def form(self) -> str:
        """How a step is spread over ranks and tiers, world size apart: of speeds that are one all are in one form."""
        zero = self.ds_config.get("zero_optimization", {})
        tiers = [f"{what} on {zero[key]['device']}" for what, key in _OFFLOADED.items() if key in zero]
        words = (f"stage {self.zero_stage}", *self.layout.model_parallel_texts, *tiers)
        return f"{self.parallelism_name} ({', '.join(words)}), micro batch {self.batch.micro_batch_size}"

    def blocking_problems(self, force: bool) -> tuple[Problem, ...]:
        """What keeps it from being submitted; ``force`` lets pass what is short by the estimate or by the site's word."""
        return tuple(problem for problem in self.problems if not (force and problem.kind in FORCED_KINDS))

    def without_rate_problems(self) -> RunPlan:
        """For a run that is there already, or whose step is measured: what only a prediction lacks is a warning."""
        kept = tuple(each for each in self.problems if each.kind != "rate")
        told = tuple(str(each) for each in self.problems if each.kind == "rate")
        return dataclasses.replace(self, problems=kept, warnings=(*self.warnings, *told))

    def to_json(self) -> str:
        """The plan for machines; derived totals are written beside their terms. What an impossible plan derives is null."""
        plan = dataclasses.asdict(self)
        if self.is_impossible:
            return json.dumps(plan | dict.fromkeys(_DERIVED), indent=2) + "\n"
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
        if self.nvme is not None:
            plan["nvme"]["bytes_per_node"] = self.nvme.bytes_per_node
        return json.dumps(plan, indent=2) + "\n"


def build_run_plan(config: Config, assumptions: tuple[str, ...] = ()) -> RunPlan:
    """The plan of one configuration, pure: the same configuration always gives the same plan.

    Args:
        config: typed and checked value by value.
        assumptions: what the caller chose for the user (such as the hardware); told in the plan.
    """
    shape, shape_problems = resolve_model_shape(config.model)
    layout, layout_problems = resolve_layout(config)
    (_, batch_problems, work, of_tiers), estimate, of_choice = choose_settings(config, shape, layout)
    memory = dataclasses.replace(estimate, asked_memory=asked_memory(config))
    config = dataclasses.replace(config, parallelism=work.parallelism)
    parallelism, training, hardware, precision = config.parallelism, config.training, config.hardware, config.precision
    batch, seq_len = work.batch, work.batch.seq_len
    flops = step_flops(shape, seq_len, batch.global_batch_size, work.checkpointing, parallelism.zero_stage)
    nvme = nvme_need(parallelism, hardware, shape, layout, work.bytes_per_element)
    name = redact_text(config.run.name or f"{shape.name}-{config.nodes}n-{parallelism.name}")
    slurm, slurm_problems = build_slurm_request(name, config, layout)
    of_shape = (*shape_problems, *(layout_problems or batch_problems))  # without a layout the batch is another one's
    contradictions = (*of_shape, *_contradictions(config, shape, layout, seq_len))
    prediction, prediction_gap = _predicted(config, work, flops, bool(contradictions))
    notes = (*_notes(config, of_choice, work, prediction), *of_tiers, *nvme_notes(nvme))
    memory_problems = () if contradictions else _memory_problems(config, memory, nvme)
    return RunPlan(
        schema_version=PLAN_SCHEMA_VERSION,
        name=name,
        assumptions=_without_choice(assumptions) if contradictions else (*assumptions, *notes),
        warnings=() if contradictions else (*_warnings(config, shape, layout, batch, nvme), *memory.warnings()),
        model=shape,
        num_parameters=shape.num_parameters,
        layout=layout,
        batch=batch,
        num_steps=training.num_steps,
        precision=precision,
        activation_checkpointing=work.checkpointing,
        offload_activations=training.offload_activations,
        parallelism_name=parallelism.name,
        zero_stage=parallelism.zero_stage,
        hardware_name=hardware.name,
        device=hardware.device,
        peak_tflops_per_gpu=hardware.peak_tflops.get(precision),
        flops_per_step=flops,
        memory=memory,
        ds_config=_ds_config(config.training, work),
        data_name=config.data.name,
        cluster_name=config.cluster.name,
        cluster_kind=config.cluster.kind,
        slurm=slurm,
        problems=(*contradictions, *_other_problems(config, work, slurm), *slurm_problems, *memory_problems),
        prediction=prediction,
        prediction_gap=prediction_gap,
        achievable_tflops_per_gpu=hardware.achievable_tflops.get(precision),
        payload=training.payload,
        start_timeout_min=training.start_timeout_min,
        trackers=config.track.names,
        loss_chunk_size=work.loss_chunk_size,
        compile=training.compile,
        nvme=nvme,
        azureml=build_azureml_request(config, layout, slurm.environment) if config.cluster.kind == "azureml" else None,
        is_impossible=bool(contradictions),
    )


def with_memory_of(rank: int, plan: RunPlan, config: Config) -> RunPlan:
    """The plan with the memory of one rank in place of that rank's which needs most.

    Args:
        rank: of the plan's layout.
        plan: of the configuration.
        config: what the plan was built from.
    """
    memory = estimate_memory(planned_work(config, plan), rank)
    return dataclasses.replace(plan, memory=dataclasses.replace(memory, asked_memory=plan.memory.asked_memory))


def planned_work(config: Config, plan: RunPlan) -> RankWork:
    """What one rank of a plan works on; micro batch and recomputation are the plan's.

    Args:
        config: what the plan was built from.
        plan: of the configuration.
    """
    stated = with_passes(config, plan.batch.micro_batch_size, plan.activation_checkpointing)
    tiered, _ = with_tiers(stated, plan.model, plan.layout)
    return resolved_work(tiered, plan.model, plan.layout, plan.batch, plan.precision, plan.activation_checkpointing)


def _ds_config(training: TrainingConfig, work: RankWork) -> dict[str, Any]:
    """DeepSpeed's configuration, with that of NVMe where anything is there."""
    parallelism, use_cuda = work.parallelism, work.hardware.device == "cuda"
    plain = build_ds_config(work.shape.num_parameters, work.batch, parallelism, training, work.precision, use_cuda)
    return with_nvme(plain, parallelism, work.shape, work.layout, work.bytes_per_element)


def _without_choice(assumptions: tuple[str, ...]) -> tuple[str, ...]:
    """Where there can be no plan, what was chosen for it, with its numbers, is not told."""
    return tuple(text for text in assumptions if not text.startswith(CHOICE_NOTE))


def _predicted(
    config: Config, work: RankWork, flops: StepFlops, is_impossible: bool
) -> tuple[StepPrediction | None, str]:
    """The step of a run that there can be and that trains; else why there is none."""
    if is_impossible:
        return None, "what is stated breaks a rule"
    if config.training.payload != "train":
        return None, f"training={config.training.name} trains nothing"
    return predict_step(work, flops, config.calibration)


def _notes(
    config: Config, of_choice: tuple[str, ...], work: RankWork, prediction: StepPrediction | None
) -> tuple[str, ...]:
    """What the plan chose; a launch check builds no model, so nothing is chosen for one."""
    of_loss = loss_chunk_notes(config.training, work.loss_chunk_size, work.tokens)
    of_compiler = compile_notes(config.training)
    of_gpu = capacity_notes(config.hardware)
    of_memory = (*of_gpu, *of_choice, *of_loss, *of_compiler) if config.training.payload == "train" else ()
    return (*of_memory, *chain_notes(config, prediction.step_time_s if prediction else None))


def _contradictions(config: Config, shape: ModelShape, layout: Layout, seq_len: int) -> tuple[Problem, ...]:
    """Rules without which the plan's numbers mean nothing."""
    return (
        *parallelism_problems(config, shape, layout, seq_len),
        *(each for each in hardware_problems(config.hardware) if each.kind != "rate"),
        *compile_problems(config),
        *place_problems(config),
    )


def _other_problems(config: Config, work: RankWork, slurm: SlurmRequest) -> tuple[Problem, ...]:
    """Rules that join several values, beside which the numbers stand."""
    shape, seq_len = work.shape, work.batch.seq_len
    return (
        *(each for each in hardware_problems(config.hardware) if each.kind == "rate"),
        *((*capacity_problems(config.hardware), *rate_problems(work)) if config.training.payload == "train" else ()),
        *precision_problems(config),
        *value_problems(config, shape, seq_len),
        *data_problems(config),
        *first_weights_problems(config),
        *track_problems(config),
        *_launch_problems(config, slurm),
    )


def _memory_problems(config: Config, memory: MemoryEstimate, nvme: NvmeNeed | None) -> tuple[Problem, ...]:
    """A launch check builds no model, so its memory is no matter."""
    if config.training.payload != "train":
        return ()
    return (*memory.problems(), *nvme_problems(config.parallelism, config.hardware, nvme))


def _launch_problems(config: Config, slurm: SlurmRequest) -> tuple[Problem, ...]:
    """What the cluster's kind has not, or cannot carry."""
    return (
        *slurm_only_problems(config),
        *azureml_problems(config, slurm.secret_names),
        *chain_problems(config),
    )


def no_cpus_warning(hardware: HardwareConfig) -> str:
    """Told where nobody says how many CPUs a rank gets; a site that was asked may."""
    return (
        f"hardware={hardware.name} states no cores and cluster.cpus_per_task is not set:"
        " Slurm gives its default, often one core a rank"
    )


def _warnings(
    config: Config, shape: ModelShape, layout: Layout, batch: Batch, nvme: NvmeNeed | None
) -> tuple[str, ...]:
    """What is allowed and often not meant."""
    training = config.training
    warnings = [
        *request_warnings(config.cluster, config.hardware, layout),
        *chain_warnings(config),
        *parallelism_warnings(config.parallelism, layout, batch.gradient_accumulation_steps),
        *precision_warnings(config),
        *hardware_warnings(config.hardware),
        *(shape_warnings(shape) if training.payload == "train" else ()),
        *track_warnings(config),
    ]
    if training.batch_ramp is not None:
        warnings += ramp_warnings(batch.ramp, training.num_steps, training.batch_ramp.increment)
    if config.model.architecture == "llama" and batch.seq_len > config.model.max_seq_len:
        warnings.append(
            f"training.seq_len={batch.seq_len} is longer than model.max_seq_len={config.model.max_seq_len}: rotary positions go"
            " on beyond it, and the model is another one than the published"
        )
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
    return (*warnings, *nvme_warnings(config.parallelism, nvme))
