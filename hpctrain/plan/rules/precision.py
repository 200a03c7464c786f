"""Which data types the hardware computes in, and what the loss scale of fp16 may be."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpctrain.config.schema import Config, Precision, TrainingConfig
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.devices import find_device

_DYNAMIC_KEYS = ("initial_scale_power", "loss_scale_window", "min_loss_scale", "hysteresis")


def precision_problems(config: Config) -> list[Problem]:
    """Every rule that the run's data type breaks, stated or the hardware's default."""
    training = config.training
    precision = config.precision
    problems = _device_problems(config, precision)
    if precision == "fp16":
        return problems + (
            _fixed_scale_problems(training) if training.loss_scale else _dynamic_scale_problems(training)
        )
    stated = [name for name in ("loss_scale", *_DYNAMIC_KEYS) if getattr(training, name) != _default(name)]
    return problems + [
        Problem(
            f"training.{name}",
            str(getattr(training, name)),
            f"scales the loss of fp16, and this run is in {precision}, whose smallest number is that of fp32: 1.2e-38",
            "leave it out, or add training.precision=fp16",
        )
        for name in stated
    ]


def precision_warnings(config: Config) -> list[str]:
    """What is right and slow."""
    if config.precision == "fp16" and config.hardware.device == "cpu":
        return [
            "training.precision=fp16 on hardware.device=cpu: right, and many times slower than fp32 or bf16 where the processor"
            " has no AVX512-FP16"
        ]
    return []


def loss_scale_text(ds_config: dict[str, Any]) -> str:
    """Behind the name of the data type; empty: nothing is scaled.

    >>> loss_scale_text({"fp16": {"loss_scale": 0, "initial_scale_power": 16}}), loss_scale_text({})
    (' (loss scale dynamic, from 65,536)', '')
    """
    section = ds_config.get("fp16")
    if section is None:
        return ""
    if section["loss_scale"]:
        return f" (loss scale {section['loss_scale']:g})"
    return f" (loss scale dynamic, from {2 ** section['initial_scale_power']:,})"


def _device_problems(config: Config, precision: Precision) -> list[Problem]:
    """A GPU of the device table whose data sheet has no rate in the data type; of other GPUs nothing is known."""
    if config.hardware.device != "cuda":
        return []
    try:
        device = find_device(config.hardware.gpu)
    except ConfigError:
        return []
    if precision in device.peak_tflops:
        return []
    rates = ", ".join(f"{name} {rate:g}" for name, rate in device.peak_tflops.items())
    rule = (
        f"has no units for it: {device.name} of hardware={config.hardware.name} computes in {rates} TFLOP/s; torch would emulate"
        f" {precision} in fp32"
    )
    fixes = [f"training.precision={name}" for name in ("fp16", "fp32") if name in device.peak_tflops]
    return [Problem("training.precision", precision, rule, f"nearest: {' or '.join(fixes)}")]


def _fixed_scale_problems(training: TrainingConfig) -> list[Problem]:
    rule = f"belongs to a dynamic loss scale, and training.loss_scale={training.loss_scale:g} is a fixed one"
    return [
        Problem(f"training.{name}", str(getattr(training, name)), rule, "leave it out, or set training.loss_scale=null")
        for name in _DYNAMIC_KEYS
        if getattr(training, name) != _default(name)
    ]


def _dynamic_scale_problems(training: TrainingConfig) -> list[Problem]:
    start = 2.0**training.initial_scale_power
    if training.min_loss_scale <= start:
        return []
    rule = (
        f"is above the first loss scale, 2^training.initial_scale_power = 2^{training.initial_scale_power} = {start:g}"
    )
    return [Problem("training.min_loss_scale", str(training.min_loss_scale), rule, f"nearest: {start:g}")]


def _default(name: str) -> object:
    return next(field.default for field in dataclasses.fields(TrainingConfig) if field.name == name)
