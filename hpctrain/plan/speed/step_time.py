"""Predicted time of one optimizer step, part by part."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hpctrain.config.calibration import Calibration
from hpctrain.config.schema import HardwareConfig, ParallelismConfig, Precision
from hpctrain.errors import ConfigError
from hpctrain.plan.devices import find_device
from hpctrain.plan.ds_config import reduce_bucket_elements
from hpctrain.plan.elementwise import smaller
from hpctrain.plan.flop_conventions import utilisation
from hpctrain.plan.flops import StepFlops
from hpctrain.plan.memory.stage0 import REDUCE_BUCKET
from hpctrain.plan.nvme.config import uses_nvme
from hpctrain.plan.nvme.need import nvme_need
from hpctrain.plan.rank_work import RankWork
from hpctrain.plan.speed.binding_rates import binding_rates
from hpctrain.plan.speed.calibration import UsedCalibration, calibrated_parts, outside_texts, used_calibration
from hpctrain.plan.speed.nvme_parts import NvmeTraffic
from hpctrain.plan.speed.software import HOST_ADAM, SOFTWARE, Software, sustained_rates
from hpctrain.plan.speed.step_parts import Machine, Setup, step_parts

OWN_SOFTWARE = "deepspeed_leaf_blocks"
"""The generation that the worker runs on: it gives DeepSpeed each block as a leaf module."""


@dataclass(frozen=True)
class StepPrediction:
    """A prediction, never a measurement."""

    step_time_s: float
    parts_s: dict[str, float]
    """Seconds by part; parts that overlap are counted as far as they are exposed, so that the sum is ``step_time_s``."""
    tokens_per_s: float
    tflops_per_gpu: dict[str, float]
    """1e12 FLOP/s by FLOP convention (model, hardware, megatron)."""
    mfu: float | None
    bound_by: str
    """The largest part."""
    low_s: float
    high_s: float
    """Between these the validation rows lie that were not used for fitting; see ``uncertainty``."""
    uncertainty: str
    """Where the constants were fitted, and how far off the prediction was on rows that were not."""
    ramp_times_s: tuple[float, ...] = ()
    """Of a step of each stage of the batch ramp; the last is ``step_time_s``. Empty: there is no ramp."""
    calibration: UsedCalibration | None = None
    """Past runs whose factors are in all of these times; None: they are as the constants have them."""
    rate_of_part: dict[str, str] = field(default_factory=dict)
    """By part, what it waits for most: the matmul rate, a memory, a link, or fixed costs; see ``binding_rates``."""


def predict_step(
    work: RankWork, flops: StepFlops, calibration: Calibration | None = None
) -> tuple[StepPrediction | None, str]:
    """The prediction for a run of our own worker, or None and what the hardware does not state.

    Args:
        work: of one rank; what a part of the step needs must be stated by its hardware.
        flops: of the same step, for the rates.
        calibration: of past runs on this hardware in this data type, see ``calibration_choice.calibration_for``.
    """
    gap = prediction_gap(work)
    if gap:
        return None, gap
    layout, batch, hardware = work.layout, work.batch, work.hardware
    setup = step_setup(work)
    software, machine = SOFTWARE[OWN_SOFTWARE], step_machine(hardware, work.precision)
    plain_parts = step_parts(setup, machine, software)
    parts = calibrated_parts(plain_parts, calibration)
    ramps = (replace(setup, num_micro_steps=batch.accumulation_of(stage.first_step)) for stage in batch.ramp)
    ramp_times_s = tuple(
        sum(calibrated_parts(step_parts(ramp, machine, software), calibration).values()) for ramp in ramps
    )
    step_time_s = sum(parts.values())
    used = None if calibration is None else _used(calibration, work, plain_parts)
    errors, uncertainty = _uncertainty(software, calibration, used)
    low_s, high_s = range_s(step_time_s, errors)
    peak = hardware.peak_tflops.get(work.precision)
    mfu = None if peak is None else utilisation(flops.model_flops, step_time_s, layout.world_size, peak)
    prediction = StepPrediction(
        step_time_s=step_time_s,
        parts_s=parts,
        tokens_per_s=batch.tokens_per_step / step_time_s,
        tflops_per_gpu=flops.per_gpu_tflops(step_time_s, layout.world_size),
        mfu=mfu,
        bound_by=max(parts, key=lambda name: parts[name]),
        low_s=low_s,
        high_s=high_s,
        uncertainty=uncertainty,
        ramp_times_s=ramp_times_s,
        calibration=used,
        rate_of_part=binding_rates(setup, machine, software, plain_parts),
    )
    return prediction, ""


def step_seconds(work: RankWork, calibration: Calibration | None = None, nvme: NvmeTraffic | None = None) -> float:
    """Of one step alone, for what chooses by it; a search passes arrays and gets one.

    Args:
        work: without a ``prediction_gap``.
        calibration: see ``predict_step``.
        nvme: traffic of states that the work, a search's, has in host memory; None: what the work itself says.
    """
    setup = step_setup(work) if nvme is None else replace(step_setup(work), nvme=nvme)
    parts = step_parts(setup, step_machine(work.hardware, work.precision), SOFTWARE[OWN_SOFTWARE])
    return sum(calibrated_parts(parts, calibration).values())


def step_setup(work: RankWork) -> Setup:
    """The run as the step's time sees it; a search passes arrays, as ``step_parts`` takes them."""
    layout, batch, parallelism = work.layout, work.batch, work.parallelism
    reduce_bucket, gather_bucket = _buckets(parallelism, work.shape.num_parameters)
    return Setup(
        shape=work.shape,
        seq_len=batch.seq_len,
        micro_batch_size=batch.micro_batch_size,
        num_micro_steps=batch.gradient_accumulation_steps,
        num_gpus=layout.world_size,
        tensor_degree=layout.tensor_parallel_size,
        pipeline_degree=layout.pipeline_parallel_size,
        sequence_degree=layout.sequence_parallel_size,
        zero_stage=parallelism.zero_stage,
        # More than there are is a problem of the plan, which is told with its prediction.
        second_partition_ranks=smaller(parallelism.hpz_partition_size, layout.zero_degree),
        quantized_weights=parallelism.quantized_weights,
        quantized_gradients=parallelism.quantized_gradients,
        recomputation=work.checkpointing,
        offload_optimizer=parallelism.offload_optimizer != "none",
        offload_ratio=parallelism.offload_ratio,
        offload_param=parallelism.offload_param != "none",
        offload_activations=work.offload_activations,
        live_parameters=min(parallelism.max_live_parameters, parallelism.max_reuse_distance),
        reduce_bucket=reduce_bucket,
        gather_bucket=gather_bucket,
        sums_on_all_ranks=True,
        overlaps_reduction=parallelism.overlap_comm,
        bytes_per_element=work.bytes_per_element,
        nvme=nvme_traffic(work),
    )


def _buckets(parallelism: ParallelismConfig, num_parameters: int) -> tuple[int, int]:
    """Elements of gradients and of updated parameters that the engine sends at a time below stage 3."""
    if parallelism.zero_stage == 0:
        return REDUCE_BUCKET, REDUCE_BUCKET
    return reduce_bucket_elements(parallelism, num_parameters), parallelism.allgather_bucket_size


def prediction_gap(work: RankWork) -> str:
    """What keeps a step from being predicted, in words; empty: nothing."""
    hardware = work.hardware
    if hardware.device != "cuda":
        return f"hardware={hardware.name} has device={hardware.device}: step times are predicted for GPUs"
    missing = [f"hardware.{name}" for name in missing_rates(work)]
    return f"hardware={hardware.name} does not state {', '.join(missing)}" if missing else ""


def missing_rates(work: RankWork) -> list[str]:
    """Keys of the hardware that a step depends on and that are not stated; of ranks on processors none, nothing is predicted."""
    layout, parallelism, hardware, precision = work.layout, work.parallelism, work.hardware, work.precision
    if hardware.device != "cuda":
        return []
    wanted: dict[str, object] = {
        f"achievable_tflops.{precision}": hardware.achievable_tflops.get(precision),
        "gpu_memory_gb_per_s": hardware.gpu_memory_gb_per_s,
    }
    if layout.gpus_per_node > 1:
        wanted["intra_node_gb_per_s"] = hardware.intra_node_gb_per_s
    if layout.num_nodes > 1:
        wanted["inter_node_gb_per_s"] = hardware.inter_node_gb_per_s
    if work.offload_activations or {"cpu", "nvme"} & {parallelism.offload_optimizer, parallelism.offload_param}:
        wanted["host_link_gb_per_s"] = hardware.host_link_gb_per_s
    if parallelism.offload_optimizer != "none":
        wanted["host_memory_gb_per_s"] = hardware.host_memory_gb_per_s
    if uses_nvme(parallelism):
        wanted["nvme_read_gb_per_s"] = hardware.nvme_read_gb_per_s
        wanted["nvme_write_gb_per_s"] = hardware.nvme_write_gb_per_s
    return [name for name, value in wanted.items() if value is None]


def nvme_traffic(work: RankWork) -> NvmeTraffic | None:
    """Bytes of one rank that pass through NVMe; None: nothing is there."""
    need = nvme_need(work.parallelism, work.hardware, work.shape, work.layout, work.bytes_per_element)
    if need is None:
        return None
    is_pipelined = work.parallelism.pipeline_swaps
    return NvmeTraffic(need.state_bytes, need.gradient_bytes, need.parameter_bytes, is_pipelined)


def step_machine(hardware: HardwareConfig, precision: Precision) -> Machine:
    """The hardware as the step's time sees it; callers check that nothing is missing, see ``prediction_gap``."""
    family = _family(hardware.gpu)
    sustained = sustained_rates(family, SOFTWARE[OWN_SOFTWARE].own_kernels)
    return Machine(
        gpus_per_node=hardware.gpus_per_node,
        achievable_tflops=hardware.achievable_tflops[precision],
        memory_gb_per_s=hardware.gpu_memory_gb_per_s or 0.0,
        link_gb_per_s=hardware.intra_node_gb_per_s or 0.0,
        network_gb_per_s=hardware.inter_node_gb_per_s,
        host_link_gb_per_s=hardware.host_link_gb_per_s,
        host_memory_gb_per_s=hardware.host_memory_gb_per_s,
        nvme_read_gb_per_s=hardware.nvme_read_gb_per_s,
        nvme_write_gb_per_s=hardware.nvme_write_gb_per_s,
        sustained_matrix=sustained.matrix,
        sustained_attention=sustained.attention,
        half_rate_outputs=sustained.half_rate_outputs,
        host_adam=HOST_ADAM.get(family, 1.0),
    )


def _family(gpu: str) -> str:
    """The GPU's generation; a site may state rates of a GPU that the device table lacks, which is then its own family."""
    try:
        return find_device(gpu).family
    except ConfigError:
        return gpu


def time_range_s(step_time_s: float, software: Software) -> tuple[float, float]:
    """Seconds between which the measured step lies, if the errors are those of the validation rows.

    >>> low_s, high_s = time_range_s(10.0, SOFTWARE["deepspeed"])
    >>> round(low_s, 2), round(high_s, 2)
    (7.69, 13.33)
    """
    return range_s(step_time_s, software.errors)


def range_s(step_time_s: float, errors: tuple[float, float]) -> tuple[float, float]:
    """Seconds between which the measured step lies, given predicted over measured - 1 at the lowest and highest."""
    lowest, highest = errors
    return step_time_s / (1 + highest), step_time_s / (1 + lowest)


def uncertainty_text(software: Software) -> str:
    """One sentence: fitted where, off by how much where."""
    lowest, highest = software.errors
    if not software.validated_on:
        off = f"no published row to check them, {lowest:+.0%} to {highest:+.0%} assumed"
    else:
        off = f"{lowest:+.0%} to {highest:+.0%} off on {software.validated_on}"
    return f"constants of {software.name} fitted on {software.fitted_on}; {off}"


def _used(calibration: Calibration, work: RankWork, plain_parts: dict[str, float]) -> UsedCalibration:
    outside = outside_texts(
        calibration.seen,
        nodes=work.layout.num_nodes,
        parameters=work.shape.num_parameters,
        zero_stage=work.parallelism.zero_stage,
        model_parallel=work.layout.model_parallel_degrees,
        parts_s=plain_parts,
    )
    return used_calibration(calibration, outside)


def _uncertainty(
    software: Software, calibration: Calibration | None, used: UsedCalibration | None
) -> tuple[tuple[float, float], str]:
    """Errors that give the range, and the sentence about them.

    Those of the calibration's runs, where there are enough; outside what they were, the wider ones of theirs and the constants'.
    """
    if calibration is None or used is None:
        return software.errors, uncertainty_text(software)
    head = f"calibrated, {used.text}"
    if calibration.errors is None:
        few = f"from {used.num_configurations} configuration{'s' if used.num_configurations > 1 else ''} no spread is known"
        return (
            software.errors,
            f"{head}; {few}, so the range is that without a calibration: {uncertainty_text(software)}",
        )
    lowest, highest = calibration.errors
    if not used.outside:
        return calibration.errors, f"{head}; {lowest:+.0%} to {highest:+.0%} off in 95 % of further configurations"
    errors = (min(lowest, software.errors[0]), max(highest, software.errors[1]))
    return errors, (
        f"{head}; outside what these runs were ({'; '.join(used.outside)}), so the range is also that without a calibration:"
        f" {errors[0]:+.0%} to {errors[1]:+.0%}"
    )
