"""Which of the calibrations of a file is for a configuration, and today's prediction of what a run was."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpctrain.config.calibration import Calibration, PartKind
from hpctrain.config.schema import Config, HardwareConfig, Precision
from hpctrain.plan.run_plan import RunPlan, planned_work
from hpctrain.plan.speed.nvme_parts import NvmeTraffic
from hpctrain.plan.speed.software import HOST_ADAM, SOFTWARE, SUSTAINED
from hpctrain.plan.speed.step_parts import Machine, Setup, step_parts
from hpctrain.plan.speed.step_time import OWN_SOFTWARE, StepPrediction, predict_step
from hpctrain.plan.stated.plain_shape import plain_shape


def rates_of(hardware: HardwareConfig, precision: Precision) -> dict[str, float | None]:
    """What a predicted step takes from the hardware, by dotted key: with other values the factors would be others.

    Args:
        hardware: its kind of nodes.
        precision: of the matrix products.
    """
    names = (
        *("gpu_memory_gb_per_s", "intra_node_gb_per_s", "inter_node_gb_per_s", "host_link_gb_per_s"),
        *("host_memory_gb_per_s", "nvme_read_gb_per_s", "nvme_write_gb_per_s"),
    )
    return {
        f"hardware.achievable_tflops.{precision}": hardware.achievable_tflops.get(precision),
        **{f"hardware.{name}": getattr(hardware, name) for name in names},
    }


def stated_rates(rates: Mapping[str, float | None], kinds: Collection[PartKind]) -> dict[str, float]:
    """Of those rates the stated ones on which parts of these kinds depend.

    Args:
        rates: of ``rates_of``.
        kinds: of the parts that some run had.
    """
    of_host = ("hardware.host_", "hardware.nvme_")
    return {
        key: value
        for key, value in rates.items()
        if value is not None and ("host" in kinds or not key.startswith(of_host))
    }


def step_model_mark() -> str:
    """A mark of the predicted step that changes when its formulas or constants do: eight hexadecimal digits.

    A checksum over ``reference_parts``, what families of GPUs sustain and what their hosts do. A calibration corrects the
    predictions of one mark.
    """
    lines = [f"{name} {seconds:.6g}" for parts in reference_parts() for name, seconds in parts.items()]
    tables = [repr(sorted(table.items())) for table in (SUSTAINED, HOST_ADAM)]
    return f"{zlib.crc32(chr(10).join([*lines, *tables]).encode()):08x}"


def reference_parts() -> list[dict[str, float]]:
    """Seconds by part of four made-up steps that wait for everything that a step of our worker can wait for."""
    machine = Machine(8, 270.0, 2000.0, 300.0, 200.0, 25.0, 400.0, 16.0, 8.0)
    shape = plain_shape(24, 2048, 50304)
    traffic = NvmeTraffic(12 * 10**9, 4 * 10**9, 10**9, is_pipelined=True)
    setups = (
        Setup(shape, 2048, 2, 4, 64, zero_stage=3, recomputation="full", sequence_degree=2, offload_activations=True),
        Setup(
            shape, 2048, 2, 8, 64, tensor_degree=4, pipeline_degree=4, zero_stage=1, recomputation="selective",
            reduce_bucket=5e7, gather_bucket=5e7,
        ),
        Setup(shape, 2048, 1, 1, 64, zero_stage=2, reduce_bucket=5e7, sums_on_all_ranks=True, overlaps_reduction=True),
        Setup(
            shape, 2048, 2, 1, 16, zero_stage=3, offload_optimizer=True, offload_ratio=0.5, offload_param=True, nvme=traffic
        ),
    )  # fmt: skip
    return [step_parts(setup, machine, SOFTWARE[OWN_SOFTWARE]) for setup in setups]


def calibration_for(calibrations: Sequence[Calibration], config: Config) -> tuple[Calibration | None, str]:
    """The calibration that is for this hardware, data type and kind of kernels, or None and why there is none.

    Args:
        calibrations: of one file.
        config: of a run.
    """
    hardware, precision, compiled = config.hardware, config.precision, config.training.compile
    wanted = _key_text(hardware.name, precision, compiled)
    texts = [_key_text(entry.hardware, entry.precision, entry.compiled) for entry in calibrations]
    alike = [entry for entry, text in zip(calibrations, texts, strict=True) if text == wanted]
    if not alike:
        return None, f"has no calibration for {wanted}, only for {'; '.join(dict.fromkeys(texts))}"
    rates = rates_of(hardware, precision)
    differing: list[str] = []
    for entry in alike:
        differing = [
            f"{key}={_rate_text(rates.get(key))} now, {value:g} in its runs"
            for key, value in entry.rates.items()
            if value != rates.get(key)
        ]
        if not differing:
            return entry, ""
    return None, f"was fitted to other values of {wanted}: {', '.join(differing)}"


def _rate_text(rate: float | None) -> str:
    return "null" if rate is None else f"{rate:g}"


def _key_text(hardware: str, precision: str, compiled: bool) -> str:
    return f"hardware={hardware} in {precision}{', compiled' if compiled else ''}"


def prediction_of_run(plan: RunPlan, config: Config) -> tuple[StepPrediction | None, str]:
    """Today's prediction, without any calibration, of the step of a run that was planned earlier, or None and why.

    Shape, layout, batch and recomputation are the run's own; formulas and constants are today's. So runs that were planned with
    a calibration or by an older planner count like all others.

    Args:
        plan: as the run keeps it.
        config: as the run keeps it.
    """
    config = dataclasses.replace(
        config, parallelism=dataclasses.replace(config.parallelism, **moved_as_planned(plan, config))
    )
    return predict_step(planned_work(config, plan), plan.flops_per_step)


def moved_as_planned(plan: RunPlan, config: Config) -> dict[str, Any]:
    """Keys of ``parallelism`` that state what of the optimizer's state a run moved, where it was left to the planner; else none.

    Today's rules may choose another share.
    """
    if not config.parallelism.fit_offload_ratio:
        return {}
    section = plan.ds_config.get("zero_optimization", {}).get("offload_optimizer")
    if section is None:
        return {"fit_offload_ratio": False, "offload_optimizer": "none", "offload_ratio": 1.0, "nvme_ratio": 1.0}
    return {"fit_offload_ratio": False, "offload_ratio": float(section.get("ratio", 1.0))}
